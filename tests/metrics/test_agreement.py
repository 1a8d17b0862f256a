"""Every count of one run with losses agrees: the metrics of relay, exit and client, the log of the fault proxy, the
losses of the relay's filter, and the analysis of the traces."""

from __future__ import annotations

import asyncio
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import tunnel
from loadtests.faultproxy import Drop, FaultProxy, FaultProxyOptions
from loadtests.harness.losses import Bernoulli, LossyFilter
from tests.analysis.engines import analysis_of, duckdb
from tests.servlet.rig import TOKENS, settings, until
from tests.support.targets import echo, target
from tunnel.analysis.engines.duck import DuckEngine
from tunnel.analysis.results.result import Analysis
from tunnel.attachment import endpoint_of
from tunnel.core import Endpoint
from tunnel.metrics.endpoint import EndpointMetrics
from tunnel.metrics.metric import Sample
from tunnel.traces.writer import TraceWriter
from tunnel.wire import Frame, PacketType
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.switch.stats import Undelivered
from tunnel_servlet.web.metrics import RelayMetrics
from tunnel_servlet.web.running import RunningRelay

CONNECTIONS, ROUNDS, SIZE = 5, 4, 40_000
PAYLOAD = CONNECTIONS * ROUNDS * SIZE  # in each direction
RULE = parse_rule("127.0.0.0/8:*")
NODES = ("client", "exit")
ALONE = (PacketType.SHUTDOWN, PacketType.OPTION, PacketType.NOOP)  # packets of no connection, or of one that has ended
NUMBERED = {PacketType.DATA, PacketType.CLOSE, PacketType.FINISH}  # as the analysis counts them
CLOSING = 2  # exchanges that are open when the client closes
_S = 60

Values = dict[tuple[str, ...], float]


class Run:
    """A run through a relay that loses packets, and a proxy that loses requests and answers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.metrics: dict[str, Values] = {}  # by node; each value by the metric's name and its labels
        self.arrived: Counter[int] = Counter()  # packets at the relay by type
        self.lost: Counter[int] = Counter()  # those that its filter dropped
        self.faults: dict[str, int] = {}
        self.exchanges = 0

    async def play(self) -> None:
        grants = GrantTable({"ann": Grant(connect=(RULE,)), "exits": Grant(exit=True)})
        config = settings(trace=str(self.directory), exit="none", grants=grants, switch={"settle_us": 0})
        with TraceWriter(self.directory, name="lossy") as lossy_trace:
            lossy = LossyFilter(Bernoulli(0.05), 7, lossy_trace)

            def passes(frame: Frame) -> bool:
                self.arrived[frame.type] += 1
                is_passed = lossy(frame)
                self.lost[frame.type] += not is_passed
                return is_passed

            async with RunningRelay(config, packet_filter=passes) as relay, target(echo) as port:
                await self._talk(relay, port)
                self.metrics["relay"] = values(RelayMetrics(relay.relay).samples())

    async def _talk(self, relay: RunningRelay, port: int) -> None:
        address = relay.addresses[0]
        options = FaultProxyOptions(
            upstream=(address.host, address.port),
            drop_request=Drop(0.05),
            drop_response=Drop(0.05),
            duplicate=0.05,
            seed=3,
        )
        common: dict[str, Any] = {"proxy": None, "linger": 5}
        dialer = Dialer(lambda user: Ruleset([RULE]))
        with (
            TraceWriter(self.directory, name="client") as client_trace,
            TraceWriter(self.directory, name="exit") as exit_trace,
            TraceWriter(self.directory, name="proxy") as proxy_trace,
        ):
            async with (
                FaultProxy(options, trace=proxy_trace) as proxy,
                tunnel.attach(
                    f"http://{address}",
                    token=TOKENS["exits"],
                    exit_handler=dialer,
                    carrier="link",
                    name="exit",
                    trace=exit_trace,
                    **common,
                ) as exit_,
                tunnel.attach(
                    proxy.url, token=TOKENS["ann"], carrier="poll", name="client", trace=client_trace, **common
                ) as client,
            ):
                await asyncio.gather(*(converse(client, port, number) for number in range(CONNECTIONS)))
                for name, attachment in zip(NODES, (client, exit_), strict=True):
                    endpoint = endpoint_of(attachment).drivers[0].endpoint
                    await until(partial(has_ended, endpoint))
                    found = EndpointMetrics(attachment)
                    found.start()
                    await until(partial(has_looked, found))
                    self.metrics[name] = values(found.samples())
                    found.close()
            self.faults = {name: count for name, count in proxy.counts.faults.items() if count}
            self.exchanges = proxy.counts.exchanges


def has_ended(endpoint: Endpoint) -> bool:
    return endpoint.ended.connections == CONNECTIONS


def has_looked(metrics: EndpointMetrics) -> bool:
    return metrics.totals.sums.connections == CONNECTIONS


async def converse(client: tunnel.Attachment, port: int, number: int) -> None:
    async with asyncio.timeout(2 * _S):
        reader, writer = await client.open_connection("127.0.0.1", port)
        data = bytes([number]) * SIZE
        for _ in range(ROUNDS):
            writer.write(data)
            assert await reader.readexactly(SIZE) == data
        writer.close()
        await writer.wait_closed()


def values(samples: Any) -> Values:
    found: list[Sample] = list(samples)
    return {(one.metric.name, *one.labels): one.value for one in found if isinstance(one.value, int | float)}


def resent(run: Run) -> float:
    """Return how many packets both ends have repeated."""
    found = [item for node in NODES for item in run.metrics[node].items()]
    return sum(count for name, count in found if name[0] == "tunnel_connection_packets_resent_total")


class Traced:
    """Counts of the traces, from the tables of the analysis."""

    def __init__(self, engine: DuckEngine, analysis: Analysis) -> None:
        self.totals = analysis.totals
        self._rows = engine.rows(
            "select split_part(node, '-', 1) as node, event, cause, reason, packet_type as type, count(*) as n, "
            "sum(size_bytes) as bytes from events group by all"
        )

    def count(self, node: str, event: str, what: str = "n", **wanted: Any) -> int:
        """Return the number of such events, or the sum of their bytes."""
        rows = [row for row in self._rows if row["node"].startswith(node) and row["event"] == event]
        return sum(int(row[what]) for row in rows if all(row[name] == value for name, value in wanted.items()))

    def missing(self, kind: int) -> int:
        """Return how many packets of this type have left one end and never reached the other."""
        reached = self.count("", "packet_received", type=kind)
        return self.count("", "packet_sent", type=kind) - reached - self.unknown(kind)

    def unknown(self, kind: int) -> int:
        """Return how many packets of this type came when their connection had ended."""
        return self.count("", "packet_dropped", type=kind, reason="connection_unknown")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = Run(tmp_path_factory.mktemp("traces"))
    with pytest.MonkeyPatch.context() as patch:
        # A client asks about a connection that waits for 1.5 s by one that it aborts, and that carries nothing.
        patch.setattr("tunnel.waiting._ASK_S", 4.0 * _S)
        asyncio.run(made.play())
    return made


@pytest.fixture(scope="module")
def traced(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Traced:
    with duckdb() as engine:
        return Traced(engine, analysis_of(engine, run.directory, tmp_path_factory.mktemp("tables")))


def test_the_run_has_faults_of_each_kind(run: Run) -> None:
    assert run.faults.keys() == {"drop_request", "drop_response", "duplicate"}
    assert run.lost[PacketType.DATA] > 0
    assert resent(run) >= run.lost[PacketType.DATA]


@pytest.mark.parametrize("node", NODES)
def test_an_endpoint_counts_what_its_trace_has(run: Run, traced: Traced, node: str) -> None:
    found = run.metrics[node]
    after_the_end = traced.count(node, "packet_sent", type=PacketType.SHUTDOWN)
    sent = traced.count(node, "packet_sent") - after_the_end
    assert found["tunnel_connection_packets_total", "out"] == sent
    assert found["tunnel_connection_packets_total", "in"] == traced.count(node, "packet_received")
    causes = {
        name[1]: count for name, count in found.items() if name[0] == "tunnel_connection_packets_resent_total" and count
    }
    assert causes == {cause: traced.count(node, "packet_sent", cause=cause) for cause in causes}
    assert found["tunnel_connection_packets_spurious_total",] == traced.count(node, "spurious_retransmit")
    duplicate = traced.count(node, "packet_dropped", reason="duplicate")
    assert found["tunnel_connection_packets_duplicate_total",] == duplicate
    dropped = traced.count(node, "packet_dropped") - duplicate
    assert found["tunnel_connection_packets_discarded_total",] == dropped
    assert found["tunnel_connections_ended_total",] == traced.count(node, "connection_closed") == CONNECTIONS


@pytest.mark.parametrize("node", NODES)
def test_the_bytes_are_those_of_the_applications(run: Run, traced: Traced, node: str) -> None:
    for direction, cause in (("in", "transport_to_application"), ("out", "application_to_transport")):
        assert run.metrics[node]["tunnel_connection_bytes_total", direction] == PAYLOAD
        assert traced.count(node, "stream_data_moved", "bytes", cause=cause) == PAYLOAD


def test_the_analysis_sums_what_the_endpoints_count(run: Run, traced: Traced) -> None:
    def both(name: str, *labels: str) -> float:
        return sum(run.metrics[node][name, *labels] for node in NODES)

    # The analysis does not judge ACCEPTED, which is numbered as well.
    accepted = traced.count("exit", "packet_sent", type=PacketType.ACCEPTED) - CONNECTIONS
    assert traced.totals["judged_repeats"] == resent(run) - accepted
    handshakes = traced.count("", "packet_dropped", reason="duplicate", type=PacketType.ACCEPTED)
    assert traced.totals["duplicates"] == both("tunnel_connection_packets_duplicate_total") - handshakes
    assert traced.totals["payload_bytes"] == both("tunnel_connection_bytes_total", "out") == 2 * PAYLOAD
    assert traced.totals["lost"] == sum(traced.missing(kind) for kind in NUMBERED)
    assert traced.totals["needless"] >= both("tunnel_connection_packets_spurious_total")  # not all are noticed


def test_the_relay_counts_the_packets_that_arrive_and_those_that_its_filter_drops(run: Run, traced: Traced) -> None:
    found, lost, arrived = run.metrics["relay"], sum(run.lost.values()), sum(run.arrived.values())
    assert lost == traced.count("lossy", "fault_injected")
    undelivered = {why: found["tunnel_packets_undelivered_total", why.name.lower()] for why in Undelivered}
    assert undelivered[Undelivered.FILTERED] == lost
    streams = [kind for kind in run.arrived if kind not in (*ALONE, PacketType.CONNECT)]
    gone = sum(traced.missing(kind) - run.lost[kind] for kind in streams)
    reasons = [why for why in Undelivered if why not in (Undelivered.FILTERED, Undelivered.IGNORED)]
    # A SHUTDOWN that is repeated may find no route any more. What becomes of it is in no trace.
    released = traced.count("", "packet_sent", type=PacketType.SHUTDOWN)
    assert gone <= sum(undelivered[why] for why in reasons) <= gone + released
    taken = sum(count for name, count in found.items() if name[:2] == ("tunnel_packets_total", "in"))
    assert taken == arrived - lost
    # Of a batch that leaves twice, each packet arrives once: the relay knows the body.
    for kind in {*run.arrived} - {*ALONE}:
        assert run.arrived[kind] == sum(traced.count(node, "packet_sent", type=kind) for node in NODES)


def test_the_faults_of_the_proxy_are_the_failures_of_the_client(run: Run, traced: Traced) -> None:
    lost = run.faults["drop_request"] + run.faults["drop_response"]
    causes = {"drop_request": "request_lost", "drop_response": "response_lost", "duplicate": "request_duplicated"}
    logged = {name: traced.count("faultproxy", "fault_injected", cause=cause) for name, cause in causes.items()}
    assert logged == run.faults
    # What the proxy loses while the client closes is no failure of the client.
    assert lost - CLOSING <= traced.count("client", "exchange_failed") <= lost
    assert lost - CLOSING <= run.metrics["client"]["tunnel_endpoint_failures_total",] <= lost
    assert run.metrics["exit"]["tunnel_endpoint_failures_total",] == 0
