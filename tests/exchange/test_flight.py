"""One exchange in flight: its attempts, silence, repeats and masks (PROTOCOL 7.5, 7.8, 7.9)."""

from random import Random

import pytest

from tests.exchange.loop import SECRET
from tunnel.exchange.events import Request
from tunnel.exchange.flight import ATTACH_LANE, Flight, repeat_delay
from tunnel.wire import Answer, Attach, Exchange, decode_envelope

MS = 1_000
SECOND = 1_000_000
PULL = Exchange(bytes(16), 1, 1, lane=3, number=9, serial_received=4, hold_ms=2000, answer_bytes_max=65536, pull=True)


class Sender:
    """A flight and the requests that it made."""

    def __init__(self, attempts_max: int = 3, wait_us: int = 500 * MS, queued_us: int = 0) -> None:
        self.random = Random(1)
        self.flight = Flight(PULL, 0, wait_us=wait_us, repeat_us=SECOND, attempts_max=attempts_max, queued_us=queued_us)
        self.requests: list[Request] = []

    def send(self, now: int) -> int | None:
        """Send an attempt; return the id of the attempt that it evicted."""
        assert self.flight.next_us <= now
        request, evicted = self.flight.send(len(self.requests) + 1, now, self.random)
        self.requests.append(request)
        return evicted

    def bodies(self) -> list[bytes]:
        return [b"".join(request.body) for request in self.requests]


def test_repeats_are_three_quarters_to_a_whole_second_apart() -> None:
    random = Random(2)
    delays = [repeat_delay(SECOND, random) for _ in range(1000)]
    assert min(delays) >= 750 * MS
    assert max(delays) <= SECOND
    assert max(delays) - min(delays) > 200 * MS


def test_the_first_attempt_leaves_at_once_and_waits_for_its_deadline() -> None:
    sender = Sender()
    sender.send(0)
    (request,) = sender.requests
    assert (request.id, request.lane, request.number, request.pull, request.repeat) == (1, 3, 9, True, 0)
    assert request.deadline_us == sender.flight.next_us == 500 * MS
    assert sender.flight.body_bytes == len(sender.bodies()[0])


def test_an_attempt_is_left_the_time_of_a_queue_and_its_hold() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.wait_for_queue(3 * SECOND)
    assert sender.flight.next_us == 5 * SECOND
    sender.flight.wait_for_queue(SECOND)
    assert sender.flight.next_us == 5 * SECOND  # and never less
    assert sender.flight.check_silence(5 * SECOND)
    sender.send(5 * SECOND)
    sender.flight.wait_for_queue(3 * SECOND)
    assert sender.flight.next_us == 10 * SECOND


def test_an_attempt_that_is_known_to_be_lost_is_not_left_the_time_of_a_queue() -> None:
    failed, answered, hurried = Sender(), Sender(), Sender()
    for sender in (failed, answered, hurried):
        sender.send(0)
    failed.flight.fail(1, "reset", 0, MS)
    answered.flight.repeat_early(MS)
    assert hurried.flight.check_silence(500 * MS)
    hurried.send(500 * MS)
    hurried.flight.hurry(5 * SECOND, MS)
    for sender in (failed, answered, hurried):
        sender.flight.wait_for_queue(3 * SECOND)
        assert sender.flight.next_us == MS


def test_no_answer_is_awaited_for_less_than_the_time_of_a_queue() -> None:
    sender = Sender(queued_us=10 * SECOND)
    sender.send(0)
    assert sender.flight.next_us == 12 * SECOND  # with the hold
    assert sender.flight.check_silence(12 * SECOND)
    sender.send(12 * SECOND)
    assert 7.5 * SECOND <= sender.flight.next_us - 12 * SECOND <= 10 * SECOND


def test_an_attempt_that_was_overtaken_is_in_no_queue() -> None:
    """On a path that loses exchanges, one slow answer must not delay the repair of those that are lost later."""
    sender = Sender(queued_us=10 * SECOND)
    sender.send(SECOND)
    sender.flight.hurry(SECOND, 2 * SECOND)
    assert sender.flight.next_us == 13 * SECOND  # what left at the same time may stand in another queue
    sender.flight.hurry(SECOND + 1, SECOND + MS)
    assert sender.flight.next_us == 1500 * MS  # the usual deadline
    sender.flight.wait_for_queue(10 * SECOND)
    assert sender.flight.next_us == 1500 * MS
    sender.send(1500 * MS)
    sender.flight.hurry(1500 * MS + 1, 1600 * MS)
    assert 750 * MS <= sender.flight.next_us - 1500 * MS <= SECOND
    late = Sender(queued_us=10 * SECOND)
    late.send(0)
    late.flight.hurry(4 * SECOND, 5 * SECOND)
    assert late.flight.next_us == 5 * SECOND  # the usual deadline has passed


def test_an_attach_is_a_flight_too() -> None:
    flight = Flight(Attach(SECRET, 7, 0, 65536), 0, wait_us=1, repeat_us=1, attempts_max=1)
    assert (flight.lane, flight.number, flight.pull, flight.hold_us) == (ATTACH_LANE, 7, False, 0)
    assert flight.answer_bytes_max == 65536


def test_a_flight_is_answered_by_its_lane_and_number_alone() -> None:
    flight = Sender().flight
    assert flight.answers(Answer(3, 9, 1))
    assert not flight.answers(Answer(3, 8, 1))
    assert not flight.answers(Answer(2, 9, 1))


def test_silence_is_reported_once_per_attempt() -> None:
    sender = Sender()
    flight = sender.flight
    assert not flight.check_silence(0)  # not sent yet
    sender.send(0)
    assert not flight.check_silence(500 * MS - 1)
    assert flight.check_silence(500 * MS)
    assert not flight.check_silence(500 * MS)
    assert (flight.failures, flight.last, flight.first_failure_us) == (1, "no answer within 0.5 s", 500 * MS)
    sender.send(500 * MS)
    assert flight.check_silence(2 * SECOND)
    assert (flight.failures, flight.silent, flight.first_failure_us) == (2, True, 500 * MS)


def test_a_newest_attempt_that_failed_is_not_silent() -> None:
    sender = Sender()
    sender.send(0)
    sender.send(500 * MS)
    sender.flight.fail(2, "reset", 0, 600 * MS)
    assert not sender.flight.check_silence(2 * SECOND)
    assert sender.flight.failures == 1


def test_the_first_repeat_follows_a_failure_at_once_and_later_ones_back_off() -> None:
    sender = Sender()
    waits_ms = []
    now = 0
    for request_id in range(1, 9):
        sender.send(now)
        sender.flight.fail(request_id, f"reset {request_id}", 0, now)
        waits_ms.append((sender.flight.next_us - now) / MS)
        now = sender.flight.next_us
    assert waits_ms[0] == 0
    longest_ms = [50, 100, 200, 400, 800, 1000, 1000]
    assert all(most / 4 <= wait <= most for wait, most in zip(waits_ms[1:], longest_ms, strict=True))
    assert len(set(waits_ms)) == len(waits_ms)  # random, so that flights that failed together do not repeat in step
    assert (sender.flight.failures, sender.flight.last) == (8, "reset 8")
    assert [request.repeat for request in sender.requests] == list(range(8))


def test_after_a_thousand_failures_the_next_repeat_is_still_within_a_second() -> None:
    sender = Sender()
    for request_id in range(1, 1001):
        sender.send(sender.flight.next_us)
        sender.flight.fail(request_id, "reset", 0, sender.flight.next_us)
    last_us = sender.flight.next_us
    sender.send(last_us)
    sender.flight.fail(1001, "reset", 0, last_us)
    assert 250 * MS <= sender.flight.next_us - last_us <= SECOND


def test_flights_that_fail_together_are_repeated_at_different_times() -> None:
    waits_ms = []
    random = Random(3)
    for _ in range(200):
        flight = Flight(PULL, 0, wait_us=SECOND, repeat_us=SECOND, attempts_max=3)
        for request_id in (1, 2):
            flight.send(request_id, 0, random)
            flight.fail(request_id, "reset", 0, 0)
        waits_ms.append(flight.next_us / MS)
    assert min(waits_ms) < 15
    assert max(waits_ms) > 48


def test_a_failure_of_an_older_attempt_does_not_move_the_repeat() -> None:
    sender = Sender()
    sender.send(0)
    sender.send(500 * MS)
    planned_us = sender.flight.next_us
    assert 1250 * MS <= planned_us <= 1500 * MS
    sender.flight.fail(1, "reset", 0, 600 * MS)
    assert sender.flight.next_us == planned_us
    sender.flight.fail(2, "reset", 0, 700 * MS)
    assert sender.flight.next_us == 700 * MS  # the first failure of the newest attempt


def test_a_failure_that_is_reported_late_does_not_delay_the_repeat() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.fail(1, "reset", 0, 0)
    sender.send(0)
    planned_us = sender.flight.next_us
    sender.flight.fail(2, "reset", 0, planned_us - MS)
    assert sender.flight.next_us == planned_us


def test_silence_does_not_use_up_the_short_waits() -> None:
    sender = Sender()
    for _ in range(6):
        sender.send(sender.flight.next_us)
    now = sender.flight.next_us - 500 * MS
    sender.flight.fail(6, "reset", 0, now)
    assert sender.flight.next_us == now
    sender.send(now)
    sender.flight.fail(7, "reset", 0, now)
    assert sender.flight.next_us - now <= 50 * MS


def test_reported_failures_do_not_lengthen_waits_after_silence() -> None:
    flight = Flight(PULL, 0, wait_us=SECOND, repeat_us=SECOND, attempts_max=1, repeat_us_max=8 * SECOND)
    random = Random(4)
    for request_id in range(1, 9):
        flight.send(request_id, flight.next_us, random)
        now = flight.next_us - 700 * MS
        flight.fail(request_id, "refused", 0, now)
    assert flight.next_us - now <= SECOND
    sent_us = flight.next_us
    flight.send(9, sent_us, random)
    assert flight.next_us - sent_us <= SECOND
    waits_us = []
    for request_id in range(10, 14):
        sent_us = flight.next_us
        flight.send(request_id, sent_us, random)
        waits_us.append(flight.next_us - sent_us)
    assert [wait // SECOND for wait in waits_us] in ([1, 3, 7, 7], [1, 3, 6, 6], [1, 3, 6, 7], [1, 3, 7, 6])


def test_no_repeat_leaves_before_the_longest_retry_after() -> None:
    sender = Sender()
    sender.send(0)
    sender.send(1 * SECOND)
    sender.flight.fail(1, "HTTP 503", 20 * SECOND, 1100 * MS)
    assert sender.flight.next_us == 21_100 * MS
    sender.flight.fail(2, "reset", 0, 1105 * MS)
    assert sender.flight.next_us == 21_100 * MS


def test_evidence_does_not_shorten_a_retry_after() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.fail(1, "HTTP 503", 20 * SECOND, 10 * MS)
    sender.flight.repeat_early(60 * MS)
    assert (sender.flight.next_us, sender.flight.repeats_early) == (20_010 * MS, False)


def test_a_late_failure_of_a_silent_attempt_is_not_counted_twice() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.check_silence(500 * MS)
    sender.flight.fail(1, "reset", 0, 600 * MS)
    assert (sender.flight.failures, sender.flight.next_us) == (1, 600 * MS)


def test_retry_after_is_obeyed_up_to_half_a_minute() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.fail(1, "HTTP 503", 3 * SECOND, 30 * MS)
    assert sender.flight.next_us == 3 * SECOND + 30 * MS
    sender.send(4 * SECOND)
    sender.flight.fail(2, "HTTP 503", 3600 * SECOND, 5 * SECOND)
    assert sender.flight.next_us == 35 * SECOND


def test_repeats_are_the_same_message_with_a_mask_from_the_second_failure_on() -> None:
    sender = Sender()
    now = 0
    for request_id in range(1, 5):
        sender.send(now)
        now = max(sender.flight.next_us, now + MS)
        sender.flight.fail(request_id, "reset", 0, now)
        now = sender.flight.next_us
    bodies = sender.bodies()
    assert bodies[0] == bodies[1]
    assert len({*bodies}) == 3  # the plain body, and one for each of two masks
    assert [body[6] & 1 for body in bodies] == [0, 0, 1, 1]
    messages = [decode_envelope(body) for body in bodies]
    assert all(message == messages[0] for message in messages)


def test_evidence_brings_the_first_repeat_forward() -> None:
    flight = Sender().flight
    flight.repeat_early(5)
    assert not flight.repeats_early  # no attempt has left yet
    sender = Sender()
    sender.send(0)
    sender.flight.repeat_early(600 * MS)
    assert (sender.flight.next_us, sender.flight.repeats_early) == (500 * MS, False)
    sender.flight.repeat_early(80 * MS)
    assert (sender.flight.next_us, sender.flight.repeats_early) == (80 * MS, True)
    sender.send(80 * MS)
    planned_us = sender.flight.next_us
    sender.flight.repeat_early(90 * MS)
    assert sender.flight.next_us == planned_us


def test_the_oldest_attempt_stays_for_slow_paths_and_newer_ones_make_room() -> None:
    sender = Sender()
    evicted = [sender.send(second * SECOND) for second in range(7)]
    assert evicted == [None, None, None, 2, 3, 4, 5]
    assert [attempt.request_id for attempt in sender.flight.attempts] == [1, 6, 7]


def test_the_oldest_attempt_is_evicted_at_ages_that_grow_to_thirty_seconds() -> None:
    sender = Sender()
    ages, sent_us = [], {}
    for second in range(200):
        sent_us[second + 1] = second
        oldest = sender.flight.attempts[0].request_id if sender.flight.attempts else 0
        if sender.send(second * SECOND) == oldest:
            ages.append(second - sent_us[oldest])
    assert ages[:5] == [8, 16, 30, 30, 30]


def test_repeats_back_off_up_to_repeat_us_max() -> None:
    flight = Flight(PULL, 0, wait_us=SECOND, repeat_us=SECOND, repeat_us_max=8 * SECOND, attempts_max=1)
    random = Random(1)
    waits = []
    for request_id in range(1, 8):
        now = flight.next_us
        flight.send(request_id, now, random)
        waits.append(flight.next_us - now)
    longest = [SECOND * factor for factor in (1, 1, 2, 4, 8, 8, 8)]
    assert waits[0] == SECOND
    assert all(most * 3 // 4 <= wait <= most for wait, most in zip(waits, longest, strict=True))


def push(size_bytes: int) -> Flight:
    message = Exchange(bytes(16), 1, 1, 3, 9, 4, 0, 65536, payload=bytes(size_bytes))
    return Flight(message, 0, wait_us=500 * MS, repeat_us=SECOND, attempts_max=3)


@pytest.mark.parametrize(
    ("size_bytes", "longest_s"),
    [(0, [1] * 7), (8_000, [1] * 7), (64_000, [1, 2, 4, 8, 8, 8, 8]), (1 << 20, [1, 2, 4, 8, 16, 30, 30])],
)
def test_a_large_body_is_repeated_less_and_less_often(size_bytes: int, longest_s: list[int]) -> None:
    """A full path queues each repeat after the earlier ones: a body that is repeated too fast never arrives."""
    flight, random, waits_s = push(size_bytes), Random(1), []
    flight.send(1, 0, random)
    for request_id in range(2, 9):
        now = flight.next_us
        flight.send(request_id, now, random)
        waits_s.append((flight.next_us - now) / SECOND)
    assert all(0.75 * most <= wait <= 1.02 * most for wait, most in zip(waits_s, longest_s, strict=True))


def test_an_answer_to_another_exchange_ends_a_long_wait() -> None:
    flight, random = push(1 << 20), Random(1)
    for request_id in range(1, 6):
        now = flight.next_us
        flight.check_silence(now)
        flight.send(request_id, now, random)
    due_us = flight.next_us
    assert due_us - now > 5 * SECOND
    flight.hurry(now + SECOND, now + 2 * SECOND)  # the newest attempt is too young
    assert flight.next_us == due_us
    flight.hurry(now + SECOND + 1, now + 2 * SECOND)
    assert flight.next_us == now + 2 * SECOND
    flight.hurry(now + 2 * SECOND, now + 3 * SECOND)
    assert flight.next_us == now + 2 * SECOND


def test_an_answer_to_another_exchange_does_not_move_a_first_deadline() -> None:
    flight = push(1 << 20)
    flight.send(1, 0, Random(1))
    flight.hurry(400 * MS, 450 * MS)
    assert flight.next_us == 500 * MS


def test_if_one_attempt_may_be_open_each_new_one_evicts_the_one_before() -> None:
    sender = Sender(attempts_max=1)
    assert [sender.send(second * SECOND) for second in range(3)] == [None, 1, 2]


def test_an_attempt_that_is_not_open_cannot_be_taken() -> None:
    sender = Sender()
    sender.send(0)
    assert sender.flight.take(1).repeat == 0
    with pytest.raises(ValueError, match="not an open attempt"):
        sender.flight.take(1)


def test_silence_is_measured_from_when_the_attempt_left() -> None:
    flight = Flight(PULL, 10 * SECOND, wait_us=500 * MS, repeat_us=SECOND, attempts_max=3)
    flight.send(1, 10 * SECOND, Random(1))
    flight.check_silence(10_500 * MS)
    assert (flight.last, flight.first_failure_us) == ("no answer within 0.5 s", 500 * MS)


def test_evidence_at_the_deadline_proves_nothing() -> None:
    sender = Sender()
    sender.send(0)
    sender.flight.repeat_early(500 * MS)
    assert not sender.flight.repeats_early


def test_of_two_attempts_the_older_stays_while_it_is_young() -> None:  # 7.8
    sender = Sender(attempts_max=2)
    evicted: list[int | None] = []
    while len(evicted) < 3:
        evicted.append(sender.send(sender.flight.next_us))
    assert evicted == [None, None, 2]


def test_intervals_from_before_a_body_of_the_same_size_passed_do_not_count() -> None:  # 7.16
    """A push is given up if a smaller body passed in two of the intervals between its failures. If an earlier interval
    counted, one more would be enough."""
    push = Exchange(
        bytes(16), 1, 1, lane=0, number=1, serial_received=0, hold_ms=0, answer_bytes_max=65536, payload=bytes(40_000)
    )
    flight = Flight(push, 0, wait_us=SECOND, repeat_us=SECOND, attempts_max=3)

    def fail(number: int, now: int) -> None:
        flight.send(number, now, Random(number))
        flight.fail(number, "reset", 0, now + 1)

    fail(1, 0)
    flight.compare(100, 10)
    flight.compare(flight.body_bytes, 20)
    assert (flight.unexplained, flight.passed_between) == (0, 0)
    for number in range(2, 10):
        fail(number, number * SECOND)
        if number == 5:
            flight.compare(100, number * SECOND + 10)
    assert (flight.unexplained, flight.passed_between) == (8, 1)
