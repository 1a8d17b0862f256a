"""The metrics of clients and exits: values that agree with the connections, and looks in slices."""

from __future__ import annotations

import asyncio
from random import Random

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tests.support.targets import echo
from tunnel import attach
from tunnel.attachment import endpoint_of
from tunnel.core import ConnectionStats, EndedTotals
from tunnel.metrics.endpoint import ENDPOINT_METRICS, SLICE, EndpointMetrics, EndpointTotals, serve_metrics
from tunnel.metrics.metric import OPEN_LABELS, Histogram
from tunnel_servlet.exit.dial_counts import EXIT_METRICS


class FakeConnection:
    """A connection whose counters a test sets."""

    def __init__(self, number: int, **counts: int) -> None:
        self.id = number
        self.stats = msgspec.convert(counts, ConnectionStats)

    def snapshot(self) -> ConnectionStats:
        return self.stats


@in_loop
async def test_a_client_and_its_exit_count_what_moves() -> None:
    target = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]
    async with target, relay(settings(exit="inline")) as running:
        async with attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None, linger=0.1) as ann:
            metrics = EndpointMetrics(ann)
            reader, writer = await ann.open_connection("127.0.0.1", port)
            writer.write(b"x" * 100_000)
            assert len(await reader.readexactly(100_000)) == 100_000
            writer.close()
            await writer.wait_closed()
            endpoint = ann._endpoint.drivers[0].endpoint
            await until(lambda: not endpoint.connections)
            for _ in metrics.totals.look(endpoint.ended.copy(), []):
                pass
            samples = list(metrics.samples())
        dialer = running.relay.dialer
        assert dialer is not None
        dialled = {(one.metric.name, *one.labels): one.value for one in dialer.samples()}
    found = {(one.metric.name, *one.labels): one.value for one in samples}
    assert found["tunnel_endpoint_attached",] == 1
    assert found["tunnel_connections_ended_total",] == endpoint.ended.connections  # questions about it are connections
    assert found["tunnel_connection_bytes_total", "in"] == 100_000
    assert found["tunnel_connection_bytes_total", "out"] == 100_000
    trips = found["tunnel_round_trip_seconds",]
    assert isinstance(trips, Histogram)
    assert sum(trips.counts) >= 1
    assert dialled["tunnel_dials_total", "opened"] == 1
    assert {one.metric for one in samples} == {
        each for each in ENDPOINT_METRICS if not each.name.startswith("tunnel_trace")
    }
    for each in (*ENDPOINT_METRICS, *EXIT_METRICS):
        assert all(texts or label in OPEN_LABELS for label, texts in each.labels.items())
        assert "user" not in each.labels


@in_loop
async def test_the_metrics_of_an_endpoint_at_two_relays_are_the_sums() -> None:
    target = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = target.sockets[0].getsockname()[1]
    async with (
        target,
        relay(settings(switch={"settle_us": 0})) as first,
        relay(settings(exit="inline", switch={"settle_us": 0})) as second,
    ):
        one, two = (f"http://{running.addresses[0]}" for running in (first, second))
        token = TOKENS["ann"]
        async with attach(one, token=token, proxy=None, linger=0.1, further_relays=[(two, token)]) as ann:
            metrics = EndpointMetrics(ann)
            await until(lambda: ann.stats().relays[0].attached)
            _, writer = await ann.open_connection("127.0.0.1", port)
            drivers = endpoint_of(ann).drivers
            assert len(drivers) == 2
            found = {(one.metric.name, *one.labels): one.value for one in metrics.samples()}
            assert found["tunnel_connections",] == 1
            assert found["tunnel_connections_ended_total",] == sum(one.endpoint.ended.connections for one in drivers)
            assert found["tunnel_connections_ended_total",] >= 1  # the first relay has refused one
            writer.close()
            await writer.wait_closed()


@in_loop
async def test_without_a_relay_it_is_alive_and_not_ready() -> None:
    attachment = attach("http://127.0.0.1:9", token="tnl_x", proxy=None)
    async with serve_metrics(("127.0.0.1", 0), attachment):
        pass  # the port is unknown here; the listener's own tests ask for pages
    metrics = EndpointMetrics(attachment)
    page = metrics.page().decode()
    assert "\ntunnel_endpoint_attached 0.0\n" in page
    assert 'tunnel_endpoint_carrier{carrier="none"} 1.0' in page
    assert {family.name for family in text_string_to_metric_families(page)}
    await attachment.close()


def test_a_look_at_ten_thousand_connections_is_cut_in_slices() -> None:
    connections = [FakeConnection(number, packets_sent=number) for number in range(10_000)]
    totals = EndpointTotals()
    turns = len(list(totals.look(EndedTotals(), connections)))  # type: ignore[arg-type]
    assert turns == 10_000 // SLICE - 1
    assert totals.sums.packets_sent == sum(range(10_000))


def test_counters_never_fall_when_connections_end_between_looks() -> None:
    random = Random(5)
    ended, totals = EndedTotals(), EndpointTotals()
    open_ones = {number: FakeConnection(number) for number in range(50)}
    last = 0
    for _ in range(100):
        for one in open_ones.values():
            one.stats.packets_sent += random.getrandbits(4)
        steps = totals.look(ended.copy(), list(open_ones.values()))  # type: ignore[arg-type]
        for number in random.sample(sorted(open_ones), k=min(len(open_ones), random.getrandbits(1))):
            ended.add(open_ones.pop(number).stats)  # during the look
        for _ in steps:
            pass
        assert totals.sums.packets_sent >= last
        last = totals.sums.packets_sent


def test_a_round_trip_is_observed_only_when_packets_have_moved() -> None:
    totals = EndpointTotals()
    one = FakeConnection(1, packets_sent=3, round_trip_us=30_000)
    for sent, observed in ((3, 1), (3, 1), (4, 2)):
        one.stats.packets_sent = sent
        assert list(totals.look(EndedTotals(), [one])) == []  # type: ignore[list-item]
        assert sum(totals.round_trips.counts) == observed
    assert totals.round_trips.total == 0.06
