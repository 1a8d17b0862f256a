"""The formats of bodies (7.19) in the lanes: which one leaves when, against paths that let only some of them pass."""

from collections.abc import Callable
from random import Random

import pytest

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tests.exchange.rig import MS, SECOND, STEADY, attached_loop, received, status
from tests.exchange.rig import pushes as pushes_of
from tunnel.exchange import AttachRefused, LaneConfig, Request
from tunnel.wire import BodyFormat, StatusCode

PLAIN, FORM, JSON, TEXT = BodyFormat
TEXTS = (JSON, TEXT)
_BLOCKED = Fate(status=403)


def only(*passing: BodyFormat, fate: Fate = _BLOCKED, from_bytes: int = 0) -> Callable[[Request, int], Fate]:
    """A path that lets these formats pass, and smaller bodies in any."""
    return lambda request, now: (
        Fate() if request.format in passing or sum(map(len, request.body)) < from_bytes else fate
    )


def formats(loop: Loop) -> list[BodyFormat]:
    return [request.format for _, request in loop.requests]


def pushes(loop: Loop) -> list[Request]:
    return [request for _, request in loop.requests if request.lane >= 0 and not request.pull]


@pytest.mark.parametrize("passing", TEXTS)
@pytest.mark.parametrize("code", [200, 400, 403, 404, 406, 415, 422])
def test_where_only_text_passes_all_bodies_leave_as_text(passing: BodyFormat, code: int) -> None:
    loop = Loop(STEADY, only(passing, fate=Fate(status=code)))
    loop.queue.extend(data_packet(name) for name in range(5))
    loop.run(900 * MS)
    assert received(loop) == list(range(5))
    before = list(BodyFormat)[: list(BodyFormat).index(passing)]
    assert formats(loop)[: len(before)] == before
    assert set(formats(loop)[len(before) :]) == {passing}


@pytest.mark.parametrize("fate", [Fate(request_lost=True), Fate(request_lost=True, reported=True)], ids=["lost", "cut"])
def test_where_other_bodies_get_no_answer_the_first_attach_changes_to_text(fate: Fate) -> None:
    loop = Loop(STEADY, only(*TEXTS, fate=fate))
    loop.queue.append(data_packet(1))
    loop.run(30 * SECOND)
    assert received(loop) == [1]


@pytest.mark.parametrize(
    "fate",
    [_BLOCKED, Fate(status=400), Fate(request_lost=True), Fate(request_lost=True, reported=True)],
    ids=["403", "400", "lost", "cut"],
)
def test_a_filter_that_refuses_only_larger_binary_bodies_is_passed_as_text(fate: Fate) -> None:
    """As a filter that measures how random a body looks: each small one passes."""
    loop = attached_loop()
    loop.fate = only(*TEXTS, fate=fate, from_bytes=500)
    loop.queue.append(data_packet(1, 2000))
    loop.run(20 * SECOND)
    assert received(loop) == [1]
    sent = len(pushes(loop))
    loop.queue.extend(data_packet(name, 60_000) for name in range(2, 10))
    loop.run(21 * SECOND)
    assert received(loop) == list(range(1, 10))
    assert pushes(loop)[sent:][-1].format in TEXTS


ALTERED_REQUEST = Fate(status=400, body=status(StatusCode.CORRUPT))
ALTERED_ANSWER = Fate(status=200, body=status(StatusCode.BUSY)[:-1])


@pytest.mark.parametrize("fate", [ALTERED_REQUEST, ALTERED_ANSWER], ids=["requests", "answers"])
def test_where_binary_bodies_arrive_altered_all_bodies_leave_as_text(fate: Fate) -> None:
    """A device takes bodies for text: it writes line ends or letters in another way. Forms are as binary."""
    loop = Loop(STEADY, only(*TEXTS, fate=fate))
    loop.queue.extend(data_packet(name) for name in range(5))
    loop.run(900 * MS)
    assert received(loop) == list(range(5))
    assert formats(loop)[:4] == [PLAIN, PLAIN, PLAIN, JSON]
    assert FORM not in formats(loop)


def test_where_only_large_bodies_arrive_altered_they_leave_as_text() -> None:
    """Bytes that a device writes in another way come seldom, so that small bodies pass."""
    loop = attached_loop()
    loop.fate = only(*TEXTS, fate=ALTERED_REQUEST, from_bytes=500)
    loop.queue.extend(data_packet(name, 60_000) for name in range(10))
    loop.run(10 * SECOND)
    assert received(loop) == list(range(10))


def test_where_only_large_answers_arrive_altered_they_are_asked_for_as_text() -> None:
    loop = attached_loop()
    loop.fate = lambda request, now: (
        Fate() if request.format in TEXTS else Fate(too_large=ALTERED_ANSWER, answer_bytes_max=500)
    )
    loop.relay.give([data_frame(name, 1000) for name in range(600)])
    loop.run(10 * SECOND)
    assert loop.delivered == list(range(600))


def test_two_altered_bodies_in_a_row_are_an_accident() -> None:
    loop = attached_loop(packets=1)
    loop.fate = pushes_of(ALTERED_REQUEST, ALTERED_ANSWER)
    loop.run(5 * SECOND)
    assert received(loop) == [1]
    assert set(formats(loop)) == {PLAIN}


def test_answers_that_only_text_brings_through_are_asked_for_as_text() -> None:
    """A filter refuses large binary answers, whatever the request looks like."""
    loop = attached_loop()
    loop.fate = lambda request, now: (
        Fate() if request.format in TEXTS else Fate(too_large=_BLOCKED, answer_bytes_max=500)
    )
    loop.relay.give([data_frame(name, 1000) for name in range(600)])
    loop.run(10 * SECOND)
    assert loop.delivered == list(range(600))
    assert loop.lanes.path.down.limit_bytes > 20_000


@pytest.mark.parametrize(
    "refusal", [Fate(status=502), Fate(response_lost=True, reported=True), Fate(response_lost=True)]
)
def test_where_no_binary_answer_passes_a_pull_that_fails_for_long_tries_text(refusal: Fate) -> None:
    """Nothing tells this path from an outage."""
    loop = attached_loop()
    loop.relay.give([data_frame(name, 1000) for name in range(600)])
    refused = Fate(too_large=refusal, answer_bytes_max=500)
    loop.fate = lambda request, now: Fate() if request.format in TEXTS else refused
    loop.run(40 * SECOND)
    assert loop.delivered == list(range(600))


def test_a_lane_that_fails_takes_the_format_that_another_one_has_found() -> None:
    """The request of a pull is too small to be doubted."""
    loop = attached_loop()

    def fate(request: Request, now: int) -> Fate:
        if request.format in TEXTS:
            return Fate()
        is_small = sum(map(len, request.body)) <= 500
        return Fate(too_large=Fate(status=502), answer_bytes_max=500) if is_small else Fate(status=502)

    loop.relay.give([data_frame(name, 8200) for name in range(100)])
    loop.queue.extend(data_packet(name, 8200) for name in range(100))
    loop.fate = fate
    loop.resends = True
    loop.until(lambda: bool(loop.ok()), loop.now + 8 * SECOND)
    found_us = loop.now
    loop.run(loop.now + 8 * SECOND)
    assert set(loop.delivered) == set(received(loop)) == set(range(100))
    repeats = [request for time_us, request in loop.requests if time_us > found_us and request.repeat]
    assert repeats
    assert all(request.format in TEXTS for request in repeats)


@pytest.mark.parametrize("passing", [JSON, BodyFormat.TEXT, BodyFormat.FORM])
def test_where_one_format_and_small_answers_pass_both_are_found(passing: BodyFormat) -> None:
    loop = attached_loop()
    small = Fate(too_large=_BLOCKED, answer_bytes_max=6000)
    loop.fate = lambda request, now: small if request.format is passing else _BLOCKED
    loop.relay.give([data_frame(name, 3000) for name in range(100)])
    loop.queue.extend(data_packet(name, 1500) for name in range(100))
    loop.resends = True
    loop.run(loop.now + 60 * SECOND)
    assert set(loop.delivered) == set(received(loop)) == set(range(100))


def test_the_plain_format_is_used_again_when_it_passes_again() -> None:
    loop = Loop(STEADY, lambda request, now: _BLOCKED if request.format not in TEXTS and now < 5 * SECOND else Fate())
    loop.run(30 * SECOND)
    assert formats(loop)[-1] is PLAIN
    tries = [time_us for time_us, request in loop.requests if request.format is PLAIN]
    assert len([time_us for time_us in tries if time_us < 5 * SECOND]) <= 5
    loop.queue.append(data_packet(1))
    loop.run(31 * SECOND)
    assert received(loop) == [1]


def test_a_try_of_the_plain_format_costs_one_repeat() -> None:
    loop = Loop(STEADY, only(JSON))
    loop.run(60 * SECOND)
    later = [(request.format, request.repeat) for time_us, request in loop.requests if time_us > 500 * MS]
    for index, (kind, _) in enumerate(later):
        if kind is PLAIN:
            assert later[index + 1][0] is JSON
    assert 1 < [kind for kind, _ in later].count(PLAIN) < 8
    assert {kind for kind, _ in later} == {PLAIN, JSON}


def test_a_start_before_the_relay_leaves_no_text_behind() -> None:
    """The formats that an outage made the endpoint try prove nothing."""
    loop = Loop(STEADY, lambda request, now: Fate(request_lost=True, reported=True) if now < 9 * SECOND else Fate())
    loop.run(20 * SECOND)
    assert loop.lanes.is_attached
    assert formats(loop)[-1] is PLAIN


def test_an_outage_after_the_attach_changes_no_format() -> None:
    loop = attached_loop(packets=3)
    loop.fate = lambda request, now: Fate(request_lost=True, reported=True) if now < 9 * SECOND else Fate()
    loop.run(20 * SECOND)
    assert received(loop) == [1, 2, 3]
    assert set(formats(loop)) == {PLAIN}


OLD = Fate(status=415, body=status(StatusCode.MALFORMED))


def test_a_relay_that_does_not_understand_text_is_asked_for_it_once() -> None:
    def fate(request: Request, now: int) -> Fate:
        return OLD if request.format in TEXTS else _BLOCKED

    loop = Loop(STEADY, fate)
    loop.run(20 * SECOND)
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert (refused.status, refused.code) == (403, 0)
    assert "not from a relay" in refused.text
    assert formats(loop) == [PLAIN, FORM, JSON, PLAIN]


def test_an_older_relay_that_takes_the_place_of_a_newer_one_gets_plain_bodies() -> None:
    loop = Loop(STEADY, only(JSON))
    loop.run(SECOND)
    assert loop.lanes.is_attached
    loop.fate = lambda request, now: OLD if request.format in TEXTS else Fate()
    loop.queue.append(data_packet(1))
    loop.run(5 * SECOND)
    assert received(loop) == [1]
    assert loop.told(AttachRefused) == []
    assert formats(loop)[-1] is PLAIN


def test_as_text_no_stream_is_asked_for() -> None:
    loop = Loop(LaneConfig(), only(*TEXTS), relay=Relay(Random(2), streams=True), streams=True)
    loop.run(20 * SECOND)
    assert loop.lanes.is_attached
    assert not any(request.stream and request.format in TEXTS for _, request in loop.requests)
    loop.relay.give([data_frame(name, 1000) for name in range(100)], loop.now)
    loop.run(25 * SECOND)
    assert loop.delivered == list(range(100))
