"""The ladder: which road is tried, when it carries, when its silence makes it doubted, and how long it rests."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tunnel.exchange import POLL, Ladder, Refusal, Road, Step
from tunnel.exchange.backoff import Backoff
from tunnel.exchange.roads.roads import TRANSITIONS, RoadEvent, RoadState

MS = 1_000
SECOND = 1_000 * MS
KIB = 1024


class Low(Random):
    """Draws zeros, so that rests have their full length, and a returning road is tried at once."""

    def getrandbits(self, k: int, /) -> int:
        return 0


class High(Random):
    """Draws the highest number."""

    def getrandbits(self, k: int, /) -> int:
        return (1 << k) - 1


def make(*names: str, random: Random | None = None, **options: Any) -> Ladder:
    return Ladder([Road(name) for name in names or ("link", "websocket")], random or Low(), **options)


def steps(ladder: Ladder, now: int) -> list[tuple[Step, str]]:
    """Handle a timeout, and return what was decided."""
    ladder.handle_timeout(now)
    found = []
    while (decision := ladder.poll_decision()) is not None:
        found.append((decision.step, decision.road))
    return found


def states(ladder: Ladder) -> list[str]:
    return [report.state for report in ladder.reports()]


def used(name: str = "link", **options: Any) -> Ladder:
    """Return a ladder whose road has carried since time 0, and is proven by data."""
    ladder = make(**options)
    ladder.on_attached(0)
    steps(ladder, 0)
    ladder.on_proven(name, 0)
    assert steps(ladder, 0) == [(Step.USE, name)]
    ladder.on_sent(64 * KIB, 0)
    ladder.on_receipted(64 * KIB, 0, 0)
    return ladder


def test_the_best_road_is_tried_at_once_and_the_next_when_the_attachment_is_2_s_old() -> None:
    ladder = make()
    assert ladder.next_timeout() is None
    ladder.on_attached(5)
    assert ladder.next_timeout() == 5
    assert steps(ladder, 5) == [(Step.TRY, "link")]
    assert ladder.next_timeout() is None  # only one road is tried at a time
    ladder.on_failed("link", "HTTP 404", 6)
    assert ladder.next_timeout() == 6 + SECOND
    assert steps(ladder, 6 + SECOND) == [(Step.TRY, "link")]
    ladder.on_failed("link", "HTTP 404", 7 + SECOND)
    assert ladder.next_timeout() == 5 + 2 * SECOND
    assert steps(ladder, 5 + 2 * SECOND) == [(Step.TRY, "websocket")]
    ladder.on_proven("websocket", 6 + 2 * SECOND)
    assert steps(ladder, 6 + 2 * SECOND) == [(Step.USE, "websocket")]
    assert (ladder.used_road, states(ladder)) == ("websocket", ["resting", "used"])
    assert [(report.tries, report.why) for report in ladder.reports()] == [(2, "HTTP 404"), (1, "")]


def test_after_256_kib_roads_are_tried_before_the_attachment_is_2_s_old() -> None:
    ladder = make(remembered=POLL)
    ladder.on_attached(0)
    ladder.on_moved(256 * KIB - 1)
    assert steps(ladder, 1) == []
    ladder.on_moved(1)
    assert steps(ladder, 1) == [(Step.TRY, "link")]


@pytest.mark.parametrize(
    ("remembered", "eager", "first"),
    [("websocket", False, "websocket"), ("link", False, "link"), ("pigeon", False, "link"), (POLL, True, "link")],
)
def test_a_remembered_road_is_tried_first(remembered: str, eager: bool, first: str) -> None:
    ladder = make(remembered=remembered, eager=eager)
    ladder.on_attached(0)
    assert steps(ladder, 0) == [(Step.TRY, first)]


def test_a_better_road_replaces_the_one_in_use() -> None:
    ladder = used("websocket", remembered="websocket")
    assert ladder.next_timeout() == 2 * SECOND
    assert steps(ladder, 2 * SECOND) == [(Step.TRY, "link")]
    assert ladder.used_road == "websocket"
    ladder.on_proven("link", 3 * SECOND)
    assert steps(ladder, 3 * SECOND) == [(Step.USE, "link")]
    assert states(ladder) == ["used", "unknown"]
    assert steps(ladder, 9 * SECOND) == [(Step.PROBE, "link")]  # no worse road is tried


def test_rests_double_up_to_10_minutes_and_have_jitter() -> None:
    ladder, now, rests = make("link"), 0, []
    ladder.on_attached(0)
    for _ in range(12):
        assert steps(ladder, now) == [(Step.TRY, "link")]
        ladder.on_failed("link", "no", now)
        due_us = ladder.next_timeout()
        assert due_us is not None
        rests.append((due_us - now) // SECOND)
        now = due_us
    assert rests == [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 600, 600]
    assert ladder.road_to_remember == POLL
    jittery = make("link", random=High())
    jittery.on_attached(0)
    steps(jittery, 0)
    jittery.on_failed("link", "no", 0)
    due_us = jittery.next_timeout()
    assert due_us is not None
    assert 0.75 * SECOND <= due_us < 0.76 * SECOND


def test_an_eager_ladder_rests_for_at_most_a_second() -> None:
    ladder, now, rests = make("link", eager=True), 0, []
    ladder.on_attached(0)
    for _ in range(6):
        steps(ladder, now)
        ladder.on_failed("link", "no", now)
        rests.append((ladder.next_timeout() or 0) - now)
        now += rests[-1]
    assert rests == [100 * MS, 200 * MS, 400 * MS, 800 * MS, SECOND, SECOND]


def test_a_road_that_has_carried_rests_briefly_and_its_rests_start_again_after_a_minute_in_use() -> None:
    ladder = used()
    for now, rest_us in ((SECOND, 100 * MS), (2 * SECOND, 200 * MS), (63 * SECOND, 100 * MS)):
        ladder.on_lost("link", "cut", now)
        assert (ladder.used_road, states(ladder)[0]) == ("", "resting")
        assert ladder.next_timeout() == now + rest_us
        assert steps(ladder, now + rest_us) == [(Step.TRY, "link")]
        ladder.on_proven("link", now + rest_us)
        steps(ladder, now + rest_us)


def test_at_most_64_kib_are_unreceipted_until_64_kib_were_receipted() -> None:
    ladder = make()
    ladder.on_attached(0)
    steps(ladder, 0)
    ladder.on_proven("link", 0)
    assert ladder.room(128 * KIB) == 64 * KIB
    ladder.on_sent(60 * KIB, 0)
    assert ladder.room(128 * KIB) == 4 * KIB
    ladder.on_sent(70 * KIB, 0)  # a single packet may be larger
    assert ladder.room(128 * KIB) == 0
    ladder.on_receipted(60 * KIB, 10 * KIB, 1)
    assert ladder.room(128 * KIB) == 54 * KIB
    ladder.on_receipted(10 * KIB, 0, 1)
    assert ladder.room(128 * KIB) == 128 * KIB


def test_a_silent_road_yields_and_is_resumed_with_more_patience() -> None:
    ladder = used()
    ladder.on_sent(10, SECOND)
    ladder.on_sent(20, SECOND + 5)
    assert ladder.next_timeout() == 2 * SECOND
    assert steps(ladder, 2 * SECOND - 1) == []
    assert steps(ladder, 2 * SECOND) == [(Step.YIELD, "link")]
    assert (ladder.used_road, ladder.is_doubted) == ("link", True)
    ladder.on_receipted(20, 0, 3 * SECOND)
    assert steps(ladder, 3 * SECOND) == [(Step.RESUME, "link")]
    assert not ladder.is_doubted
    now = 10 * SECOND
    for doubt_us in (2 * SECOND, 4 * SECOND, 8 * SECOND, 8 * SECOND):
        ladder.on_sent(10, now)
        assert ladder.next_timeout() == now + doubt_us
        assert steps(ladder, now + doubt_us) == [(Step.YIELD, "link")]
        now += doubt_us + 1
        ladder.on_receipted(10, 0, now)
        assert steps(ladder, now) == [(Step.RESUME, "link")]


def test_a_road_on_which_something_comes_is_doubted_later_but_after_eight_seconds_at_most() -> None:
    """The receipt waits behind what comes."""
    ladder = used()
    ladder.on_sent(10, SECOND)
    ladder.on_heard(SECOND + 900_000)
    assert ladder.next_timeout() == 2 * SECOND + 900_000
    assert steps(ladder, 2 * SECOND) == []
    ladder.on_heard(8 * SECOND + 1)
    assert ladder.next_timeout() == 9 * SECOND
    assert steps(ladder, 9 * SECOND - 1) == []
    assert steps(ladder, 9 * SECOND) == [(Step.YIELD, "link")]


def test_a_connection_without_any_receipt_is_doubted_although_something_comes() -> None:
    """Some paths pass nothing upwards but a first message."""
    ladder = make("link")
    ladder.on_attached(0)
    steps(ladder, 0)
    ladder.on_proven("link", 0)
    ladder.on_sent(10, 0)
    ladder.on_heard(900_000)
    assert (Step.YIELD, "link") in steps(ladder, SECOND)


def test_an_idle_road_is_probed_after_a_second_and_then_15_s_after_each_receipt() -> None:
    """Some paths pass only a first message. While we send no data, only a probe shows that the relay's data is lost."""
    ladder = make("link")
    ladder.on_attached(0)
    steps(ladder, 0)
    ladder.on_proven("link", 0)
    steps(ladder, 0)
    assert ladder.next_timeout() == SECOND
    assert steps(ladder, SECOND) == [(Step.PROBE, "link")]
    ladder.on_sent(24, SECOND)
    ladder.on_receipted(24, 0, SECOND + 5)
    assert ladder.next_timeout() == 16 * SECOND + 5
    assert steps(ladder, 16 * SECOND + 5) == [(Step.PROBE, "link")]
    ladder.on_sent(24, 16 * SECOND + 5)
    assert steps(ladder, 17 * SECOND + 5) == [(Step.YIELD, "link")]
    assert ladder.next_timeout() == 26 * SECOND + 5
    assert steps(ladder, 26 * SECOND + 5) == [(Step.CLOSE, "link")]


def test_a_road_that_carries_data_is_not_probed() -> None:
    ladder = used()
    for second in range(10, 100, 10):
        ladder.on_sent(10, second * SECOND)
        assert steps(ladder, second * SECOND) == []
        ladder.on_receipted(10, 0, second * SECOND + 5)
    ladder.on_sent(10, 100 * SECOND)
    assert ladder.next_timeout() == 101 * SECOND  # it is doubted then
    assert steps(ladder, 101 * SECOND) == [(Step.YIELD, "link")]


def test_doubt_and_proof_leave_time_for_slow_paths() -> None:
    ladder = used()
    ladder.round_trip_us = SECOND
    ladder.on_sent(10, 0)
    assert ladder.next_timeout() == 4 * SECOND
    assert ladder.proof_us == 4 * SECOND
    ladder.round_trip_us = 0
    assert ladder.proof_us == 3 * SECOND


def test_a_doubted_road_is_closed_after_10_s() -> None:
    ladder = used()
    ladder.on_sent(10, 0)
    assert steps(ladder, SECOND) == [(Step.YIELD, "link")]
    assert ladder.next_timeout() == 10 * SECOND  # no worse road is tried: this one may only be slow
    assert steps(ladder, 10 * SECOND) == [(Step.CLOSE, "link")]
    assert ladder.used_road == ""
    assert ladder.reports()[0].why == "the relay sent no receipt for 10 s"


def test_a_better_road_replaces_a_doubted_one() -> None:
    ladder = used("websocket", remembered="websocket")
    ladder.on_sent(10, 0)
    steps(ladder, SECOND)
    assert steps(ladder, 2 * SECOND) == [(Step.TRY, "link")]
    ladder.on_proven("link", 3 * SECOND)
    assert steps(ladder, 3 * SECOND) == [(Step.CLOSE, "websocket"), (Step.USE, "link")]
    assert states(ladder) == ["used", "resting"]


def test_a_road_that_has_carried_is_tried_again_before_worse_ones() -> None:
    ladder = used()
    now = 5 * SECOND
    ladder.on_lost("link", "cut", now)
    for rest_us in (100 * MS, 200 * MS):
        assert ladder.next_timeout() == now + rest_us
        now += rest_us
        assert steps(ladder, now) == [(Step.TRY, "link")]
        ladder.on_failed("link", "no", now)
    assert steps(ladder, now) == [(Step.TRY, "websocket")]


def test_two_deaths_at_a_similar_age_renew_the_connection_before_the_third() -> None:
    ladder = used()
    ladder.on_lost("link", "cut", 60 * SECOND)
    steps(ladder, 60 * SECOND + 100 * MS)
    ladder.on_proven("link", 61 * SECOND)
    steps(ladder, 61 * SECOND)
    ladder.on_lost("link", "cut", 111 * SECOND)  # at an age of 50 s; 60 s is at most a quarter more
    now = 111 * SECOND + 200 * MS
    steps(ladder, now)
    ladder.on_proven("link", now)
    steps(ladder, now)
    ladder.on_receipted(1, 0, now + 30 * SECOND)
    assert ladder.next_timeout() == now + 40 * SECOND
    assert steps(ladder, now + 40 * SECOND) == [(Step.RENEW, "link")]
    assert steps(ladder, now + 41 * SECOND) == []
    ladder.not_renewed(now + 41 * SECOND)
    assert ladder.next_timeout() == now + 42 * SECOND
    assert steps(ladder, now + 42 * SECOND) == [(Step.RENEW, "link")]
    ladder.on_renewed(now + 43 * SECOND)
    ladder.on_receipted(1, 0, now + 70 * SECOND)
    assert ladder.next_timeout() == now + 83 * SECOND
    ladder.on_renewed(now + 43 * SECOND)
    assert ladder.room(128 * KIB) == 64 * KIB  # the new connection must prove itself


@pytest.mark.parametrize("second", [4 * SECOND, 100 * SECOND])
def test_deaths_at_different_ages_or_of_young_connections_tell_nothing(second: int) -> None:
    ladder = used()
    ladder.on_lost("link", "cut", 4 * SECOND if second < 5 * SECOND else 60 * SECOND)
    steps(ladder, 200 * SECOND)
    ladder.on_proven("link", 200 * SECOND)
    ladder.on_lost("link", "cut", 200 * SECOND + second)
    steps(ladder, 400 * SECOND)
    ladder.on_proven("link", 400 * SECOND)
    steps(ladder, 400 * SECOND)
    assert steps(ladder, 4000 * SECOND) == [(Step.PROBE, "link")]  # it is not renewed


def test_a_road_that_dies_while_it_is_renewed_carries_on_with_the_new_connection() -> None:
    ladder = used()
    for _ in range(2):
        now = 60 * SECOND
        ladder.on_lost("link", "cut", ladder._rung("link").opened_us + now)
        at_us = ladder.next_timeout()
        assert at_us is not None
        steps(ladder, at_us)
        ladder.on_proven("link", at_us)
        steps(ladder, at_us)
    renew_us = ladder._renew_us
    assert renew_us is not None
    assert steps(ladder, renew_us) == [(Step.RENEW, "link")]
    ladder.on_lost("link", "cut", renew_us + 1)
    assert steps(ladder, renew_us + SECOND) == []  # a connection is being opened already
    ladder.on_proven("link", renew_us + SECOND)
    assert steps(ladder, renew_us + SECOND) == [(Step.USE, "link")]


def test_after_a_return_of_the_relay_the_last_road_comes_first_within_2_s() -> None:
    ladder = used("websocket", remembered="websocket", random=High())
    ladder.on_detached()
    assert (ladder.used_road, states(ladder), ladder.next_timeout()) == ("", ["unknown", "unknown"], None)
    assert ladder.road_to_remember == "websocket"
    ladder.on_attached(10 * SECOND)
    due_us = ladder.next_timeout()
    assert due_us is not None
    assert 11.9 * SECOND < due_us < 12 * SECOND
    assert steps(ladder, due_us) == [(Step.TRY, "websocket")]


def test_outdated_news_changes_nothing() -> None:
    ladder = used()
    before = states(ladder)
    ladder.on_failed("link", "late", 1)
    ladder.on_proven("websocket", 1)
    ladder.on_lost("websocket", "late", 1)
    ladder.not_renewed(1)
    assert (states(ladder), steps(ladder, 1)) == (before, [])
    ladder.on_detached()
    ladder.on_receipted(1, 0, 2)
    ladder.on_renewed(2)
    ladder.on_sent(5, 2)
    assert states(ladder) == ["unknown", "unknown"]


def test_the_road_that_has_carried_is_learned() -> None:
    ladder = make("link")
    assert ladder.road_to_remember == ""
    ladder.on_attached(0)
    steps(ladder, 0)
    assert ladder.road_to_remember == ""
    ladder.on_proven("link", 0)
    assert ladder.road_to_remember == "link"
    ladder.on_lost("link", "cut", 1)
    assert ladder.road_to_remember == "link"  # it has carried, and is the best guess


def test_a_ladder_needs_a_road() -> None:
    with pytest.raises(ValueError, match="at least one road"):
        Ladder([], Low())


def test_every_state_is_left_and_reached() -> None:
    assert {state for state, _ in TRANSITIONS} == set(RoadState)
    assert set(TRANSITIONS.values()) == set(RoadState)
    assert {event for _, event in TRANSITIONS} == set(RoadEvent)


def test_no_road_is_tried_during_a_pause_of_the_back_off_and_a_try_is_its_question() -> None:
    backoff = Backoff(Low())
    ladder = make("link", backoff=backoff)
    for second in range(3):
        backoff.on_refused(Refusal.BUSY, second * SECOND, second * SECOND)
    ladder.on_attached(2 * SECOND)
    assert ladder.next_timeout() == 4 * SECOND
    assert steps(ladder, 4 * SECOND - 1) == []
    assert steps(ladder, 4 * SECOND) == [(Step.TRY, "link")]
    assert backoff.next_us == 6 * SECOND
    backoff.on_answered(4 * SECOND)
    ladder.on_failed("link", "HTTP 404", 4 * SECOND)
    assert ladder.next_timeout() == 4 * SECOND + SECOND


def test_a_road_that_was_in_use_waits_for_the_back_off_too() -> None:
    backoff = Backoff(Low())
    ladder = used(backoff=backoff)
    ladder.on_lost("link", "reset", 61 * SECOND)
    backoff.on_refused(Refusal.BUSY, 61 * SECOND, 61 * SECOND)
    backoff.on_refused(Refusal.BUSY, 61 * SECOND, 61 * SECOND)
    assert ladder.next_timeout() == 62 * SECOND


def test_a_renewal_waits_for_the_back_off_and_is_its_question() -> None:
    backoff = Backoff(Low())
    ladder = used(backoff=backoff)
    for second in range(1, 3):
        backoff.on_refused(Refusal.BUSY, second * SECOND, second * SECOND)
    ladder.on_receipted(1, 0, 2 * SECOND)
    ladder.renew_soon(2 * SECOND)
    assert ladder.next_timeout() == 3 * SECOND
    assert steps(ladder, 3 * SECOND - 1) == []
    assert steps(ladder, 3 * SECOND) == [(Step.RENEW, "link")]
    assert backoff.next_us == 4 * SECOND


def test_an_eager_ladder_rests_for_more_than_a_second_only_where_fewer_requests_are_asked_for() -> None:
    rests = []
    for is_ban in (False, True):
        ladder, now = make("link", eager=True), 0
        ladder.on_attached(0)
        for _ in range(14):
            assert steps(ladder, now) == [(Step.TRY, "link")]
            ladder.on_failed("link", "HTTP 429", now, is_ban=is_ban)
            before, now = now, ladder.next_timeout() or 0
        rests.append(now - before)
    assert rests == [SECOND, 60 * SECOND]
