"""The sending half with its timers: RTO, tail probe, losses by time, window probes, receipts."""

import pytest

from tests.core.sender_bench import BIG, FIRST, MS, RTT_US, Bench
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.send.window import NO_EDGE, SegmentState
from tunnel.core.timers import Timer
from tunnel.wire import PacketType, wrap

# RTO and tail probe


def test_rto_doubles_from_one_second_to_sixty_and_resends_the_head_alone() -> None:  # 4.6
    bench = Bench()
    first, _ = bench.send(1, 1)
    gaps = []
    for attempt in range(1, 10):
        gaps.append(bench.fire() // SECOND_US)
        assert bench.carry() is first
        assert bench.sender.take(BIG, bench.now) is None
        assert first.attempt == attempt
        bench.receipt(first)
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert bench.stats.resent_by_cause == {"retransmit_timeout": 9}
    bench.ack(0, attempt=9)
    assert bench.sender.rtt.backoff == 0


def test_rto_does_not_run_before_the_receipt() -> None:  # 4.6, 4.8: a packet in an unfinished exchange is not lost
    bench = Bench()
    (segment,) = bench.send(1, receipted=False)
    assert bench.timers.next() == NEVER_US
    bench.now += 100 * SECOND_US
    bench.receipt(segment)
    assert bench.timers.next() == bench.now + SECOND_US


def test_rto_runs_from_the_last_progress() -> None:  # 4.6
    bench = Bench().measured()
    bench.send(1, 1)
    bench.sender._tail_probed = True
    bench.now += 200 * MS
    bench.ack(1)
    assert bench.timers.get(Timer.RETRANSMIT) == bench.now + bench.sender.rtt.rto_us()


def test_the_tail_is_probed_once_before_rto() -> None:  # 4.7
    bench = Bench().measured()
    segments = bench.send(1, 1, 1)
    assert bench.fire() == 225 * MS
    assert bench.carry() is segments[-1]
    assert bench.stats.resent_by_cause == {"pto_probe": 1}
    bench.receipt(segments[-1])
    assert bench.fire() == 775 * MS  # RTO of the oldest packet, as if there had been no probe
    assert bench.carry() is segments[0]
    assert bench.stats.resent_by_cause == {"pto_probe": 1, "retransmit_timeout": 1}
    bench.receipt(segments[0])
    bench.fire()
    assert bench.carry() is segments[0]


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


def test_a_resent_packet_proves_nothing_unless_its_latest_attempt_is_echoed() -> None:  # 4.8
    bench = Bench().measured()
    first, second = bench.send(1, 1)
    bench.fire()
    assert bench.carry() is second
    bench.receipt(second)
    bench.now += 5 * SECOND_US
    bench.ack(0, (2, 2), echo=2, attempt=0)
    assert not bench.sender.sendable()
    third = bench.send(1)[0]
    bench.sender._lose(third, "test")
    bench.receipt(bench.carry())
    bench.now += 5 * SECOND_US
    bench.ack(0, (3, 3), echo=3, attempt=1)
    assert first.state is SegmentState.LOST


def test_without_a_sample_nothing_is_lost_by_time() -> None:
    bench = Bench()
    bench.send(1, 1)
    bench.now += 9 * SECOND_US
    bench.ack(-1, (1, 1), attempt=9, echo=1)
    assert bench.timers.get(Timer.REORDER) == NEVER_US
    assert bench.sender.take(BIG, bench.now) is None


# certain losses


def test_a_batch_that_was_given_up_is_resent_at_once() -> None:  # 4.10
    bench = Bench()
    segments = bench.send(1, 1, receipted=False)
    bench.sender.given_up(segments[0], 0)
    assert bench.sender.sendable()
    assert bench.carry() is segments[0]
    bench.sender.given_up(segments[0], 0)  # an older attempt; the packet is in flight again
    assert not bench.sender.sendable()
    assert bench.stats.resent_by_cause == {"batch_given_up": 1}
    bench.receipt(segments[1])
    bench.sender.given_up(segments[1], 0)
    assert not bench.sender.sendable()


def test_packets_dropped_by_the_relay_are_resent() -> None:  # 4.10, 2.9
    bench = Bench()
    segments = bench.send(1, 1, 1)
    bench.sender.dropped(wrap(FIRST - 5), wrap(FIRST + 1), 1000, bench.now)
    bench.sender.dropped(wrap(FIRST + 1), wrap(FIRST), 1000, bench.now)
    assert [bench.carry(), bench.carry()] == segments[:2]
    assert bench.sender.take(BIG, bench.now) is None
    assert bench.timers.get(Timer.RETRANSMIT) == NEVER_US  # the oldest packet has no receipt yet
    bench.ack(0, attempt=1)
    bench.sender.dropped(wrap(FIRST), wrap(FIRST + 9), 1000, bench.now)
    assert [bench.carry(), bench.carry()] == segments[1:]


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


@pytest.mark.parametrize("ignored", [FIRST - 1, FIRST + 2])
def test_an_edge_that_the_sender_must_ignore_does_not_end_the_pause(ignored: int) -> None:  # 2.10, 4.10
    bench = Bench()
    _, second = bench.send(1, 1)
    bench.sender.edge(wrap(FIRST), 1000, bench.now)
    bench.sender.dropped(wrap(FIRST + 1), wrap(FIRST + 1), 0, bench.now)
    bench.sender.edge(wrap(ignored), 2000, bench.now)
    assert bench.window.edge_bytes == 1000
    assert not bench.sender.sendable()
    bench.sender.edge(wrap(FIRST), 2000, bench.now)
    assert bench.carry() is second


def test_a_packet_dropped_for_lack_of_room_does_not_stop_a_sender_with_nothing_in_flight() -> None:
    bench = Bench()
    (segment,) = bench.send(1)
    bench.ack(0)
    bench.sender.dropped(wrap(segment.sequence), wrap(segment.sequence), 0, bench.now)
    assert bench.timers.next() == NEVER_US
    bench.sender.write(b"x", bench.now)
    assert bench.sender.sendable()


def test_a_suspended_sender_is_silent_and_without_timers() -> None:  # 6.5
    bench = Bench().measured()
    segments = bench.send(1, 1, 1)
    bench.sender.write(b"x", bench.now)
    bench.sender.suspend()
    assert not bench.sender.sendable()
    assert bench.sender.take(BIG, bench.now) is None
    bench.now += RTT_US
    bench.ack(1, (3, 3), echo=3)
    bench.sender.dropped(wrap(segments[1].sequence), wrap(segments[1].sequence), 0, bench.now)
    bench.sender.edge(wrap(FIRST), 1000, bench.now)
    assert bench.timers.next() == NEVER_US
    bench.sender.resume(2, bench.now)
    assert bench.window.edge_bytes == 2
    assert bench.carry() is segments[1]
    assert bench.carry().attempt == 0


def test_a_resume_resets_every_backoff() -> None:  # 4.6, 4.7
    bench = Bench().measured()
    (segment,) = bench.send(1)
    for _ in range(3):  # the tail probe, then RTO twice
        bench.fire()
        assert bench.carry() is segment
        bench.receipt(segment)
    assert bench.sender.rtt.backoff == 2
    bench.sender.suspend()
    bench.sender.resume(NO_EDGE, bench.now)
    assert bench.sender.rtt.backoff == 0
    assert bench.carry() is segment
    bench.receipt(segment)
    assert bench.timers.get(Timer.TAIL_PROBE) == bench.now + bench.sender.rtt.tail_probe_us()


def test_a_stopped_sender_ignores_receipts_losses_and_drops() -> None:  # 5.3
    bench = Bench().measured()
    (segment,) = bench.send(5, receipted=False)
    bench.sender.probe_due = True
    assert bench.sender.stop() == 5
    assert not bench.sender.probe_due
    assert bench.timers.next() == NEVER_US
    bench.sender.receipted(segment, 0, bench.now)
    bench.sender.given_up(segment, 0)
    assert bench.window.edge_used == 0
    bench.sender.dropped(wrap(segment.sequence), wrap(segment.sequence), 0, bench.now)
    assert bench.timers.next() == NEVER_US
    assert not bench.sender.sendable()


# the window probe


def test_a_closed_window_is_probed_after_rto_which_doubles_to_a_minute() -> None:  # 4.12
    bench = Bench(peer_edge=1)
    bench.send(1)
    bench.sender.write(b"x", bench.now)
    bench.ack(0, window=0)
    gaps = []
    for _ in range(9):
        gaps.append(bench.fire() // SECOND_US)
        assert bench.sender.probe_due
        bench.sender.probe_due = False
    assert gaps == [1, 2, 4, 8, 16, 32, 60, 60, 60]
    assert bench.sender.probing_since_us == 2 * SECOND_US
    bench.ack(0, window=0)  # answered, but the window is still closed
    assert bench.sender.probing_since_us == NEVER_US
    assert bench.fire() == 60 * SECOND_US
    bench.ack(0, window=5)
    assert not bench.sender.probe_due
    assert bench.timers.next() == NEVER_US
    assert bench.carry().size == 1


def test_writing_into_a_closed_window_starts_the_probe() -> None:  # 4.12
    bench = Bench(peer_edge=1)
    bench.send(1)
    bench.ack(0, window=0)
    assert bench.timers.next() == NEVER_US
    bench.sender.write(b"x", bench.now)
    assert bench.timers.get(Timer.WINDOW_PROBE) == bench.now + bench.sender.rtt.base_rto_us()


def test_the_first_write_and_a_reopened_window_start_the_wait() -> None:  # 4.15
    bench = Bench(peer_edge=1)
    sender = bench.sender
    assert sender.waiting_since_us == NEVER_US
    bench.now += 5
    sender.write(b"ab", bench.now)
    assert sender.waiting_since_us == bench.now
    bench.now += 5
    sender.write(b"cd", bench.now)
    assert sender.waiting_since_us == bench.now - 5
    bench.receipt(bench.carry())
    bench.now += 5
    bench.ack(0, window=0)
    assert sender.waiting_since_us == NEVER_US  # the peer's reader is slow: probes show whether the peer is alive
    bench.now += 5
    bench.ack(0, window=3)
    assert sender.waiting_since_us == bench.now


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


def test_a_late_receipt_counts_and_a_repeated_echo_proves_nothing_new() -> None:  # 4.5, 4.9
    bench = Bench().measured()
    (segment,) = bench.send(1, receipted=False)
    bench.sender.given_up(segment, 0)
    bench.carry()
    bench.sender.receipted(segment, 0, bench.now)  # it had arrived after all
    assert segment.state is SegmentState.CARRIED
    bench.now += 40 * MS
    for _ in range(2):
        bench.ack(1, attempt=0)
    assert bench.sender.rtt.latest_us == 40 * MS
    assert bench.stats.packets_spurious == 1
    (other, _) = bench.send(1, 1)
    bench.ack(1, (3, 3), echo=3, attempt=9)
    bench.ack(1, (3, 3), echo=3, attempt=0)
    assert bench.ack(9) is None
    assert other.state is SegmentState.RECEIPTED


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
