"""A relay with an exit in its own process is killed and started again (PROTOCOL 6.1, 6.5).

The sockets of the exit die with the relay, so no connection through it can be resumed. Both applications must see a
reset: the target when the relay dies, the client as soon as the new relay listens. An end would look like a complete
stream, and a hang would last for the user timeout of 5 minutes.
"""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.scenarios.rig import client, relay_process, target
from tests.support.loops import in_loop
from tunnel import ResetError, StreamReader, StreamWriter

CHUNK = bytes(64 << 10)
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class Target:
    """A server that answers a greeting, then reads or writes forever. `outcome` is how its first connection ended."""

    def __init__(self, *, writes: bool) -> None:
        self.outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()
        self._writes = writes

    async def __call__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        try:
            while self._writes:
                writer.write(CHUNK)
                await writer.drain()
            while await reader.read(1 << 16):
                pass
            self._ended(b"")
        except ConnectionError as error:
            self._ended(error)
        writer.close()

    def _ended(self, how: BaseException | bytes) -> None:
        if not self.outcome.done():
            self.outcome.set_result(how)


async def send_for_ever(writer: StreamWriter) -> None:
    while True:
        writer.write(CHUNK)
        await writer.drain()


async def read_to_the_end(reader: StreamReader) -> None:
    while await reader.read(1 << 16):
        pass


@pytest.mark.parametrize("carrier", ["poll", "link"])
@pytest.mark.parametrize("use", ["idle", "upload", "download"])
@in_loop
async def test_a_killed_relay_resets_the_connections_of_its_inline_exit(tmp_path: Path, use: str, carrier: str) -> None:
    there = Target(writes=use == "download")
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline") as relay,
            target(there) as target_port,
            client(port, carrier=carrier) as attachment,
        ):
            reader, writer = await attachment.open_connection("127.0.0.1", target_port, timeout=40)
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            using = asyncio.ensure_future(send_for_ever(writer) if use == "upload" else read_to_the_end(reader))
            await asyncio.sleep(0.1 if use != "idle" else 0)  # bytes are in flight
            relay.kill()
            relay.start()
            await relay.ready()
            assert isinstance(await there.outcome, ConnectionResetError)
            with pytest.raises(ResetError):
                await using
            reader, writer = await attachment.open_connection("127.0.0.1", target_port, timeout=40)
            writer.write(b"again")
            assert await reader.readexactly(5) == b"again"
            writer.transport.abort()
