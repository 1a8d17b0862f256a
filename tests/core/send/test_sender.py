"""The sending half with its timers: RTO, tail probe, losses by time, window probes, receipts."""

import pytest

from tests.core.sender_bench import BIG, FIRST, MS, Bench
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.sender import Sender
from tunnel.core.send.window import NO_EDGE, SendWindow
from tunnel.core.stats import ConnectionStats
from tunnel.core.timers import Timer, TimerTable
from tunnel.wire import wrap

# RTO and tail probe


def test_a_tail_probe_that_finds_no_tail_does_nothing() -> None:
    bench = Bench().measured()
    (segment,) = bench.send(1)
    bench.sender.on_dropped(wrap(segment.sequence), wrap(segment.sequence), 5, bench.now)
    bench.timers.set(Timer.TAIL_PROBE, bench.now)
    bench.sender.handle_timers(bench.now)
    assert not bench.sender._tail_probed


# loss by time


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
    bench.sender.on_dropped(wrap(FIRST + 1), wrap(FIRST + 1), 0, bench.now)
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
    bench.sender.on_dropped(wrap(segment.sequence), wrap(segment.sequence), 0, bench.now)
    assert bench.timers.next() == NEVER_US
    bench.sender.write(b"x", bench.now)
    assert bench.sender.sendable()


def test_rto_is_ignored_while_its_packet_is_being_carried_again() -> None:
    bench = Bench()
    (segment,) = bench.send(1)
    bench.sender.on_dropped(wrap(FIRST), wrap(FIRST), 0, bench.now)
    bench.sender.on_dropped(wrap(FIRST), wrap(FIRST), 0, bench.now)
    bench.sender.arm(bench.now)
    assert bench.timers.get(Timer.RETRANSMIT) == bench.now + SECOND_US
    bench.fire()
    assert bench.carry() is segment
    bench.timers.set(Timer.RETRANSMIT, bench.now)
    bench.sender.handle_timers(bench.now)
    assert bench.sender.rtt.backoff == 0


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
    bench.sender.on_dropped(FIRST + start + 2 - 2**32, FIRST + start + 2 - 2**32, 1, bench.now)
    bench.now += MS
    bench.receipt(bench.carry())
    bench.now += MS
    bench.ack(start - 1, (start + 2, start + 2), echo=start + 2, attempt=attempt)
    assert (bench.timers.get(Timer.REORDER) != NEVER_US) is proves


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


def test_an_impossible_echo_gives_no_sample() -> None:
    bench = Bench()
    bench.send(1, 1)
    bench.now += 5
    bench.ack(0, attempt=3)
    assert bench.sender.rtt.srtt_us == 0
    bench.ack(1, echo=500)
    assert bench.sender.rtt.srtt_us == 0


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


def test_an_echo_for_a_packet_already_acknowledged_proves_nothing() -> None:
    bench = Bench().measured()
    _, second = bench.send(1, 1)
    bench.fire()
    assert bench.carry() is second
    bench.ack(0, (2, 2), echo=2, attempt=1)
    bench.ack(0, (2, 2), echo=2, attempt=0)
    assert bench.stats.packets_spurious == 0
