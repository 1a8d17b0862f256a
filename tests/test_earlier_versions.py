"""Endpoints and relays of before meet what has been added since, and the reverse."""

import errno

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import ExitRequest, RefusedError, RejectReason
from tunnel.core import attachment_options
from tunnel.core.connection import handshake
from tunnel_servlet.switch.routes import openings


async def refusal_without_an_exit() -> RefusedError:
    """Return the error of an endpoint whose relay has no exit."""
    async with MemoryTestRelay() as relay, relay.attach("bob", linger=0.1) as client:
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("db", 5432)
        return refused.value


@in_loop
async def test_6_9_a_missing_exit_has_a_reason_of_its_own() -> None:
    error = await refusal_without_an_exit()
    assert (error.reason, error.errno) == (RejectReason.NO_EXIT, errno.EHOSTUNREACH)
    assert str(error) == "db:5432: no exit is attached: start `tunnel-relay exit`, or see why it is away"


@in_loop
async def test_6_9_an_endpoint_of_before_takes_a_missing_exit_for_a_refusal_of_the_target(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known = frozenset(int(reason) for reason in RejectReason if reason is not RejectReason.NO_EXIT)
    monkeypatch.setattr(handshake, "_KNOWN_REFUSALS", known)
    error = await refusal_without_an_exit()
    assert (error.reason, error.said) == (RejectReason.REFUSED, "no exit is attached")


@in_loop
async def test_6_9_a_relay_of_before_says_that_the_target_is_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(openings, "_NO_EXIT", (RejectReason.UNREACHABLE, "no exit is attached"))
    error = await refusal_without_an_exit()
    assert (error.reason, error.said) == (RejectReason.UNREACHABLE, "no exit is attached")


async def trouble_while_draining(*, tells: bool) -> str:
    """Return what an attachment shows while its relay drains, and see that its connection goes on there and later."""
    async with (
        MemoryTestRelay() as relay,
        relay.attach("exit", exit_handler=echo, linger=0.1),
        relay.attach("bob", linger=0.1) as client,
    ):
        reader, writer = await client.open_connection("db", 5432)
        steps = relay.core.drain()
        for _ in steps if tells else ():
            pass
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("db", 5432)
        assert refused.value.reason is RejectReason.SHUTTING_DOWN
        shown = client.stats().trouble
        writer.write(b"here")
        assert await reader.readexactly(4) == b"here"
        relay.restart()
        writer.write(b"there")
        assert await reader.readexactly(5) == b"there"
        assert client.stats().trouble == ""
        return shown


async def echo(request: ExitRequest) -> None:
    reader, writer = request.accept_streams()
    while data := await reader.read(100):
        writer.write(data)


@in_loop
async def test_9_9_an_attachment_shows_that_its_relay_drains() -> None:
    shown = await trouble_while_draining(tells=True)
    assert shown == "the relay is about to stop: it takes no new connections until it runs again; open ones go on"


@in_loop
async def test_9_9_a_relay_of_before_says_nothing_and_refuses() -> None:
    assert await trouble_while_draining(tells=False) == ""


@in_loop
async def test_9_9_an_endpoint_of_before_ignores_that_its_relay_drains(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attachment_options, "_UNASKED", -1)
    assert await trouble_while_draining(tells=True) == ""
