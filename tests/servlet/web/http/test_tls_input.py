"""TLS costs the relay processor time: each handshake and each record has a payer, and payers take turns."""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import uvloop

from tests.servlet.rig import attach_body, relay, settings, until
from tests.servlet.web.rig import HEAD, certificates, files
from tests.support.loops import run
from tunnel.turns.shares import TURN_US
from tunnel_servlet.web.http.payers import UNAUTHENTICATED
from tunnel_servlet.web.running import RunningRelay

__all__ = ["certificates"]

pytestmark = pytest.mark.real("openssl")

LOOPS = [uvloop.new_event_loop, asyncio.new_event_loop]
COST_US = 10_000  # of each piece of input, instead of what a meter would measure
CLIENTS = 12
RECORDS = 2000


@asynccontextmanager
async def costly_relay(certificates: Path, cost_us: int = COST_US) -> AsyncIterator[RunningRelay]:
    """Run a relay with TLS at which each piece of input costs this much."""
    async with relay(settings(tls=files(certificates))) as running:
        running.relay.host.turns.meter.since = lambda start: cost_us / 1e6  # type: ignore[method-assign]
        yield running


class Hand:
    """A client that moves the bytes of TLS by itself."""

    def __init__(self, running: RunningRelay, certificates: Path, source: str = "127.0.0.2") -> None:
        address = running.addresses[0]
        self.socket = socket.create_connection((address.host, address.port), source_address=(source, 0))
        self.socket.setblocking(False)
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        context = ssl.create_default_context(cafile=certificates / "ca.pem")
        self.tls = context.wrap_bio(self._in, self._out, server_hostname="127.0.0.1")

    def step(self) -> bytes:
        """Go on with the handshake, and return what the client sends next."""
        with suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self._out.read()

    async def receive(self) -> bytes:
        """Wait for bytes of the relay, and take them in. Return them; b"" is the end."""
        data = await asyncio.get_running_loop().sock_recv(self.socket, 1 << 16)
        self._in.write(data)
        return data

    async def shake_hands(self) -> bytes:
        """Return the last flight of the client, which is not sent yet."""
        self.socket.send(self.step())
        while True:
            assert await self.receive()
            if last := self.step():
                return last

    async def answer(self) -> bytes:
        """Return the first bytes of the answer."""
        while True:
            try:
                return self.tls.read(1 << 16)
            except ssl.SSLWantReadError:
                assert await self.receive()

    def encrypted(self, data: bytes) -> bytes:
        self.tls.write(data)
        return self._out.read()


@pytest.mark.parametrize("new_loop", LOOPS)
def test_two_users_handshakes_of_strangers_take_turns(
    new_loop: type[asyncio.AbstractEventLoop], certificates: Path
) -> None:
    """All clients send a ClientHello at once. In each turn of the event loop, the relay handles one."""

    async def scenario() -> None:
        async with costly_relay(certificates) as running:
            turns = running.relay.host.turns
            hands = [Hand(running, certificates) for _ in range(CLIENTS)]
            await until(lambda: turns.inputs == CLIENTS)
            for hand in hands:
                hand.socket.send(hand.step())
            for hand in hands:
                assert await hand.receive()
                hand.socket.close()
            await until(lambda: not running.connections.total)
            assert COST_US <= turns.peak_us < 2 * COST_US
            assert turns.inputs == 0

    run(scenario(), new_loop, deadline_s=60)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_two_users_a_user_takes_over_what_the_handshake_has_cost(
    new_loop: type[asyncio.AbstractEventLoop], certificates: Path
) -> None:
    """The first request comes in one piece with the end of the handshake."""

    async def scenario() -> None:
        async with costly_relay(certificates) as running:
            turns = running.relay.host.turns
            moved: list[tuple[str, str, float]] = []
            turns.move = lambda *what: moved.append(what)  # type: ignore[method-assign]
            hand = Hand(running, certificates)
            last = await hand.shake_hands()
            body = attach_body()
            head = HEAD + f"Content-Length: {len(body)}\r\n\r\n".encode()
            hand.socket.send(last + hand.encrypted(head + body))
            assert b" 200 " in await hand.answer()
            hand.socket.close()
            await until(lambda: not running.connections.total)
            [(payer, user, spent_us)] = moved
            assert (payer, user) == (UNAUTHENTICATED, "ann")
            assert spent_us >= 4 * COST_US  # two pieces of TLS, the new connection, the request

    run(scenario(), new_loop, deadline_s=60)


@pytest.mark.parametrize("new_loop", LOOPS)
def test_two_users_records_of_one_byte_are_charged_and_take_turns(
    new_loop: type[asyncio.AbstractEventLoop], certificates: Path
) -> None:
    """The body of a request comes in records of one byte, all at once."""

    async def scenario() -> None:
        async with costly_relay(certificates, 0) as running:  # only what has a fixed price costs anything
            turns = running.relay.host.turns
            hand = Hand(running, certificates)
            last = await hand.shake_hands()
            head = hand.encrypted(HEAD + f"Content-Length: {RECORDS}\r\n\r\n".encode())
            records = b"".join(hand.encrypted(b"a") for _ in range(RECORDS))
            await asyncio.get_running_loop().sock_sendall(hand.socket, last + head + records)
            assert b" 400 " in await hand.answer()  # no envelope
            hand.socket.close()
            await until(lambda: not running.connections.total)
            assert TURN_US < turns.peak_us < 2 * TURN_US
            assert turns.inputs == 0

    run(scenario(), new_loop, deadline_s=60)


def test_a_client_that_goes_at_the_end_of_its_handshake_is_an_ordinary_failure(
    certificates: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The event loop then returns no transport; nothing but a line of the log comes of it."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        start_tls = loop.start_tls

        async def lose(raw: asyncio.WriteTransport, *rest: Any, **options: Any) -> None:
            await start_tls(raw, *rest, **options)
            raw.abort()

        loop.start_tls = lose  # type: ignore[method-assign, assignment]
        async with relay(settings(tls=files(certificates))) as running:
            client = Hand(running, certificates)
            with client.socket:
                client.socket.send(await client.shake_hands())
                with suppress(ConnectionResetError):
                    while await client.receive():
                        pass
            await until(lambda: not running.connections.total)

    run(main(), asyncio.new_event_loop)
    output = capsys.readouterr()
    assert "no_tls_handshake" in output.out + output.err
    assert "the client has gone" in output.out + output.err
