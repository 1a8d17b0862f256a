"""More of the sender: what it is when it is new and when it is stopped, what it counts, and what an echo proves."""

import pytest

from tests.core.sender_bench import BIG, FIRST, MS, Bench
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import NO_EDGE, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.wire import PacketType


def test_a_new_one_waits_for_its_route() -> None:
    timers = TimerTable()
    sender = Sender(SendWindow(FIRST, BIG, BIG), timers, ConnectionStats(), CarrierView())
    sender.write(b"x", SECOND_US)
    assert not sender.sendable()
    assert sender.take(BIG, SECOND_US) is None
    assert not sender.probe_due
    assert timers.next() == NEVER_US


def test_a_stopped_one_sends_nothing_again_and_keeps_nothing() -> None:  # 5.3
    bench = Bench()
    first, second = bench.send(1, 1, receipted=False)
    bench.sender.stop()
    bench.sender.given_up(first, 0)
    bench.receipt(second)
    assert not bench.sender.sendable()
    assert len(bench.sender._loss) == 0


def test_what_is_carried_is_counted_each_time() -> None:
    bench = Bench()
    segments = bench.send(10, 20)
    for segment in segments:
        bench.sender._lose(segment, "cause")
    bench.receipt(bench.carry(), bench.carry())
    stats = bench.stats
    assert (stats.packets_sent, stats.packets_resent, stats.resent_by_cause) == (4, 2, {"cause": 2})
    assert (stats.bytes_carried, stats.bytes_receipted) == (60, 60)


@pytest.mark.parametrize(("attempt", "proves"), [(0, False), (1, True)])
def test_only_the_attempt_that_arrived_proves_that_others_were_overtaken(attempt: int, proves: bool) -> None:  # 4.8
    bench = Bench().measured()
    start = bench.number
    bench.send(1, 1, 1)
    bench.sender.dropped(FIRST + start + 2 - 2**32, FIRST + start + 2 - 2**32, 1, bench.now)
    bench.now += MS
    bench.receipt(bench.carry())
    bench.now += MS
    bench.ack(start - 1, (start + 2, start + 2), echo=start + 2, attempt=attempt)
    assert (bench.timers.get(Timer.REORDER) != NEVER_US) is proves


def test_every_needless_retransmission_counts() -> None:  # 4.5
    bench = Bench().measured()
    for _ in range(2):
        (segment,) = bench.send(1)
        bench.sender._lose(segment, "cause")
        bench.receipt(bench.carry())
        bench.ack(bench.number - 1, attempt=0)
    assert bench.stats.packets_spurious == 2


def probed_twice(bench: Bench) -> None:
    """The window is closed; two probes have left."""
    bench.sender.write(bytes(10), bench.now)
    assert [bench.fire() // SECOND_US, bench.fire() // SECOND_US] == [1, 2]


def test_window_probes_begin_anew_when_the_window_has_opened() -> None:  # 4.12
    bench = Bench(peer_edge=0)
    probed_twice(bench)
    bench.ack(-1, window=1)
    bench.receipt(bench.carry())
    bench.ack(0, window=0)
    assert bench.timers.get(Timer.WINDOW_PROBE) == bench.now + SECOND_US


def test_window_probes_begin_anew_when_the_peer_was_heard_of_something_else() -> None:  # 4.12
    bench = Bench(peer_edge=0)
    probed_twice(bench)
    bench.sender.insert(PacketType.OPTION, b"option", bench.now)
    bench.receipt(bench.carry())
    bench.ack(0, window=0)
    assert bench.timers.get(Timer.WINDOW_PROBE) == bench.now + SECOND_US


def test_window_probes_begin_anew_with_the_route() -> None:  # 4.6, 4.12
    bench = Bench(peer_edge=0)
    probed_twice(bench)
    bench.sender.suspend()
    assert bench.timers.next() == NEVER_US
    bench.sender.resume(NO_EDGE, bench.now)
    assert bench.timers.get(Timer.WINDOW_PROBE) == bench.now + SECOND_US


def test_a_flush_asks_when_the_last_of_it_has_left() -> None:  # 4.17
    bench = Bench()
    sender = bench.sender
    sender.write(bytes(30), bench.now)
    sender.flush(30)
    assert not sender.probe_due
    assert sender.take(20, bench.now) is not None
    assert not sender.probe_due
    assert sender.take(10, bench.now) is not None
    assert sender.probe_due
    sender.probe_due = False
    sender.write(bytes(10), bench.now)
    assert sender.take(10, bench.now) is not None
    assert not sender.probe_due  # it has asked
    sender.flush(40)
    assert sender.probe_due  # at once: all of it has left
    bench.ack(2)
    assert not sender.probe_due  # nobody waits any more


def test_a_flush_ends_with_the_sender() -> None:
    bench = Bench()
    bench.sender.write(bytes(30), bench.now)
    bench.sender.flush(30)
    bench.sender.stop()
    assert bench.sender.flush_offset == NEVER_US
    bench.sender.resume(NO_EDGE, bench.now)
    bench.sender.write(bytes(30), bench.now)
    assert bench.sender.take(30, bench.now) is not None
    assert not bench.sender.probe_due
