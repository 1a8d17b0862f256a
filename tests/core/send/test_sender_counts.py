"""More of the sender: its state when new and when stopped, what it counts, what an echo proves, and its probes."""

import pytest

from tests.core.sender_bench import BIG, FIRST, MS, Bench
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import NO_EDGE, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable


def test_a_new_sender_waits_for_its_route() -> None:
    timers = TimerTable()
    sender = Sender(SendWindow(FIRST, BIG, BIG), timers, ConnectionStats(), CarrierView())
    sender.write(b"x", SECOND_US)
    assert not sender.sendable()
    assert sender.take(BIG, SECOND_US) is None
    assert not sender.probe_due
    assert timers.next() == NEVER_US


def test_a_stopped_sender_sends_nothing_again_and_keeps_nothing() -> None:  # 5.3
    bench = Bench()
    first, second = bench.send(1, 1, receipted=False)
    bench.sender.stop()
    bench.sender.given_up(first, 0)
    bench.receipt(second)
    assert not bench.sender.sendable()
    assert len(bench.sender._loss) == 0


def test_every_transmission_is_counted() -> None:
    bench = Bench()
    segments = bench.send(10, 20)
    for segment in segments:
        bench.sender._lose(segment, "cause")
    bench.receipt(bench.carry(), bench.carry())
    stats = bench.stats
    assert (stats.packets_sent, stats.packets_resent, stats.resent_by_cause) == (4, 2, {"cause": 2})
    assert (stats.bytes_carried, stats.bytes_receipted) == (60, 60)


@pytest.mark.parametrize(("attempt", "proves"), [(0, False), (1, True)])
def test_only_an_echo_of_the_latest_attempt_proves_others_overtaken(attempt: int, proves: bool) -> None:  # 4.8
    bench = Bench().measured()
    start = bench.number
    bench.send(1, 1, 1)
    bench.sender.dropped(FIRST + start + 2 - 2**32, FIRST + start + 2 - 2**32, 1, bench.now)
    bench.now += MS
    bench.receipt(bench.carry())
    bench.now += MS
    bench.ack(start - 1, (start + 2, start + 2), echo=start + 2, attempt=attempt)
    assert (bench.timers.get(Timer.REORDER) != NEVER_US) is proves


def probed_twice(bench: Bench) -> None:
    """Write into a closed window and let two probes leave."""
    bench.sender.write(bytes(10), bench.now)
    assert [bench.fire() // SECOND_US, bench.fire() // SECOND_US] == [1, 2]


def test_window_probes_restart_their_backoff_when_the_route_is_resumed() -> None:  # 4.6, 4.12
    bench = Bench(peer_edge=0)
    probed_twice(bench)
    bench.sender.suspend()
    assert bench.timers.next() == NEVER_US
    bench.sender.resume(NO_EDGE, bench.now)
    assert bench.timers.get(Timer.WINDOW_PROBE) == bench.now + SECOND_US


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
