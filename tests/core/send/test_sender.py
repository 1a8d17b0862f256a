"""The sending half with its timers: RTO, tail probe, losses by time, window probes, receipts."""

import pytest

from tests.core.sender_bench import BIG, FIRST, MS, RTT_US, Bench
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.send.window import NO_EDGE
from tunnel.core.timers import Timer
from tunnel.wire import PacketType, wrap

# RTO and tail probe


def test_progress_allows_another_tail_probe() -> None:
    bench = Bench().measured()
    bench.send(1, 1)
    bench.fire()
    bench.receipt(bench.carry())
    bench.ack(1)
    assert bench.timers.get(Timer.TAIL_PROBE) != NEVER_US


def test_no_tail_probe_without_a_sample_or_when_rto_is_sooner() -> None:  # 4.7
    bench = Bench()
    bench.send(1)
    assert bench.timers.get(Timer.TAIL_PROBE) == NEVER_US
    slow = Bench()
    slow.send(1)
    slow.now += SECOND_US
    slow.ack(0)
    slow.send(1, 1)
    assert slow.timers.get(Timer.TAIL_PROBE) != NEVER_US
    slow.sender.rtt.variance_us = 0
    slow.sender.arm(slow.now)
    assert slow.timers.get(Timer.TAIL_PROBE) == NEVER_US


def test_a_later_receipt_postpones_the_tail_probe() -> None:
    bench = Bench().measured()
    bench.send(1)
    bench.now += 100 * MS
    bench.send(1)
    assert bench.timers.get(Timer.TAIL_PROBE) == bench.now + 125 * MS  # the second receipt has not moved it
    assert bench.fire() == 125 * MS
    assert bench.sender.take(BIG, bench.now) is None  # the timer only moved
    assert bench.fire() == 100 * MS
    assert bench.carry().cause == "pto_probe"


def test_a_tail_probe_that_finds_no_tail_does_nothing() -> None:
    bench = Bench().measured()
    (segment,) = bench.send(1)
    bench.sender.dropped(wrap(segment.sequence), wrap(segment.sequence), 5, bench.now)
    bench.timers.set(Timer.TAIL_PROBE, bench.now)
    bench.sender.handle_timers(bench.now)
    assert not bench.sender._tail_probed


# loss by time


@pytest.mark.parametrize(("lanes", "window_us"), [(1, 25 * MS), (4, 100 * MS)])
def test_an_overtaken_packet_is_resent_after_rtt_and_the_reordering_window(lanes: int, window_us: int) -> None:  # 4.8
    bench = Bench(lanes=lanes).measured()
    first, second = bench.send(1, 1)
    bench.now += RTT_US
    assert bench.ack(0, (2, 2), echo=2) == [second]
    assert bench.timers.get(Timer.REORDER) == bench.now + window_us
    assert bench.fire() == window_us
    assert bench.carry() is first
    assert first.cause == "retransmit_reordered"


def test_without_a_sample_nothing_is_lost_by_time() -> None:
    bench = Bench()
    bench.send(1, 1)
    bench.now += 9 * SECOND_US
    bench.ack(-1, (1, 1), attempt=9, echo=1)
    assert bench.timers.get(Timer.REORDER) == NEVER_US
    assert bench.sender.take(BIG, bench.now) is None


# certain losses


@pytest.mark.parametrize("ends", ["edge", "ack", "rto", "resume"])
def test_with_no_room_at_the_relay_the_sender_waits_but_not_forever(ends: str) -> None:  # 4.10
    bench = Bench()
    first, second = bench.send(1, 1)
    bench.sender.dropped(wrap(FIRST + 1), wrap(FIRST + 1), 0, bench.now)
    assert not bench.sender.sendable()
    assert bench.sender.take(BIG, bench.now) is None
    bench.receipt(first)
    if ends == "edge":
        bench.sender.edge(wrap(FIRST), 1000, bench.now)
    elif ends == "ack":
        bench.ack(0)
    elif ends == "rto":
        assert bench.fire() == SECOND_US
        assert bench.carry() is first  # RTO has passed for it, too
    else:
        bench.sender.suspend()
        bench.sender.resume(NO_EDGE, bench.now)
        assert bench.carry() is first
    assert bench.carry() is second


def test_a_packet_dropped_for_lack_of_room_does_not_stop_a_sender_with_nothing_in_flight() -> None:
    bench = Bench()
    (segment,) = bench.send(1)
    bench.ack(0)
    bench.sender.dropped(wrap(segment.sequence), wrap(segment.sequence), 0, bench.now)
    assert bench.timers.next() == NEVER_US
    bench.sender.write(b"x", bench.now)
    assert bench.sender.sendable()


# the window probe


def test_a_repeated_handshake_resends_the_first_packet_until_acknowledged() -> None:  # 3.3
    bench = Bench()
    assert not bench.sender.repeat_first()
    bench.sender.insert(PacketType.ACCEPTED, b"", bench.now)
    assert bench.sender.repeat_first()
    first = bench.carry()
    assert bench.sender.repeat_first()
    assert bench.carry() is first
    assert (first.attempt, first.cause) == (1, "handshake_timeout")
    bench.send(1)
    bench.ack(0, attempt=1)
    assert not bench.sender.repeat_first()


def test_ends_and_options_start_the_wait_too() -> None:  # 4.15
    bench = Bench()
    bench.now += 700 * SECOND_US
    bench.sender.insert(PacketType.OPTION, b"", bench.now)
    assert bench.sender.waiting_since_us == bench.now
    bench.receipt(bench.carry())
    bench.ack(0)
    bench.now += 700 * SECOND_US
    bench.sender.end(PacketType.FINISH, bench.now)
    assert bench.sender.waiting_since_us == bench.now
    assert bench.carry().type == PacketType.FINISH


def test_an_echo_for_a_packet_already_acknowledged_proves_nothing() -> None:
    bench = Bench().measured()
    _, second = bench.send(1, 1)
    bench.fire()
    assert bench.carry() is second
    bench.ack(0, (2, 2), echo=2, attempt=1)
    bench.ack(0, (2, 2), echo=2, attempt=0)
    assert bench.stats.packets_spurious == 0


def test_rto_is_ignored_while_its_packet_is_being_carried_again() -> None:
    bench = Bench()
    (segment,) = bench.send(1)
    bench.sender.dropped(wrap(FIRST), wrap(FIRST), 0, bench.now)
    bench.sender.dropped(wrap(FIRST), wrap(FIRST), 0, bench.now)
    bench.sender.arm(bench.now)
    assert bench.timers.get(Timer.RETRANSMIT) == bench.now + SECOND_US
    bench.fire()
    assert bench.carry() is segment
    bench.timers.set(Timer.RETRANSMIT, bench.now)
    bench.sender.handle_timers(bench.now)
    assert bench.sender.rtt.backoff == 0
