"""The metrics of an endpoint: a client or an exit, with its connections, round trips and retransmissions."""

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager

from tunnel import Attachment
from tunnel.attachment import endpoint_of
from tunnel.core import RESENT_BOUNDS, ROUND_TRIP_BOUNDS_US, Connection, ConnectionStats, EndedTotals
from tunnel.driver import Driver
from tunnel.metrics.listener import MetricsListener
from tunnel.metrics.metric import Histogram, Metric, Sample
from tunnel.metrics.page import MissingLibraryError, render_page
from tunnel.metrics.process import PROCESS_METRICS, LoopLag, process_samples
from tunnel.traces.record import TraceCause, TraceSink

__all__ = ["ENDPOINT_METRICS", "LOOK_S", "SLICE", "EndpointMetrics", "EndpointTotals", "serve_metrics"]

LOOK_S = 5.0  # between two looks at all open connections; 10,000 of them take about 20 ms, in slices
SLICE = 200  # connections in one turn of the event loop, about 0.4 ms
_CARRIERS = ("poll", "stream", "link", "websocket", "memory", "none")
_CAUSES = tuple(
    str(cause)
    for cause in TraceCause
    if cause
    not in (
        *(TraceCause.EXPIRED, TraceCause.APPLICATION_TO_TRANSPORT, TraceCause.TRANSPORT_TO_NETWORK),
        *(TraceCause.TRANSPORT_TO_APPLICATION, TraceCause.NETWORK_TO_TRANSPORT),
    )
)
_DIRECTIONS = ("in", "out")

_ATTACHED = Metric.gauge("tunnel_endpoint_attached", "1 while the relay knows this endpoint and answers.")
_CARRIER = Metric.gauge("tunnel_endpoint_carrier", "1 for what carries the packets at present.", carrier=_CARRIERS)
_OUTAGES = Metric.counter("tunnel_endpoint_outages_total", "Times that the relay was lost after it had answered.")
_FAILED = Metric.counter("tunnel_endpoint_failures_total", "HTTP connections to the relay that failed.")
_OPEN = Metric.gauge("tunnel_connections", "Open connections of the endpoint.")
_ENDED = Metric.counter("tunnel_connections_ended_total", "Connections that have ended.")
_OPENED = Metric.counter("tunnel_connections_opened_total", "Connections that were begun.")
_BYTES = Metric.counter(
    "tunnel_connection_bytes_total",
    "Bytes that the peer has acknowledged (out), or that came in order (in).",
    direction=_DIRECTIONS,
)
_PACKETS = Metric.counter(
    "tunnel_connection_packets_total",
    "Packets of connections, with control packets and those sent again, but without the SHUTDOWN that leaves after "
    "the end of one.",
    direction=_DIRECTIONS,
)
_RESENT = Metric.counter("tunnel_connection_packets_resent_total", "Packets that were sent again.", cause=_CAUSES)
_SPURIOUS = Metric.counter("tunnel_connection_packets_spurious_total", "Those of them that proved needless.")
_DUPLICATE = Metric.counter("tunnel_connection_packets_duplicate_total", "Packets that came more than once.")
_DISCARDED = Metric.counter(
    "tunnel_connection_packets_discarded_total", "Packets that came and were not usable, also those of no connection."
)
_ROUND_TRIP = Metric.histogram(
    "tunnel_round_trip_seconds",
    "Round trips to the peer: one observation for each connection that moved packets in the last 5 s, and one at the "
    "end of each connection.",
)
_SHARE = Metric.histogram(
    "tunnel_resent_ratio", "Share of the packets of a connection that were sent again, observed at its end."
)

ENDPOINT_METRICS = (
    *PROCESS_METRICS,
    *(_ATTACHED, _CARRIER, _OUTAGES, _FAILED, _OPEN, _OPENED, _ENDED, _BYTES, _PACKETS),
    *(_RESENT, _SPURIOUS, _DUPLICATE, _DISCARDED, _ROUND_TRIP, _SHARE),
)


class EndpointTotals:
    """Sums the counters of all connections of an endpoint, as they were at the last look.

    If they were added up for each page, each request for a page would stop the event loop for the longer, the more
    connections there are. So they are added up every `LOOK_S`, in slices.
    """

    def __init__(self) -> None:
        self.sums = EndedTotals()
        self.round_trips = Histogram([bound / 1e6 for bound in ROUND_TRIP_BOUNDS_US])
        self._moved: dict[int, int] = {}  # packets of each open connection at the last look

    def look(self, ended: EndedTotals, connections: list[Connection]) -> Iterator[None]:
        """Add up, in slices. `ended` and `connections` are of one moment, so that no connection counts twice."""
        moved: dict[int, int] = {}
        for place, connection in enumerate(connections):
            if place and place % SLICE == 0:
                yield
            stats = connection.snapshot()
            ended.add_counts(stats)
            self._observe(connection.id, stats, moved)
        self._moved = moved
        self.sums = ended

    def _observe(self, number: int, stats: ConnectionStats, moved: dict[int, int]) -> None:
        moved[number] = stats.packets_sent + stats.packets_received
        if stats.round_trip_us and moved[number] != self._moved.get(number, 0):
            self.round_trips.counts[bisect_left(ROUND_TRIP_BOUNDS_US, stats.round_trip_us)] += 1
            self.round_trips.total += stats.round_trip_us / 1e6


class EndpointMetrics:
    """Reads the metrics of an endpoint, from `start` to `close`. `more` yields those of what the endpoint does, such
    as the dials of an exit."""

    def __init__(
        self,
        attachment: Attachment,
        trace: TraceSink | None = None,
        more: Callable[[], Iterator[Sample]] = lambda: iter(()),
    ) -> None:
        self.totals = EndpointTotals()
        self._inside = endpoint_of(attachment)
        self._trace = trace
        self._more = more
        self._lag = LoopLag()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to measure, in the running loop."""
        self._lag.start()
        self._task = asyncio.get_running_loop().create_task(self._look())

    def close(self) -> None:
        """Stop measuring."""
        self._lag.close()
        if self._task is not None:
            self._task.cancel()

    async def _look(self) -> None:
        while True:
            drivers = self._inside.drivers
            if drivers:
                connections = [one for driver in drivers for one in driver.endpoint.connections.values()]
                for _ in self.totals.look(_ended(drivers), connections):
                    await asyncio.sleep(0)
            await asyncio.sleep(LOOK_S)

    # the page

    def page(self) -> bytes:
        """Return the page."""
        return render_page(self.samples())

    def samples(self) -> Iterator[Sample]:
        """Yield all samples; those of one metric follow each other."""
        yield from process_samples(self._trace, self._lag)
        yield _ATTACHED.sample(self._inside.is_attached)
        present = self._carrier()
        for carrier in _CARRIERS:
            yield _CARRIER.sample(carrier == present, carrier=carrier)
        yield _OUTAGES.sample(self._inside.listeners.outages)
        yield _FAILED.sample(self._inside.listeners.failures)
        yield from self._connection_samples()
        yield from self._more()

    def _carrier(self) -> str:
        drivers = self._inside.drivers
        name = drivers[0].carrier.description.partition(" ")[0] if drivers else "none"
        return name if self._inside.is_attached and name in _CARRIERS else "none"

    def _connection_samples(self) -> Iterator[Sample]:
        sums, drivers = self.totals.sums, self._inside.drivers
        opened = sum(len(driver.endpoint.connections) for driver in drivers)
        ended = sum(driver.endpoint.ended.connections for driver in drivers) if drivers else sums.connections
        yield _OPEN.sample(opened)
        yield _OPENED.sample(opened + ended)
        yield _ENDED.sample(ended)
        yield _BYTES.sample(sums.bytes_received, direction="in")
        yield _BYTES.sample(sums.bytes_acknowledged, direction="out")
        yield _PACKETS.sample(sums.packets_received, direction="in")
        yield _PACKETS.sample(sums.packets_sent + sums.packets_control, direction="out")
        for cause in _CAUSES:
            yield _RESENT.sample(sums.resent_by_cause.get(cause, 0), cause=cause)
        yield _SPURIOUS.sample(sums.packets_spurious)
        yield _DUPLICATE.sample(sums.packets_duplicate)
        yield _DISCARDED.sample(sums.packets_discarded)
        trips = Histogram(self.totals.round_trips.bounds)
        trips.counts = [sum(both) for both in zip(self.totals.round_trips.counts, sums.round_trips, strict=True)]
        trips.total = self.totals.round_trips.total + sums.round_trips_us / 1e6
        yield _ROUND_TRIP.sample(trips)
        shares = Histogram(RESENT_BOUNDS)
        shares.counts, shares.total = sums.resent_shares, sums.resent_share_total
        yield _SHARE.sample(shares)


def _ended(drivers: list[Driver]) -> EndedTotals:
    sums = EndedTotals()
    for driver in drivers:
        sums = sums.plus(driver.endpoint.ended)
        sums.packets_discarded += driver.endpoint.packets_discarded  # without a connection
    return sums


@asynccontextmanager
async def serve_metrics(
    address: tuple[str, int] | None,
    attachment: Attachment,
    trace: TraceSink | None = None,
    more: Callable[[], Iterator[Sample]] = lambda: iter(()),
) -> AsyncIterator[None]:
    """Serve the metrics at the address while the block lasts; do nothing without one. Raise ValueError if that is not
    possible; the text says why."""
    if address is None:
        yield
        return
    metrics = EndpointMetrics(attachment, trace, more)
    listener = MetricsListener(address, metrics.page, lambda: attachment.is_attached)
    try:
        await listener.start()
    except MissingLibraryError as error:
        raise ValueError(f"--metrics: {error}") from None
    except OSError as error:
        host, port = address
        text = f"--metrics: cannot listen on {host}:{port}: {error.strerror or error}: choose another address"
        raise ValueError(text) from None
    metrics.start()
    try:
        yield
    finally:
        metrics.close()
        await listener.close()
