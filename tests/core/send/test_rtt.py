"""Clauses 4.5 to 4.8: the round-trip time and what is derived from it (RFC 6298)."""

from hypothesis import given
from hypothesis import strategies as st

from tunnel.core.constants import BACKOFF_MAX_US, REORDER_MIN_US, RTO_MIN_US, SECOND_US
from tunnel.core.send.rtt import RttEstimator

SAMPLES = st.lists(st.integers(1, 120 * SECOND_US), min_size=1, max_size=50)


def after(*samples_us: int, pull_interval_us: int = 0) -> RttEstimator:
    rtt = RttEstimator()
    rtt.pull_interval_us = pull_interval_us
    for sample_us in samples_us:
        rtt.sample(sample_us)
    return rtt


@given(SAMPLES, st.integers(0, 120 * SECOND_US), st.integers(0, 40))
def test_every_interval_keeps_its_bounds(samples: list[int], pull_interval_us: int, expiries: int) -> None:
    rtt = after(*samples, pull_interval_us=pull_interval_us)
    assert min(samples) <= rtt.srtt_us <= max(samples)
    assert rtt.minimum_us == min(samples)
    assert rtt.latest_us == samples[-1]
    assert 0 <= rtt.variance_us <= max(samples)
    assert RTO_MIN_US <= rtt.base_rto_us() <= BACKOFF_MAX_US
    before = 0
    for _ in range(expiries):
        assert before <= rtt.rto_us() <= BACKOFF_MAX_US
        before = rtt.rto_us()
        rtt.backed_off()
    rtt.reset_backoff()
    assert rtt.rto_us() == rtt.base_rto_us()
    assert rtt.tail_probe_us() >= 2 * rtt.srtt_us
    for lanes in (1, 8):
        assert REORDER_MIN_US <= rtt.reorder_window_us(lanes) <= max(4 * rtt.srtt_us, REORDER_MIN_US)


@given(st.integers(1, 10 * SECOND_US), st.integers(1, 10 * SECOND_US))
def test_the_estimate_converges_on_a_constant_round_trip(start_us: int, true_us: int) -> None:
    rtt = after(start_us, *[true_us] * 200)
    assert abs(rtt.srtt_us - true_us) <= 8
    assert rtt.variance_us <= 16


def test_a_new_estimator_has_no_values() -> None:
    rtt = RttEstimator()
    assert (rtt.latest_us, rtt.minimum_us, rtt.srtt_us, rtt.variance_us) == (0, 0, 0, 0)
    assert (rtt.backoff, rtt.widened, rtt.pull_interval_us) == (0, 0, 0)


def test_the_smallest_round_trip_is_a_microsecond() -> None:  # 0 would mean that there was no sample
    assert after(1, 1).srtt_us == 1


def test_rto_without_a_sample_is_a_second_and_the_pull_intervals() -> None:  # 4.6
    assert RttEstimator().base_rto_us() == SECOND_US
    assert after(pull_interval_us=3 * SECOND_US).base_rto_us() == 4 * SECOND_US
    assert after(pull_interval_us=100 * SECOND_US).base_rto_us() == 60 * SECOND_US


def test_rto_has_a_floor_and_a_ceiling() -> None:  # 4.6
    assert after(1_000).base_rto_us() == SECOND_US
    assert after(2 * SECOND_US, *[2 * SECOND_US] * 60).base_rto_us() < int(2.1 * SECOND_US)
    assert after(*[2 * SECOND_US] * 99).base_rto_us() == 2 * SECOND_US + 10_000 + 25_000
    assert after(*[2 * SECOND_US] * 99, pull_interval_us=SECOND_US).base_rto_us() == 3 * SECOND_US + 35_000
    assert after(70 * SECOND_US).base_rto_us() == 60 * SECOND_US


def test_the_reordering_window_widens_with_spurious_retransmissions() -> None:  # 4.8
    rtt = after(80_000)
    assert (rtt.reorder_window_us(1), rtt.reorder_window_us(2)) == (20_000, 80_000)
    for quarters in range(1, 20):
        rtt.spurious()
        assert rtt.reorder_window_us(1) == min(20_000 + quarters * 20_000, 320_000)
    assert rtt.reorder_window_us(2) == 320_000
    assert after(100).reorder_window_us(1) == 1_000
    assert after(80_001).reorder_window_us(1) == 20_000


def test_the_tail_probe_waits_two_round_trips() -> None:  # 4.7
    assert RttEstimator().tail_probe_us() == 0
    assert after(100_000).tail_probe_us() == 225_000
    assert after(100_000, pull_interval_us=50_000).tail_probe_us() == 275_000
