"""Clauses 4.5 and 4.9: what an acknowledgement says about the round trip, and which receipts it is measured from."""

import pytest

from tests.core.sender_bench import MS, RTT_US, Bench
from tunnel.core.constants import SECOND_US
from tunnel.core.send.window import NO_EDGE, SegmentState


def test_a_sample_is_taken_from_the_receipt_and_without_the_peers_delay() -> None:  # 4.5
    bench = Bench()
    (segment,) = bench.send(1, receipted=False)
    bench.now += 30 * MS
    bench.receipt(segment)
    bench.now += 50 * MS
    assert bench.ack(0, delay_us=20 * MS) == [segment]
    assert bench.sender.rtt.srtt_us == 30 * MS


def test_a_peer_cannot_claim_more_than_the_longest_delay() -> None:  # 4.5
    bench = Bench()
    bench.send(1, 1)
    bench.now += 50 * MS
    bench.ack(0, delay_us=10 * SECOND_US)
    assert bench.sender.rtt.latest_us == 25 * MS
    bench.now -= 40 * MS
    bench.ack(1, delay_us=25 * MS)
    assert bench.sender.rtt.latest_us == 1


def test_without_a_receipt_there_is_no_sample() -> None:  # 4.5
    bench = Bench()
    (segment,) = bench.send(1, receipted=False)
    bench.now += RTT_US
    bench.ack(0)
    assert bench.sender.rtt.srtt_us == 0
    bench.receipt(segment)
    assert len(bench.sender._loss) == 0
    assert bench.stats.bytes_receipted == 1


def test_the_echoed_attempt_gives_an_exact_sample_for_a_resent_packet() -> None:  # 4.5, 4.9
    bench = Bench().measured()
    (segment,) = bench.send(1)
    bench.fire()
    assert bench.carry() is segment
    bench.now += 70 * MS
    bench.receipt(segment)
    bench.now += 20 * MS
    bench.ack(1, attempt=1)
    assert bench.sender.rtt.latest_us == 20 * MS
    assert bench.stats.packets_spurious == 0


def test_an_echo_of_an_earlier_attempt_proves_a_needless_retransmission() -> None:  # 4.9, 4.8
    bench = Bench().measured()
    (segment,) = bench.send(1)
    start = bench.now
    bench.fire()
    bench.carry()
    bench.receipt(segment)
    bench.now = start + 300 * MS
    bench.ack(1, attempt=0)
    assert bench.sender.rtt.latest_us == 300 * MS
    assert (bench.stats.packets_spurious, bench.sender.rtt.widened) == (1, 1)
    bench.ack(1, attempt=0)  # the same echo again proves nothing more
    assert bench.stats.packets_spurious == 1


@pytest.mark.parametrize("is_told", [True, False])
def test_a_receipt_from_before_a_resume_gives_no_sample(is_told: bool) -> None:  # 4.5
    bench = Bench().measured()
    segments = bench.send(1, 1)
    before = bench.sender.rtt.srtt_us
    bench.now += 20 * SECOND_US
    if is_told:
        bench.sender.suspend()
        bench.ack(1, attempt=0)
        assert bench.sender.rtt.srtt_us == before
    bench.sender.resume(NO_EDGE, bench.now)
    assert bench.carry() is segments[is_told]
    bench.now += RTT_US
    bench.ack(2, attempt=0)
    assert bench.sender.rtt.srtt_us == before


def test_an_impossible_echo_gives_no_sample() -> None:
    bench = Bench()
    bench.send(1, 1)
    bench.now += 5
    bench.ack(0, attempt=3)
    assert bench.sender.rtt.srtt_us == 0
    bench.ack(1, echo=500)
    assert bench.sender.rtt.srtt_us == 0


def test_a_receipt_that_comes_late_counts_for_its_own_attempt() -> None:
    bench = Bench()
    (segment,) = bench.send(1, receipted=False)
    bench.sender.given_up(segment, 0)
    bench.carry()
    bench.sender.receipted(segment, 0, bench.now)
    assert segment.state is SegmentState.CARRIED
    bench.now += 40 * MS
    bench.ack(0, attempt=0)
    assert bench.sender.rtt.latest_us == 40 * MS


def test_a_malformed_ack_changes_nothing() -> None:  # 4.4
    bench = Bench()
    bench.send(1)
    assert bench.ack(1) is None
    assert bench.ack(-1, (0, 1)) is None
    assert bench.window.unacknowledged_bytes == 1
