"""Records that a driver writes about itself, its loop and its sockets."""

import asyncio
import socket
import time
from collections.abc import Callable

import pytest

from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces import watch as watching
from tunnel.traces.watch import DriverWatch, tcp_info

WAIT_S = 30.0


def no_sockets() -> list[socket.socket]:
    return []


def test_attachment_and_carrier_are_recorded() -> None:
    records: list[TraceRecord] = []
    watch = DriverWatch(records.append, "n", no_sockets)
    watch.attached("relay.example", fresh=True, now=1)
    watch.carrier_changed("link", 3, 2)
    watch.detached("troubled", 4)
    watch.close()
    assert records == [
        TraceRecord(time_us=1, node="n", event=TraceEvent.ATTACHED, text="relay.example", count=1),
        TraceRecord(time_us=2, node="n", event=TraceEvent.CARRIER_CHANGED, carrier="link", count=3),
        TraceRecord(time_us=4, node="n", event=TraceEvent.DETACHED, text="troubled"),
    ]


def until(event: TraceEvent, block: bool, sockets: Callable[[], list[socket.socket]]) -> TraceRecord:
    """Return the first record of this event. With `block`, the loop is blocked most of the time until then."""

    async def run() -> TraceRecord:
        found: asyncio.Future[TraceRecord] = asyncio.get_running_loop().create_future()

        def sink(record: TraceRecord) -> None:
            if record.event == event and not found.done():
                found.set_result(record)

        watch = DriverWatch(sink, "n", sockets)
        watch.start()
        try:
            while block and not found.done():
                deadline = time.monotonic() + 0.02
                while time.monotonic() < deadline:
                    pass
                await asyncio.sleep(0)
            async with asyncio.timeout(WAIT_S):
                return await found
        finally:
            watch.close()

    return asyncio.run(run())


def test_a_late_event_loop_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SAMPLE_S", 0.01)
    assert until(TraceEvent.LOOP_LAG, True, no_sockets).latency_us >= watching.LAG_MIN_US


def test_sockets_are_sampled(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SAMPLE_S", 0.01)
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        dead = socket.socket()
        dead.close()
        record = until(TraceEvent.SOCKET_SAMPLED, False, lambda: [dead, client])
        assert record.rto_us > 0
        assert record.serial == client.fileno()


def test_a_socket_that_is_not_tcp_has_no_figures() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert tcp_info(left) is None


def test_tcp_info_is_ignored_if_it_is_short_or_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(socket.socket):
        def getsockopt(self, *_: int) -> bytes:  # type: ignore[override]
            return bytes(50)

    with Short() as sock:
        assert tcp_info(sock) is None
    monkeypatch.delattr(socket, "TCP_INFO")
    with socket.socket() as plain:
        assert tcp_info(plain) is None
