"""All carriers, each with a relay to test it on and a loop to run in; and the building blocks of scenarios."""

import asyncio
import hashlib
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
import uvloop

from tests.support.http_relay import HttpTestRelay, LinkTestRelay, StreamTestRelay, WebSocketTestRelay
from tests.support.loops import run
from tests.support.relays import InProcessTestRelay, MemoryTestRelay, TestRelay
from tunnel import Attachment, StreamReader, StreamWriter, Transport

__all__ = [
    "CARRIERS",
    "MIB",
    "Counting",
    "ask",
    "echo",
    "end",
    "noise",
    "on_carriers",
    "on_every_carrier",
    "say_and_hear",
    "write_until_paused",
]

CARRIERS: dict[str, tuple[Callable[[], TestRelay], Callable[[], asyncio.AbstractEventLoop]]] = {
    "memory": (MemoryTestRelay, asyncio.new_event_loop),
    "memory with links": (InProcessTestRelay, asyncio.new_event_loop),
    "poll": (HttpTestRelay, asyncio.new_event_loop),
    "poll on uvloop": (HttpTestRelay, uvloop.new_event_loop),
    "stream": (StreamTestRelay, asyncio.new_event_loop),
    "stream on uvloop": (StreamTestRelay, uvloop.new_event_loop),
    "link": (LinkTestRelay, asyncio.new_event_loop),
    "link on uvloop": (LinkTestRelay, uvloop.new_event_loop),
    "websocket": (WebSocketTestRelay, asyncio.new_event_loop),
    "websocket on uvloop": (WebSocketTestRelay, uvloop.new_event_loop),
}
Scenario = Callable[[TestRelay], Coroutine[Any, Any, None]]
MIB = 1 << 20


def on_carriers(*names: str) -> Callable[[Scenario], Callable[[str], None]]:
    """Run a scenario once on each of these carriers."""

    def decorate(scenario: Scenario) -> Callable[[str], None]:
        @pytest.mark.parametrize("name", names)
        def test(name: str) -> None:
            make_relay, new_loop = CARRIERS[name]

            async def main() -> None:
                async with make_relay() as relay:
                    await scenario(relay)

            run(main(), new_loop)

        test.__name__ = test.__qualname__ = scenario.__name__
        return test

    return decorate


on_every_carrier = on_carriers(*CARRIERS)


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(MIB):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def say_and_hear(attachment: Attachment, name: str = "echo") -> tuple[StreamReader, StreamWriter]:
    """Open a connection to an echo service, and let it echo once."""
    reader, writer = await attachment.open_connection(name, timeout=20)
    await ask(reader, writer, b"hello")
    return reader, writer


async def ask(reader: StreamReader, writer: StreamWriter, data: bytes) -> None:
    writer.write(data)
    assert await reader.readexactly(len(data)) == data


async def end(writer: StreamWriter) -> None:
    writer.close()
    await writer.wait_closed()


def noise(size: int, seed: int = 0) -> bytes:
    return hashlib.shake_128(seed.to_bytes(4, "big")).digest(size)


class Counting(asyncio.Protocol):
    """Counts the bytes it receives, and records when it is asked to pause writing."""

    def __init__(self) -> None:
        self.size = 0
        self.heard = asyncio.Event()
        self.paused = asyncio.Event()
        self.resumed = asyncio.Event()
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.size += len(data)
        self.heard.set()

    def pause_writing(self) -> None:
        self.paused.set()

    def resume_writing(self) -> None:
        self.resumed.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        self.lost.set_result(exc)


async def write_until_paused(protocol: Counting) -> int:
    """Write until the transport asks the protocol to pause; return the number of bytes. Fails if it never asks."""
    size = 0
    while not protocol.paused.is_set():
        assert size < 64 * MIB, "the transport takes bytes without bound"
        protocol.transport.write(noise(MIB))
        size += MIB
        await asyncio.sleep(0)
    return size
