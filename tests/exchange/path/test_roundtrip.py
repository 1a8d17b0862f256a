"""Round-trip times of exchanges, and the deadlines that follow from them (PROTOCOL 7.7, 7.8)."""

from tunnel.exchange.path.roundtrip import RoundTrip

MS = 1_000
SECOND = 1_000_000


def after(*samples: int) -> RoundTrip:
    trip = RoundTrip()
    for index, took_us in enumerate(samples):
        trip.sample(took_us, index * SECOND)
    return trip


def test_before_the_first_sample_the_defaults_apply() -> None:
    trip = RoundTrip()
    assert (trip.srtt_us, trip.least_us) == (0, 0)
    assert (trip.deadline_us, trip.grace_us, trip.repeat_us(3)) == (SECOND, 50 * MS, SECOND)


def test_the_first_sample_is_taken_whole_and_later_ones_by_an_eighth() -> None:
    assert after(80 * MS).srtt_us == 80 * MS
    assert after(80 * MS, 160 * MS).srtt_us == 90 * MS
    assert after(0).srtt_us == 1


def test_deadlines_are_four_times_the_smoothed_time_within_bounds() -> None:
    assert after(10 * MS).deadline_us == 500 * MS
    assert after(200 * MS).deadline_us == 800 * MS
    assert after(20 * SECOND).deadline_us == 30 * SECOND


def test_grace_and_repeats_follow_from_the_smoothed_time() -> None:
    assert after(200 * MS).grace_us == 100 * MS
    assert after(200 * MS).repeat_us(3) == SECOND
    assert [after(3 * SECOND).repeat_us(attempts) // SECOND for attempts in (1, 2, 3)] == [12, 12, 6]


def test_where_answers_take_times_of_their_own_the_grace_is_four_deviations() -> None:
    assert after(200 * MS, 400 * MS).grace_us == 50 * MS + 4 * 50 * MS
    assert after(200 * MS, 208 * MS).grace_us == 50 * MS + 201 * MS // 4  # the larger of the two
    jittery = after(*[20 * MS, 420 * MS] * 20)
    assert jittery.grace_us > 400 * MS
    for second in range(40, 100):
        jittery.sample(200 * MS, second * SECOND)
    assert jittery.grace_us < 110 * MS


def test_an_answer_after_a_minute_does_not_push_repeats_beyond_thirty_seconds() -> None:
    assert after(61 * SECOND).repeat_us(3) == 30 * SECOND
    assert after(15 * SECOND).repeat_us(3) == 30 * SECOND
    assert after(14 * SECOND).repeat_us(3) == 28 * SECOND


def test_a_queue_is_twice_as_long_as_the_longest_wait_that_was_answered() -> None:
    trip = after(*[MS] * 30, 5 * SECOND)
    assert 4 * trip.srtt_us < 3 * SECOND
    assert trip.queued_us == 10 * SECOND
    trip.note_wait(20 * SECOND, 32 * SECOND)
    assert trip.queued_us == 30 * SECOND
    assert 4 * trip.srtt_us < 3 * SECOND  # a wait alone is no sample


def test_each_shorter_wait_takes_an_eighth_from_the_longest() -> None:
    assert after(8 * SECOND, MS).queued_us == 14 * SECOND
    assert after(8 * SECOND, 6 * SECOND, 9 * SECOND).queued_us == 18 * SECOND


def test_a_long_wait_is_forgotten_a_minute_after_the_newest_that_was_as_long() -> None:
    trip = after(8 * SECOND)
    trip.note_wait(7 * SECOND, 50 * SECOND)  # as long as what is left of the first
    trip.note_wait(MS, 110 * SECOND - 1)
    assert trip.queued_us == trip.queue_us(110 * SECOND - 1) == 2 * (7 * SECOND - 7 * SECOND // 8)
    assert trip.queue_us(110 * SECOND) == 0  # nor does a request wait for it that is the first for a minute
    trip.note_wait(MS, 110 * SECOND)
    assert trip.queued_us == 2 * MS


def test_the_smallest_time_is_forgotten_after_one_to_two_minutes() -> None:
    trip = RoundTrip()
    trip.sample(50 * MS, 0)
    for second in range(1, 130):
        trip.sample(100 * MS, second * SECOND)
        assert trip.least_us == (50 * MS if second < 120 else 100 * MS)
