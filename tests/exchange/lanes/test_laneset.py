"""The lanes together: which is idle, and what one answer shows about the others (PROTOCOL 7.7)."""

from random import Random

from tunnel.exchange.flight import Flight
from tunnel.exchange.lanes.laneset import LaneSet
from tunnel.wire import Answer, Exchange

SECOND = 1_000_000


def flying(lanes: LaneSet, index: int, number: int, *, sent_us: int | None = 0, hold_ms: int = 0) -> Flight:
    exchange = Exchange(bytes(16), 1, 1, index, number, 0, hold_ms, 65536, pull=hold_ms > 0)
    flight = Flight(exchange, sent_us or 0, wait_us=9 * SECOND, repeat_us=SECOND, attempts_max=3)
    if sent_us is not None:
        flight.send(index, sent_us, Random(1))
    lanes.lanes[index].flight = flight
    return flight


def test_an_idle_lane_with_an_answer_to_confirm_is_taken_before_others() -> None:
    lanes = LaneSet()
    lanes.begin(4, 4096, 0)
    assert lanes.idle(4) is lanes.lanes[0]
    lanes.lanes[2].owes = lanes.lanes[3].owes = True
    assert lanes.idle(4) is lanes.lanes[2]
    assert lanes.idle(2) is lanes.lanes[0]
    assert lanes.idle(0) is None
    flying(lanes, 2, 1)
    assert lanes.idle(3) is lanes.lanes[0]
    assert [lanes.idle_count(count) for count in range(5)] == [0, 1, 2, 2, 3]


def test_pulls_are_counted() -> None:
    lanes = LaneSet()
    lanes.begin(4, 4096, 0)
    flights = [flying(lanes, 0, 1), flying(lanes, 2, 1, hold_ms=1000)]
    assert list(lanes.flights()) == flights
    assert lanes.pulls_in_flight() == 1


def test_one_search_finds_an_idle_lane_and_counts_the_pulls() -> None:
    lanes = LaneSet()
    lanes.begin(4, 4096, 0)
    assert [lanes.has_idle_and_pulls(count) for count in (0, 1)] == [(False, 0), (True, 0)]
    flying(lanes, 0, 1)
    flying(lanes, 3, 1, hold_ms=1000)
    lanes.lanes[1].streaming = lanes.lanes[2].is_cut = True
    assert lanes.has_idle_and_pulls(4) == (lanes.idle(4) is not None, lanes.pulls_in_flight()) == (False, 1)
    lanes.lanes[2].is_cut = False
    assert [lanes.has_idle_and_pulls(count) for count in (2, 3, 4)] == [(False, 1), (True, 1), (True, 1)]
    streamed = flying(lanes, 2, 1, hold_ms=1000)
    streamed.stream = True
    assert lanes.has_idle_and_pulls(4) == (False, 1)


def test_evidence_brings_forward_only_exchanges_that_were_answered() -> None:
    lanes = LaneSet()
    lanes.begin(4, 4096, 0)
    answered, waiting = flying(lanes, 0, 5), flying(lanes, 1, 5)
    lanes.use_evidence(Answer(3, 1, 1, evidence=[(0, 5), (1, 4), (2, 9), (4, 1), (200, 1)]), 80_000)
    assert (answered.next_us, answered.repeats_early) == (80_000, True)
    assert not waiting.repeats_early


def test_pulls_held_since_before_the_silence_are_doubted() -> None:
    lanes = LaneSet()
    lanes.begin(4, 4096, 0)
    before = flying(lanes, 0, 1, sent_us=10, hold_ms=1000)
    after = flying(lanes, 1, 1, sent_us=400, hold_ms=1000)
    push = flying(lanes, 2, 1, sent_us=10)
    unsent = flying(lanes, 3, 1, sent_us=None, hold_ms=1000)
    lanes.doubt_pulls(400, 80_000)
    assert [flight.repeats_early for flight in (before, after, push, unsent)] == [True, False, False, False]
