"""Clauses 4.5 and 4.9: what an acknowledgement says about the round trip, and which receipts it is measured from."""

from tests.core.sender_bench import MS, Bench
from tunnel.core.constants import SECOND_US
from tunnel.core.send.window import SegmentState


def test_a_peer_cannot_claim_more_than_the_longest_delay() -> None:  # 4.5
    bench = Bench()
    bench.send(1, 1)
    bench.now += 50 * MS
    bench.ack(0, delay_us=10 * SECOND_US)
    assert bench.sender.rtt.latest_us == 25 * MS
    bench.now -= 40 * MS
    bench.ack(1, delay_us=25 * MS)
    assert bench.sender.rtt.latest_us == 1


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
