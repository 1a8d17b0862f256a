"""Bodies as text at the relay (PROTOCOL 7.19): what is understood, how it is answered, and what it may cost."""

from __future__ import annotations

import pytest

from tests.servlet.rig import Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import HEAD, STREAM, answer, close, connect
from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.wire import Answer, Attached, BodyFormat, Status, StatusCode, decode_envelope, unwrap_answer
from tunnel.wire.text_body import text_bytes, wrap_text
from tunnel_servlet.web import application

TEXTS = [BodyFormat.JSON, BodyFormat.TEXT]


@pytest.mark.parametrize("kind", TEXTS)
@pytest.mark.parametrize("parameters", ["", "; charset=utf-8"])
@in_loop
async def test_text_is_answered_with_text(kind: BodyFormat, parameters: str) -> None:
    async with relay() as running, Client(running) as client:
        for body, expected in ((attach_body(), Attached), (exchange_body(client.epoch, 1), Answer)):
            reply = await client.post(wrap_text([body]), Content_Type=kind.value + parameters)
            assert reply.status == 200
            assert isinstance(decode_envelope(unwrap_answer(reply.body)), expected)
            assert reply.body.isascii()
            assert reply.headers["Content-Type"] == kind.value
            assert reply.headers["Cache-Control"] == "no-store, no-transform"


@pytest.mark.parametrize(
    ("body", "headers", "code"),
    [
        (wrap_text([attach_body()])[:-1], {}, StatusCode.CORRUPT),
        (b"", {}, StatusCode.CORRUPT),
        (wrap_text([attach_body()]), {"Authorization": "Bearer no"}, StatusCode.NOT_AUTHORISED),
        (wrap_text([attach_body()]), {"Content_Encoding": "gzip"}, StatusCode.MALFORMED),
        (wrap_text([b"no envelope"]), {}, StatusCode.CORRUPT),
    ],
)
@in_loop
async def test_text_is_refused_with_text(body: bytes, headers: dict[str, str], code: StatusCode) -> None:
    async with relay() as running, Client(running) as client:
        reply = await client.post(body, Content_Type="application/json", **headers)
        message = decode_envelope(unwrap_answer(reply.body))
        assert isinstance(message, Status)
        assert message.code is code
        assert reply.headers["Content-Type"] == "application/json"
        assert reply.body.isascii()


@in_loop
async def test_a_body_as_text_may_hold_as_much_as_a_plain_one() -> None:
    limit = 1 << 16
    async with relay(settings(switch={"body_bytes_max": limit})) as running, Client(running) as client:
        for size, status in ((text_bytes(limit) + 1, 413), (text_bytes(limit), 400)):
            reply = await client.post(bytes(size), Content_Type="text/plain")
            assert reply.status == status
        assert (await client.post(wrap_text([bytes(limit)]), Content_Type="text/plain")).status == 400


@in_loop
async def test_a_pull_as_text_gets_one_envelope_in_place_of_a_stream() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        pull = exchange_body(client.epoch, 1, **STREAM)
        reply = await client.post(wrap_text([pull]), Content_Type="application/json")
        message = decode_envelope(unwrap_answer(reply.body))
        assert isinstance(message, Answer)
        assert (message.goes_on, len(message.data)) == (True, 0)
        assert not running.relay.host.streams
        again = await client.post(exchange_body(client.epoch, 2, serial_received=message.serial, hold_ms=0))
        assert isinstance(again.message, Answer)


@in_loop
async def test_two_users_unfinished_text_of_one_leaves_room_for_the_other() -> None:
    """Text is charged with its own size while it comes, which is larger than that of the body in it."""
    head = HEAD.replace(b"application/octet-stream", b"text/plain")
    assert head != HEAD
    limits = {"waiting_bytes_max": 3000}
    async with (
        relay(settings(limits=limits, switch={"body_bytes_max": 1600})) as running,
        Client(running, "bob") as victim,
    ):
        _, writer = await connect(running)
        writer.write(head + b"Content-Length: 1400\r\n\r\n{")
        await until(lambda: running.connections.held_bytes == 1400)
        other_reader, other = await connect(running)
        other.write(head + b"Content-Length: 700\r\n\r\n{")
        status, body = await answer(other_reader)
        message = decode_envelope(unwrap_answer(body))
        assert isinstance(message, Status)
        assert (status, message.code) == (503, StatusCode.BUSY)
        assert isinstance(await victim.attach(3), Attached)
        await close(other)
        await close(writer)
        await until(lambda: running.connections.held_bytes == 0)


@pytest.mark.parametrize("part", ["unwrap_body", "wrap_answer"])
@in_loop
async def test_two_users_the_time_for_text_is_charged_to_the_user_who_sent_it(
    part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay() as running, Client(running) as client, Client(running, "bob") as victim:
        meter = running.relay.host.turns.meter = FakeMeter()
        await client.attach()
        usual = getattr(application, part)

        def costly(*values: object) -> object:
            meter.seconds += 10.0
            return usual(*values)

        monkeypatch.setattr(application, part, costly)
        await client.post(wrap_text([exchange_body(client.epoch, 1)]), Content_Type="text/plain")
        assert running.relay.host.turns.is_stopped("ann")
        assert not running.relay.host.turns.is_stopped("bob")
        assert isinstance(await victim.attach(3), Attached)
