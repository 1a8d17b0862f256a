"""The path model: round trip, sizes, lanes and holds, as each answer changes them."""

from random import Random
from typing import Any

from tunnel.exchange.config import LaneConfig
from tunnel.exchange.flight import Flight
from tunnel.exchange.path.path_model import AnswerSeen, PathModel
from tunnel.exchange.path.pulls import PullMode
from tunnel.wire import CONFIRMATION_BYTES, EXCHANGE_BYTES, Attach, Attached, Exchange

KIB = 1024
MS = 1_000
SECOND = 1_000_000


def attached(**fields: Any) -> Attached:
    limits: dict[str, Any] = {
        "body_bytes_max": 1 << 20,
        "hold_ms_max": 15_000,
        "pull_interval_ms": 0,
        "lanes": 8,
    } | fields
    return Attached(bytes(16), 1, 1, fresh=True, packet_bytes_max=1 << 20, initial_edge_bytes=65536, **limits)


def path(config: LaneConfig | None = None, **limits: int) -> PathModel:
    it = PathModel(config or LaneConfig(), Random(1))
    it.limit_to(attached(**limits))
    return it


def flight(sends: tuple[int, ...] = (0,), *, size: int = 0, hold_ms: int = 0, pull: bool = False) -> Flight:
    exchange = Exchange(
        bytes(16), 1, 1, 0, 1, 0, hold_ms, 64 * KIB, pull=pull or hold_ms > 0, payload=[b"x" * size] if size else []
    )
    it = Flight(exchange, 0, wait_us=hold_ms * MS + 500 * MS, repeat_us=SECOND, attempts_max=3)
    for index, sent_us in enumerate(sends):
        it.check_silence(sent_us)
        it.send(index, sent_us, Random(1))
    return it


def answer(it: PathModel, sent: Flight, now: int, *, attempt: int = 0, size: int = 0, more: bool = False) -> bool:
    return it.on_answered(sent, AnswerSeen(sent.attempts[attempt], size, empty=not size, more=more), now)


def test_with_one_http_connection_there_is_one_lane_and_no_pull_is_held() -> None:
    it = path(LaneConfig(one_connection=True, lanes_start=4))
    assert (it.lanes.count, it.lanes.most, it.pulls.mode, it.holding) == (1, 1, PullMode.POLLING, False)


def test_the_limits_of_the_relay_are_kept() -> None:
    it = path(lanes=3, body_bytes_max=32 * KIB, hold_ms_max=3000)
    assert (it.lanes.most, it.room_bytes, it.hold.hold_us) == (3, 32 * KIB - EXCHANGE_BYTES, 3 * SECOND)
    assert it.holding
    assert path(hold_ms_max=0).pulls.mode is PullMode.POLLING
    assert path(pull_interval_ms=250).pulls.interval_us == 250 * MS
    assert path(body_bytes_max=10).room_bytes == 24


def test_a_request_with_the_confirmation_of_a_stream_is_no_larger_than_others_may_be() -> None:
    it = path()
    before_bytes = it.room_bytes
    it.confirms_streams()
    assert it.room_bytes == before_bytes - CONFIRMATION_BYTES


def opened(it: PathModel, message: Attach | Exchange, sends: int) -> tuple[list[int], int]:
    """Return the times between attempts without an answer, and how many attempts are open in the end."""
    sent = it.flight(message, 0)
    gaps = []
    for request_id in range(sends):
        now = sent.next_us
        sent.send(request_id, now, Random(1))
        gaps.append(sent.next_us - now)
    return gaps, len(sent.attempts)


def test_deadlines_and_repeats_follow_from_the_path() -> None:
    attach = Attach(bytes(32), 1, 0, 65536)
    pull = Exchange(bytes(16), 1, 1, 0, 1, 0, hold_ms=2000, answer_bytes_max=65536, pull=True)
    one = path(LaneConfig(one_connection=True))
    gaps, attempts = opened(path(), attach, 20)
    assert (gaps[0], max(gaps[1:]) <= SECOND, attempts) == (SECOND, True, 8)
    gaps, attempts = opened(path(), pull, 20)
    assert (gaps[0], max(gaps[1:]) <= SECOND, attempts) == (3 * SECOND, True, 3)
    gaps, attempts = opened(one, attach, 20)
    assert (gaps[0], gaps[-1] >= 6 * SECOND, attempts) == (SECOND, True, 1)
    one.round_trip.sample(100 * MS, 0)
    gaps, attempts = opened(one, attach, 20)
    assert (gaps[0], max(gaps[1:]) <= SECOND, attempts) == (500 * MS, True, 1)


def test_exchanges_answered_at_once_are_samples_of_the_round_trip() -> None:
    it = path()
    answer(it, flight(size=100), 80 * MS)
    assert it.round_trip.srtt_us == 80 * MS
    answer(it, flight(pull=True), 160 * MS)
    assert it.round_trip.srtt_us == 90 * MS
    answer(it, flight(hold_ms=1000), SECOND)
    assert it.round_trip.srtt_us == 90 * MS


def test_full_pushes_grow_bodies_and_then_lanes() -> None:
    it = path(LaneConfig(body_bytes_max=128 * KIB))
    answer(it, flight(size=100), 50 * MS)
    assert not answer(it, flight(size=60 * KIB), 60 * MS)
    assert it.up.limit_bytes == 128 * KIB
    assert not answer(it, flight((61 * MS,), size=60 * KIB), 121 * MS)
    assert answer(it, flight((61 * MS,), size=120 * KIB), 121 * MS)
    assert (it.up.limit_bytes, it.down.limit_bytes, it.lanes.count) == (128 * KIB, 64 * KIB, 3)


def test_with_a_second_lane_pulls_can_be_held() -> None:
    it = path(LaneConfig(lanes_start=1, body_bytes_max=64 * KIB))
    modes = [it.pulls.mode]
    assert answer(it, flight(size=60 * KIB), 10 * MS)
    assert [*modes, it.pulls.mode] == [PullMode.POLLING, PullMode.HOLDING]


def test_full_answers_grow_the_body_of_the_other_direction() -> None:
    it = path()
    answer(it, flight(pull=True), 50 * MS, size=60 * KIB)
    assert (it.up.limit_bytes, it.down.limit_bytes) == (64 * KIB, 128 * KIB)


def test_a_repeated_exchange_does_not_change_sizes() -> None:
    it = path()
    assert not answer(it, flight((0, 500 * MS), size=60 * KIB), 550 * MS, attempt=1)
    assert it.up.limit_bytes == 64 * KIB


def test_full_answers_and_the_more_flag_mean_that_more_waits() -> None:
    for size, more, more_waits in ((48 * KIB, False, True), (47 * KIB, False, False), (1, True, True)):
        it = path()
        answer(it, flight(pull=True), 50 * MS, size=size, more=more)
        assert it.pulls.more_waits is more_waits


def test_pulls_that_fail_only_while_they_are_held_shorten_the_hold() -> None:
    it = path()
    for _ in range(2):
        answer(it, flight((0, 15_500 * MS), hold_ms=15_000), 15_600 * MS, attempt=1)
    assert it.hold.hold_us == 7_500 * MS


def test_pulls_that_fail_on_repeats_too_or_are_only_doubted_do_not_change_the_hold() -> None:
    it = path()
    for _ in range(4):
        answer(it, flight((0, 15_500 * MS, 16_500 * MS), hold_ms=15_000), 16_600 * MS, attempt=2)
        doubted = flight((0,), hold_ms=15_000)
        doubted.repeat_early(8 * SECOND)
        doubted.check_silence(8 * SECOND)
        doubted.send(9, 8 * SECOND, Random(1))
        answer(it, doubted, 9 * SECOND, attempt=1)
    assert it.hold.hold_us == 15 * SECOND


def lost(now: int) -> Flight:
    """Return a held pull (15 s) whose answer was lost; another answer shows this at `now`, and the repeat leaves."""
    found = flight((0,), hold_ms=15_000)
    found.repeat_early(now, is_answered=True)
    found.check_silence(now)
    found.send(9, now, Random(1))
    return found


def test_answers_to_held_pulls_that_are_lost_shorten_the_hold() -> None:
    it = path()
    answer(it, lost(8 * SECOND), 9 * SECOND, attempt=1)
    answer(it, lost(12 * SECOND), 13 * SECOND, attempt=1)
    assert it.hold.hold_us == 15 * SECOND  # the two were lost at different ages
    answer(it, lost(14 * SECOND), 15 * SECOND, attempt=1)
    assert it.hold.hold_us == 7_500 * MS


def test_late_answers_to_held_pulls_do_not_change_the_hold() -> None:
    it = path()
    for _ in range(4):
        answer(it, lost(8 * SECOND), 9 * SECOND, attempt=0)
        answer(it, flight((0, 15_500 * MS), hold_ms=15_000), 15_600 * MS, attempt=0)
    assert it.hold.hold_us == 15 * SECOND


def test_endured_holds_let_the_hold_grow() -> None:
    it = path()
    it.hold.hold_us = 8 * SECOND
    for _ in range(4):
        answer(it, flight(hold_ms=8000), 8 * SECOND)
    assert it.hold.hold_us == 15 * SECOND


def test_a_pull_that_needed_several_repeats_does_not_change_the_hold() -> None:
    it = path()
    for _ in range(3):
        sent = flight((0, 15_500 * MS, 17 * SECOND), hold_ms=15_000)
        answer(it, sent, 17_100 * MS, attempt=2)
    assert it.hold.hold_us == 15 * SECOND


def test_a_lane_is_added_when_one_direction_may_not_grow() -> None:
    it = path(LaneConfig(body_bytes_start=64 * KIB, body_bytes_max=64 * KIB, answer_bytes_max=1 << 20))
    assert answer(it, flight(size=60 * KIB), 10 * MS, size=60 * KIB)
    assert it.lanes.count == 3


def test_what_waited_for_the_end_of_a_silence_says_nothing_about_a_queue() -> None:
    """7.8: a relay that was stopped for a while answers all at once when it goes on."""
    it = path()
    answer(it, flight((0,)), 20 * MS)
    usual = it.round_trip.srtt_us, it.round_trip.queued_us
    it.on_link_silent()
    before, during = flight((10 * MS,)), flight((2 * SECOND,))
    held = flight((10 * MS,), hold_ms=1000)
    it.on_heard(2 * SECOND, 9 * SECOND)
    for sent in (before, during, held):
        answer(it, sent, 9 * SECOND)
    it.on_timed(flight((10 * MS,)).attempts[0], 9 * SECOND)  # of ATTACH, or of a stream
    assert (it.round_trip.srtt_us, it.round_trip.queued_us) == usual
    after = flight((9 * SECOND,))
    it.on_heard(9 * SECOND, 13 * SECOND)
    answer(it, after, 13 * SECOND)
    assert it.round_trip.queued_us == 8 * SECOND
    pull = Exchange(bytes(16), 1, 1, 0, 1, 0, hold_ms=0, answer_bytes_max=65536, pull=True)
    waits = [it.flight(pull, now)._queued_us for now in (14 * SECOND, 80 * SECOND)]
    assert waits == [8 * SECOND, 0]  # a minute without samples says nothing about a queue either
