"""A real Prometheus: promtool accepts the alerts and their tests, and the server reads a relay and an endpoint."""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import urllib.parse
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml

from tests.real.servers import start_server
from tests.servlet.rig import TOKENS, relay
from tests.servlet.web.rig import admin
from tests.support.loops import in_loop
from tests.support.programs import search_path
from tunnel import attach
from tunnel.metrics.endpoint import EndpointMetrics
from tunnel.metrics.listener import MetricsListener

DEPLOY = Path(__file__).resolve().parents[2] / "deploy" / "prometheus"


def promtool(*arguments: str) -> str:
    done = subprocess.run(
        ["promtool", *arguments], cwd=DEPLOY, env={"PATH": search_path()}, capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.real("promtool")
def test_promtool_accepts_the_alerts_the_configuration_and_the_tests() -> None:
    assert "rules found" in promtool("check", "rules", "tunnel.rules.yml")
    promtool("check", "config", "prometheus.yml")
    assert "SUCCESS" in promtool("test", "rules", "tunnel.tests.yml")


@pytest.mark.real("promtool")
@in_loop
async def test_promtool_finds_nothing_to_improve_on_the_page_of_a_relay() -> None:
    async with (
        relay(admin(exit="inline", metrics_by_user=True)) as running,
        aiohttp.ClientSession() as session,
        session.get(f"http://{running.admin}/metrics") as response,
    ):
        page = await response.read()
    done = await asyncio.to_thread(checked_metrics, page)
    assert (done.returncode, done.stderr.decode()) == (0, "")


def checked_metrics(page: bytes) -> subprocess.CompletedProcess[bytes]:
    command = ["promtool", "check", "metrics"]
    return subprocess.run(command, input=page, env={"PATH": search_path()}, capture_output=True, timeout=120)


async def until_told(ask: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(60):
        while True:
            found = await ask()
            if found:
                return found
            await asyncio.sleep(0.2)


@pytest.mark.real("prometheus")
@in_loop
async def test_prometheus_reads_a_relay_and_an_endpoint(tmp_path: Path) -> None:
    shutil.copy(DEPLOY / "tunnel.rules.yml", tmp_path)
    config = yaml.safe_load((DEPLOY / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    async with (
        relay(admin(exit="inline")) as running,
        attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None) as ann,
    ):
        metrics = EndpointMetrics(ann)
        listener = MetricsListener(("127.0.0.1", 0), metrics.page, lambda: ann.is_attached)
        metrics.start()
        await listener.start()
        places = [str(running.admin), f"127.0.0.1:{listener.address[1]}"]
        for job, place in zip(config["scrape_configs"], places, strict=True):
            job["static_configs"] = [{"targets": [place]}]
        (tmp_path / "prometheus.yml").write_text(json.dumps(config))

        def command(port: int) -> list[str]:
            files = [f"--config.file={tmp_path / 'prometheus.yml'}", f"--storage.tsdb.path={tmp_path / 'data'}"]
            return ["prometheus", *files, f"--web.listen-address=127.0.0.1:{port}"]

        with start_server(command, directory=tmp_path, reuses_addresses=False) as server:
            async with aiohttp.ClientSession() as session:

                async def value(query: str) -> list[str]:
                    place = f"{server.url}/api/v1/query?query={urllib.parse.quote(query)}"
                    async with session.get(place) as response:
                        # Before it is ready it answers 503.
                        found = (await response.json())["data"]["result"] if response.status == 200 else []
                    return [each["value"][1] for each in found]

                assert await until_told(lambda: value("sum(up) == 2")) == ["2"]
                assert await until_told(lambda: value("tunnel_ready")) == ["1"]
                assert await until_told(lambda: value("tunnel_endpoint_attached")) == ["1"]
                assert await until_told(lambda: value('tunnel_attachments{kind="client"}')) == ["1"]
                async with session.get(f"{server.url}/api/v1/rules") as response:
                    groups = (await response.json())["data"]["groups"]
                assert [rule["lastError"] for rule in groups[0]["rules"] if rule.get("lastError")] == []
        await listener.close()
        metrics.close()
