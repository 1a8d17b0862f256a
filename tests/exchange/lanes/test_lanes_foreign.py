"""Refusals and redirects of an intermediary: final before the first attach, failures of one body after it.

Clause 7.9 of docs/PROTOCOL.md.
"""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.exchange.loop import Fate, Loop, data_frame, data_packet
from tests.exchange.rig import KIB, MS, SECOND, STEADY, attached_loop, pushes, received
from tunnel.exchange import AttachedEvent, AttachRefused, BatchDone, Detached, Recovered, Request, Troubled
from tunnel.wire import EXCHANGE_BYTES, BodyFormat, Exchange, decode_envelope, mask_of, parse_packets

FOREIGN = [301, 302, 303, 307, 308, 401, 403, 415]


def names(request: Request) -> list[int]:
    """Return the sequence numbers of the packets in a request."""
    message = decode_envelope(b"".join(request.body))
    return [packet.sequence for packet in parse_packets(message.data)[0]] if isinstance(message, Exchange) else []


def masks(loop: Loop) -> list[int]:
    """Return the masks of the pushes that left, in order."""
    pushed = (request for _, request in loop.requests if request.lane >= 0 and not request.pull)
    return [mask_of(b"".join(request.body)) for request in pushed]


@pytest.mark.parametrize("status", FOREIGN)
def test_before_the_first_attach_a_refusal_in_all_formats_is_final(status: int) -> None:
    loop = Loop(STEADY, lambda request, now: Fate(status=status))
    loop.run(60 * SECOND)
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert (refused.status, refused.code) == (status, 0)
    assert [request.format for _, request in loop.requests] == [*BodyFormat]


@pytest.mark.parametrize("status", [200, 400, 403, 404, 406, 415, 501])
def test_where_bodies_pass_only_as_forms_all_are_sent_as_forms(status: int) -> None:
    loop = Loop(STEADY, lambda request, now: Fate() if request.format is BodyFormat.FORM else Fate(status=status))
    loop.queue.extend(data_packet(name) for name in range(5))
    loop.run(10 * SECOND)
    assert received(loop) == list(range(5))
    assert [request.format for _, request in loop.requests].count(BodyFormat.PLAIN) == 1
    assert loop.lanes.room(loop.now) == 64 * KIB - EXCHANGE_BYTES - 256


@pytest.mark.parametrize("status", [407, 413, 429, 500, 502, 503, 504])
def test_answers_that_do_not_concern_the_format_do_not_change_it(status: int) -> None:
    loop = Loop(STEADY, lambda request, now: Fate(status=status))
    loop.run(10 * SECOND)
    assert {request.format for _, request in loop.requests} == {BodyFormat.PLAIN}


def test_after_the_first_attach_a_form_is_tried_when_masks_do_not_help() -> None:
    loop = attached_loop()
    loop.fate = pushes_as(lambda request: Fate() if request.format is BodyFormat.FORM else Fate(status=403))
    loop.queue.append(data_packet(7))
    loop.run(10 * SECOND)
    assert received(loop) == [7]
    pushed = [request for _, request in loop.requests if request.lane >= 0 and not request.pull]
    assert [(request.format, mask_of(b"".join(request.body)) > 0) for request in pushed] == [
        (BodyFormat.PLAIN, False),
        (BodyFormat.PLAIN, True),
        (BodyFormat.FORM, True),
    ]
    loop.queue.append(data_packet(8))
    loop.run(11 * SECOND)
    assert received(loop) == [7, 8]
    assert loop.requests[-1][1].format is BodyFormat.FORM


def test_the_plain_format_is_used_again_where_forms_are_refused() -> None:
    passing = [BodyFormat.FORM]
    loop = Loop(STEADY, lambda request, now: Fate() if request.format is passing[0] else Fate(status=403))
    loop.run(SECOND)
    passing[0] = BodyFormat.PLAIN
    loop.queue.append(data_packet(1))
    loop.run(20 * SECOND)
    assert received(loop) == [1]
    assert loop.requests[-1][1].format is BodyFormat.PLAIN


def pushes_as(fate: Callable[[Request], Fate]) -> Callable[[Request, int], Fate]:
    """Give this fate to pushes; all other requests pass."""
    return lambda request, now: fate(request) if request.lane >= 0 and not request.pull else Fate()


@pytest.mark.parametrize("status", FOREIGN)
def test_after_the_first_attach_a_refused_body_is_repeated_with_a_mask(status: int) -> None:
    loop = attached_loop(packets=1)
    loop.lanes.set_pulling(False, loop.now)
    loop.fate = pushes(Fate(status=status), Fate(status=status))
    loop.run(10 * SECOND)
    assert received(loop) == [1]
    assert loop.told(AttachRefused) == loop.told(Detached) == []
    assert loop.told(BatchDone) == [BatchDone(1, ok=True)]
    first, second, third = masks(loop)
    assert first == 0
    assert 0 not in (second, third)


def test_a_body_that_is_always_refused_is_given_up_and_others_go_on() -> None:
    loop = attached_loop(packets=1)
    loop.fate = lambda request, now: Fate(status=403) if 1 in names(request) else Fate()
    loop.run(40 * MS)
    loop.queue.extend(data_packet(name) for name in range(2, 50))
    loop.run(20 * SECOND)
    assert received(loop) == list(range(2, 50))
    assert [event.token for event in loop.told(BatchDone) if isinstance(event, BatchDone) and not event.ok] == [1]
    assert len([request for _, request in loop.requests if 1 in names(request)]) == 8
    assert loop.told(AttachRefused) == []


@pytest.mark.parametrize("status", FOREIGN)
def test_a_refused_pull_is_repeated_until_it_works(status: int) -> None:
    loop = attached_loop()
    loop.fate = lambda request, now: Fate(status=status) if now < 5 * SECOND else Fate()
    loop.run(4 * SECOND)
    (troubled,) = loop.told(Troubled)
    assert isinstance(troubled, Troubled)
    assert str(status) in troubled.last
    loop.run(10 * SECOND)
    assert len(loop.told(Recovered)) == 1
    assert loop.told(AttachRefused) == loop.told(BatchDone) == []


def test_an_attach_after_the_first_is_repeated() -> None:
    loop = attached_loop()
    loop.relay.restart()
    loop.fate = lambda request, now: Fate(status=302) if request.lane < 0 and now < 5 * SECOND else Fate()
    loop.run(40 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(loop.told(AttachedEvent)) == 2


def answer_limits(loop: Loop) -> list[int]:
    """Return the answer limits of the requests that left, in order, without those of ATTACH."""
    messages = [decode_envelope(b"".join(request.body)) for _, request in loop.requests]
    return [message.answer_bytes_max for message in messages if isinstance(message, Exchange)]


@pytest.mark.parametrize("status", FOREIGN)
def test_an_exchange_that_is_refused_with_masks_asks_for_smaller_answers(status: int) -> None:
    """A proxy that limits answers refuses the same answer forever; the relay repeats as much of it as fits."""
    loop = attached_loop()
    loop.relay.give([data_frame(name, 1000) for name in range(600)])
    loop.fate = lambda request, now: Fate(too_large=Fate(status=status), answer_bytes_max=20 * KIB)
    loop.run(10 * SECOND)
    assert loop.delivered == list(range(600))
    assert loop.lanes.path.down.limit_bytes == 16 * KIB
    limits = answer_limits(loop)
    assert limits[:4] == [64 * KIB] * 4
    assert {4 * KIB, 32 * KIB, 16 * KIB} == set(limits[4:]) - {64 * KIB}
    assert loop.told(AttachRefused) == []


def test_while_nothing_passes_repeats_ask_for_4_kib_and_the_limit_stays() -> None:
    loop = attached_loop()
    loop.fate = lambda request, now: Fate(status=403)
    loop.run(20 * SECOND)
    assert loop.lanes.path.down.limit_bytes == 64 * KIB
    assert set(answer_limits(loop)) == {64 * KIB, 4 * KIB}


PAGE = Fate(status=200, body=b"<html><title>sign in</title>")


@pytest.mark.parametrize("fate", [Fate(status=302), PAGE], ids=["redirect", "page"])
def test_a_login_page_before_the_first_attach_is_final_without_wait(fate: Fate) -> None:
    loop = Loop(replace(STEADY, wait=False), lambda request, now: fate)
    loop.run(60 * SECOND)
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert (refused.status, refused.is_page, len(loop.requests)) == (fate.status, True, 4)  # in each format

    def until_signed_in(request: Request, now: int) -> Fate:
        return fate if now < 20 * SECOND else Fate()

    loop = Loop(replace(STEADY, wait=True), until_signed_in)
    loop.run(60 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(loop.told(AttachedEvent)) == 1
    (troubled,) = loop.told(Troubled)
    assert isinstance(troubled, Troubled)
    assert "it may be a login or block page" in troubled.last


@pytest.mark.parametrize("fate", [Fate(status=403), Fate(status=407), Fate(status=401)], ids=str)
def test_refusals_are_final_even_with_wait(fate: Fate) -> None:
    loop = Loop(replace(STEADY, wait=True), lambda request, now: fate)
    loop.run(60 * SECOND)
    assert len(loop.told(AttachRefused)) == 1


DEFINITE = [200, 204, 301, 302, 400, 401, 403, 404, 405, 406, 410, 421, 451, 501, 505, 511]
PASSING = [408, 413, 425, 429, 500, 502, 503, 504, 520, 530]


@pytest.mark.parametrize("status", DEFINITE)
def test_a_definite_answer_before_the_first_attach_is_final_without_wait(status: int) -> None:
    loop = Loop(replace(STEADY, wait=False), lambda request, now: Fate(status=status))
    loop.run(60 * SECOND)
    (refused,) = loop.told(AttachRefused)
    assert isinstance(refused, AttachRefused)
    assert (refused.status, refused.code) == (status, 0)
    assert [request.format for _, request in loop.requests] == [*BodyFormat]


@pytest.mark.parametrize("status", PASSING)
def test_an_answer_that_may_pass_is_a_failure_without_wait(status: int) -> None:
    loop = Loop(replace(STEADY, wait=False), lambda request, now: Fate(status=status) if now < 5 * SECOND else Fate())
    loop.run(40 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(loop.told(AttachedEvent)) == 1


@pytest.mark.parametrize("status", [200, 404, 405, 410, 501])
@pytest.mark.parametrize("wait", [None, True])
def test_with_wait_and_by_default_a_definite_answer_is_a_failure(status: int, wait: bool | None) -> None:
    loop = Loop(replace(STEADY, wait=wait), lambda request, now: Fate(status=status) if now < 5 * SECOND else Fate())
    loop.run(40 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(loop.told(AttachedEvent)) == 1


@pytest.mark.parametrize("status", [200, 404, 501])
def test_one_definite_answer_alone_is_not_final(status: int) -> None:
    """A single page may be an accident of a proxy that is being configured; the other format is tried at once."""
    config = replace(STEADY, wait=False)
    loop = Loop(config, lambda request, now: Fate() if request.format is BodyFormat.FORM else Fate(status=status))
    loop.run(10 * SECOND)
    assert len(loop.told(AttachedEvent)) == 1


@pytest.mark.parametrize("status", [200, 302, 404, 501])
def test_after_the_first_attach_nothing_is_final_without_wait(status: int) -> None:
    loop = Loop(replace(STEADY, wait=False))
    loop.run(SECOND)
    loop.relay.restart()
    loop.fate = lambda request, now: Fate(status=status) if now < 10 * SECOND else Fate()
    loop.run(40 * SECOND)
    assert loop.told(AttachRefused) == []
    assert len(loop.told(AttachedEvent)) == 2
