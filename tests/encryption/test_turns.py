"""Handshakes at an acceptor: users take turns, and none has too many that are unfinished."""

import asyncio
from collections import Counter

import pytest

from tests.carriers.harness import echo, end, say_and_hear
from tests.encryption.rig import key_file
from tests.support.http_relay import LinkTestRelay
from tests.support.loops import in_loop
from tests.support.relays import inside
from tunnel import ExitRequest, RefusedError
from tunnel.encryption.connection import EncryptedConnection
from tunnel.encryption.turns import HANDSHAKES_PER_ROUND, HandshakeTurns


@in_loop
async def test_two_users_a_burst_of_handshakes_never_holds_up_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    rounds: Counter[int] = Counter()
    begin, number = EncryptedConnection.begin, 0

    def counted(self: EncryptedConnection, client_hello: bytes, now: int) -> None:
        rounds[number] += 1
        begin(self, client_hello, now)

    async def count_rounds() -> None:
        nonlocal number
        while True:
            await asyncio.sleep(0)
            number += 1

    monkeypatch.setattr(EncryptedConnection, "begin", counted)
    async with (
        LinkTestRelay() as relay,
        relay.attach("ann", key=key_file()) as service,
        relay.attach("bob", encryption="require") as attacker,
        relay.attach("ann", encryption="require") as victim,
    ):
        await service.start_server(echo, "echo")
        counting = asyncio.ensure_future(count_rounds())
        burst = [asyncio.ensure_future(attacker.open_connection("echo")) for _ in range(200)]
        while not rounds:  # noqa: ASYNC110 - counts the turns of the event loop
            await asyncio.sleep(0)
        _, writer = await say_and_hear(victim)
        await end(writer)
        for _, each in await asyncio.gather(*burst):
            each.transport.abort()
        counting.cancel()
        assert max(rounds.values()) <= HANDSHAKES_PER_ROUND
        assert sum(rounds.values()) == 201
        assert inside(service)._encryption._turns._counts == {}


@in_loop
async def test_handshakes_count_from_connect_on_and_until_the_dial_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a user could let any number of dials end in the same moment."""
    monkeypatch.setattr("tunnel.encryption.turns.HANDSHAKES_PER_USER_MAX", 3)
    dialled, may_end = asyncio.Semaphore(0), asyncio.Event()

    async def dial(request: ExitRequest) -> None:
        dialled.release()
        await may_end.wait()
        raise ConnectionRefusedError("nothing listens")

    async with (
        LinkTestRelay() as relay,
        relay.attach("exit", exit_handler=dial, key=key_file()) as exit_,
        relay.attach("bob", encryption="require") as client,
    ):
        opening = [asyncio.ensure_future(client.open_connection("db", 1)) for _ in range(3)]
        for _ in opening:
            await dialled.acquire()
        with pytest.raises(RefusedError, match="too many TLS handshakes"):
            await client.open_connection("db", 1)
        may_end.set()
        for error in await asyncio.gather(*opening, return_exceptions=True):
            assert isinstance(error, RefusedError)
        assert inside(exit_)._encryption._turns._counts == {}


@in_loop
async def test_a_connection_that_ends_while_it_waits_leaves_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting = list[object]()
    monkeypatch.setattr(HandshakeTurns, "ask", lambda self, user, answer: waiting.append(answer))
    accepted = asyncio.Event()

    async def dial(request: ExitRequest) -> None:
        _, writer = request.accept_streams()
        writer.write(b"greeting")
        if request.target.port == 1:
            writer.transport.abort()
        else:
            writer.close()
        accepted.set()

    async with (
        LinkTestRelay() as relay,
        relay.attach("exit", exit_handler=dial, key=key_file()) as exit_,
        relay.attach("bob", encryption="require") as client,
    ):
        with pytest.raises((RefusedError, ConnectionError)):
            await client.open_connection("db", 1)
        accepted.clear()
        opening = asyncio.ensure_future(client.open_connection("db", 2))
        await accepted.wait()
        for answer in waiting:
            answer()  # type: ignore[operator]
        reader, writer = await opening
        assert await reader.read() == b"greeting"
        await end(writer)
        await inside(exit_)._empty.wait()
        assert inside(exit_)._encryption._turns._counts == {}
