"""The dashboards, asked of a real Prometheus that reads a relay and an exit with traffic: no panel stays empty."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import aiohttp
import pytest

from tests.real.servers import start_server
from tests.servlet.rig import TOKENS, relay
from tests.servlet.web.rig import Echo, admin
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, DeniedError, attach
from tunnel.metrics.endpoint import EndpointMetrics
from tunnel.metrics.listener import MetricsListener
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

GRAFANA = Path(__file__).resolve().parents[2] / "deploy" / "grafana"
DASHBOARDS = ("overview", "paths", "user")
# What Grafana puts in for its variables: all instances and users, and four intervals of scraping.
FILLED = {"$__rate_interval": "4s", "$instance": ".*", "$user": ".*"}
ANN = Grant(connect=(parse_rule("localhost:*"), parse_rule("127.0.0.0/8:*")), rate=200_000)
WAIT_S = 120


class Panel(NamedTuple):
    """A query of a panel, as Grafana sends it."""

    board: str
    title: str
    query: str


def panels() -> Iterator[Panel]:
    for board in DASHBOARDS:
        for panel in json.loads((GRAFANA / f"{board}.json").read_text())["panels"]:
            for asked in panel["targets"]:
                query = asked["expr"]
                for variable, value in FILLED.items():
                    query = query.replace(variable, value)
                yield Panel(board, panel["title"], query)


def variables() -> Iterator[Panel]:
    """Yield the queries that fill the lists above the panels, as queries for series."""
    for board in DASHBOARDS:
        for variable in json.loads((GRAFANA / f"{board}.json").read_text())["templating"]["list"]:
            if variable["type"] == "query":
                series, _, label = variable["query"]["query"].removeprefix("label_values(")[:-1].rpartition(", ")
                yield Panel(board, variable["name"], f"count by ({label}) ({series.replace('$instance', '.*')})")


async def traffic(ann: Attachment, port: int) -> None:
    """Connect, move bytes and be refused, without end."""
    while True:
        reader, writer = await ann.open_connection("localhost", port, timeout=WAIT_S)
        writer.write(bytes(100_000))
        await reader.readexactly(100_000)
        writer.close()
        with contextlib.suppress(DeniedError):
            await ann.open_connection("denied.example", 1, timeout=WAIT_S)
        await asyncio.sleep(0.1)


def shown(found: list[dict[str, list[str]]]) -> list[float]:
    """Return the values that a panel draws: NaN is none."""
    return [value for each in found if not math.isnan(value := float(each["value"][1]))]


async def unanswered(session: aiohttp.ClientSession, url: str, asked: list[Panel]) -> list[Panel]:
    """Ask until each query has given a value, and return those that have not."""
    left = asked
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(WAIT_S):
            while left:
                empty = []
                for panel in left:
                    async with session.get(f"{url}/api/v1/query", params={"query": panel.query}) as response:
                        if response.status == 503:  # it starts
                            empty.append(panel)
                            continue
                        body = await response.json()
                    assert body["status"] == "success", (panel, body)  # the query is valid
                    if not shown(body["data"]["result"]):
                        empty.append(panel)
                left = empty
                await asyncio.sleep(0.5)
    return left


@pytest.mark.real("prometheus")
@pytest.mark.timeout(3 * WAIT_S)
@in_loop
async def test_each_panel_shows_something_while_there_is_traffic(tmp_path: Path) -> None:
    """No panel is empty by nature: what has not happened yet is shown as 0."""
    grants = GrantTable({"ann": ANN})
    async with (
        target(Echo()) as port,  # it ends when its connections have: the last of them ends with the attachment
        relay(admin(exit="inline", metrics_by_user=True, grants=grants)) as running,
        attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None) as ann,
        aiohttp.ClientSession() as session,
    ):
        metrics = EndpointMetrics(ann)
        listener = MetricsListener(("127.0.0.1", 0), metrics.page, lambda: ann.is_attached)
        metrics.start()
        await listener.start()
        jobs = [
            {"job_name": name, "static_configs": [{"targets": [place]}]}
            for name, place in (("relay", str(running.admin)), ("endpoint", f"127.0.0.1:{listener.address[1]}"))
        ]
        (tmp_path / "prometheus.yml").write_text(
            json.dumps({"global": {"scrape_interval": "1s"}, "scrape_configs": jobs})
        )
        work = asyncio.create_task(traffic(ann, port))

        def command(port: int) -> list[str]:
            files = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
            return ["prometheus", *files, f"--web.listen-address=127.0.0.1:{port}"]

        with start_server(command, directory=tmp_path, reuses_addresses=False) as server:
            asked = [*panels(), *variables()]
            assert len(asked) > 30
            left = await unanswered(session, server.url, asked)
        assert not work.done()
        work.cancel()
        assert left == []
        await listener.close()
        metrics.close()
