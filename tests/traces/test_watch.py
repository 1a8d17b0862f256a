"""Records that a driver writes about itself, its loop and its sockets."""

import asyncio
import heapq
import itertools
import socket
import struct
from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.event_loop import VirtualLoop
from tests.support.loops import in_loop
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces import watch as watching
from tunnel.traces.record import TraceSink
from tunnel.traces.watch import DriverWatch, LoopWatch, tcp_info


def no_sockets() -> list[socket.socket]:
    return []


def test_attachment_and_carrier_are_recorded() -> None:
    records: list[TraceRecord] = []
    watch = DriverWatch(records.append, "n", no_sockets)
    watch.on_attached("relay.example", fresh=True, now=1)
    watch.carrier_changed("link", 3, 2)
    watch.on_detached("troubled", 4)
    watch.on_attached("relay.example", fresh=False, now=5)
    assert records == [
        TraceRecord(time_us=1, node="n", event=TraceEvent.ATTACHED, text="relay.example", count=1),
        TraceRecord(time_us=2, node="n", event=TraceEvent.CARRIER_CHANGED, carrier="link", count=3),
        TraceRecord(time_us=4, node="n", event=TraceEvent.DETACHED, text="troubled"),
        TraceRecord(time_us=5, node="n", event=TraceEvent.ATTACHED, text="relay.example", count=0),
    ]


class Time:
    """Virtual time for a watch. `late_us` is how late the loop runs its timers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_us = 1_000_000
        self.late_us = 0
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self._loop = VirtualLoop.of(lambda: self.now_us, self._later)
        monkeypatch.setattr(watching, "now_us", lambda: 5_000_000 + self.now_us)

    def _later(self, delay_us: int, action: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.now_us + delay_us, next(self._number), action))

    def start(self, watch: LoopWatch) -> None:
        with self._loop.running():
            watch.start()

    def pass_by(self, us: int) -> None:
        """Let this time pass."""
        until_us = self.now_us + us
        while self._due and self._due[0][0] + self.late_us <= until_us:
            due_us, _, action = heapq.heappop(self._due)
            self.now_us = due_us + self.late_us
            action()
        self.now_us = until_us


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    return Time(monkeypatch)


class Sampled(LoopWatch):
    """A watch that notes when it takes samples."""

    def __init__(self, sink: TraceSink = print) -> None:
        super().__init__(sink, "n")
        self.times: list[int] = []

    def on_sampled(self, now: int) -> None:
        self.times.append(now)


def test_the_loop_is_sampled_ten_times_a_second_until_the_watch_is_closed(time: Time) -> None:
    watch = Sampled()
    watch.close()  # it was not started, so there is nothing to stop
    time.start(watch)
    time.pass_by(350_000)
    assert watch.times == [6_100_000, 6_200_000, 6_300_000]
    watch.close()
    watch.close()
    time.pass_by(1_000_000)
    assert len(watch.times) == 3


def test_a_loop_that_is_late_is_recorded_with_its_lag(time: Time) -> None:
    records: list[TraceRecord] = []
    watch = Sampled(records.append)
    time.start(watch)
    time.late_us = watching.LAG_MIN_US - 1
    time.pass_by(200_000)
    assert records == []
    time.late_us = watching.LAG_MIN_US
    time.pass_by(110_000)
    time.late_us = 2_000_000
    time.pass_by(2_200_000)
    assert records == [
        TraceRecord(time_us=now, node="n", event=TraceEvent.LOOP_LAG, latency_us=lag_us)
        for now, lag_us in zip(watch.times[1:], (5_000, 2_000_000), strict=True)
    ]


def test_a_loop_watch_samples_no_sockets(time: Time) -> None:
    records: list[TraceRecord] = []
    time.start(LoopWatch(records.append, "n"))
    time.pass_by(5_000_000)
    assert records == []


def test_all_sockets_are_sampled_with_the_first_sample_and_then_every_second(
    time: Time, monkeypatch: pytest.MonkeyPatch
) -> None:
    figures = {"a": (9, 8, 7, 6), "b": None, "c": (5, 4, 3, 2)}
    monkeypatch.setattr(watching, "tcp_info", figures.get)
    records: list[TraceRecord] = []
    open_sockets: Any = ["a", "b", "c"]
    watch = DriverWatch(records.append, "n", lambda: open_sockets)
    time.start(watch)
    time.pass_by(1_000_000)
    assert records == [
        TraceRecord(
            time_us=6_100_000, node="n", event=TraceEvent.SOCKET_SAMPLED, rto_us=9, srtt_us=8, count=7, serial=6
        ),
        TraceRecord(
            time_us=6_100_000, node="n", event=TraceEvent.SOCKET_SAMPLED, rto_us=5, srtt_us=4, count=3, serial=2
        ),
    ]
    records.clear()
    open_sockets.remove("a")
    time.pass_by(2_000_000)
    assert [(record.time_us, record.rto_us) for record in records] == [(7_100_000, 5), (8_100_000, 5)]


@in_loop
async def test_a_watch_samples_a_real_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watching, "SAMPLE_S", 0.01)
    found: asyncio.Queue[TraceRecord] = asyncio.Queue()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        watch = DriverWatch(found.put_nowait, "n", lambda: [client])
        watch.start()
        while (record := await found.get()).event != TraceEvent.SOCKET_SAMPLED:
            assert record.event == TraceEvent.LOOP_LAG  # the machine may be busy
        watch.close()
        assert record.serial == client.fileno()


# the figures of a socket


def test_a_tcp_connection_has_figures() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        info = tcp_info(client)
        assert info is not None
        rto_us, _, retransmits, number = info
        assert rto_us > 0
        assert (retransmits, number) == (0, client.fileno())


class Canned(socket.socket):
    """A socket whose `getsockopt` returns `told`."""

    told = b""
    asked: tuple[int, ...] = ()

    def getsockopt(self, *of: int) -> bytes:  # type: ignore[override]
        self.asked = of
        return self.told


def test_the_figures_are_those_of_linux() -> None:
    with Canned() as sock:
        sock.told = struct.pack("<8B24I", *range(8), *(1 << 24 | number for number in range(24)))
        rto_us, srtt_us, retransmits, _ = tcp_info(sock) or (0, 0, 0, 0)
        assert [value & 0xFF for value in (rto_us, srtt_us, retransmits)] == [
            0,
            15,
            23,
        ]  # tcpi_rto, _rtt, _total_retrans
        assert rto_us == 1 << 24
        assert sock.asked[:2] == (socket.IPPROTO_TCP, socket.TCP_INFO)


def test_a_socket_that_is_not_tcp_has_no_figures() -> None:
    left, right = socket.socketpair()
    with left, right:
        assert tcp_info(left) is None


def test_a_closed_socket_has_no_figures() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        client.close()
        assert tcp_info(client) is None


@pytest.mark.parametrize(("size", "has_figures"), [(0, False), (103, False), (104, True), (208, True)])
def test_a_tcp_info_that_is_too_short_gives_no_figures(size: int, has_figures: bool) -> None:
    with Canned() as sock:
        sock.told = bytes(size)
        assert (tcp_info(sock) is not None) == has_figures


def test_another_system_may_tell_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "TCP_INFO")
    with socket.socket() as plain:
        assert tcp_info(plain) is None
