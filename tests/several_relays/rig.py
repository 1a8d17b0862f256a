"""What the tests of several relays share: relays with exits, and attachments to all of them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial

from tests.support.loops import until
from tests.support.relays import Fault, MemoryTestRelay, TestRelay, authorise, inside
from tunnel import Attachment, RejectReason, StreamReader, StreamWriter
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.attachment import endpoint_of
from tunnel.ground.unused import let_go
from tunnel.several_relays import SeveralRelays
from tunnel.streams.listener import ExitHandler, ExitRequest
from tunnel.traces.record import TraceSink
from tunnel.wire import Status, StatusCode, encode_envelope
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.host import SwitchHost

__all__ = ["AWAY", "DENIED", "Exit", "Ruled", "Silent", "at", "greeting", "relays", "several", "until_answers"]

AWAY = Fault(status=503)
DENIED = Fault(status=403, body=b"".join(encode_envelope(Status(StatusCode.DENIED, text="revoked"))))


class Ruled(MemoryTestRelay):
    """A relay whose rules may change: who may listen under `names`."""

    names = frozenset({"reports"})

    def make_core(self, config: SwitchConfig) -> SwitchHost:
        return SwitchHost(config, authorise, may_listen=lambda user, name: name in self.names)


class Exit:
    """An exit handler that greets with its own text, then echoes."""

    def __init__(self, text: bytes) -> None:
        self.text = text

    async def __call__(self, request: ExitRequest) -> None:
        if request.target.host == "closed":
            request.refuse(RejectReason.REFUSED, "closed")
            return
        await self.serve(*request.accept_streams())

    async def serve(self, reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(self.text)
        while data := await reader.read(100):
            writer.write(data)
        writer.close()


class Silent(Exit):
    """An exit that never answers."""

    def __init__(self) -> None:
        super().__init__(b"")

    async def __call__(self, request: ExitRequest) -> None:
        await asyncio.Event().wait()


def at(
    *relays: TestRelay,
    user: str = "bob",
    exit_handler: ExitHandler | None = None,
    attach_timeout: float | None = 20,
    same_users: bool = False,
    linger: float = 0.1,
    trace: TraceSink | None = None,
) -> Attachment:
    """Make an attachment to several relays, called r0, r1 and so on."""

    def make() -> SeveralRelays:
        def made(one_of: TestRelay) -> AttachedEndpoint:
            alone = one_of.attach(user, exit_handler=exit_handler, linger=linger, attach_timeout=None, trace=trace)
            let_go(alone)
            return inside(alone)

        endpoints = [(f"r{number}", partial(made, one_of)) for number, one_of in enumerate(relays)]
        everywhere = exit_handler is not None
        return SeveralRelays(
            endpoints,
            sits_everywhere=everywhere,
            attach_timeout=attach_timeout,
            rate_limit=None,
            same_users=same_users,
        )

    return Attachment(make)


@asynccontextmanager
async def relays(*exits: bytes) -> AsyncIterator[list[MemoryTestRelay]]:
    """Run a relay for each text; those whose text is not empty have an exit that greets with it."""
    async with AsyncExitStack() as stack:
        found = [await stack.enter_async_context(MemoryTestRelay()) for _ in exits]
        for one, text in zip(found, exits, strict=True):
            if text:
                await stack.enter_async_context(one.attach("exit", exit_handler=Exit(text), linger=0.1))
        yield found


def several(attachment: Attachment) -> SeveralRelays:
    """Return the endpoints behind an attachment."""
    found = endpoint_of(attachment)
    assert isinstance(found, SeveralRelays)
    return found


async def greeting(attachment: Attachment, host: str = "db", port: int | None = 5432) -> bytes:
    reader, writer = await attachment.open_connection(host, port)
    found = await reader.readexactly(3)
    writer.transport.abort()
    return found


async def until_answers(attachment: Attachment, *answer: bool) -> None:
    """Wait until exactly these relays answer."""
    await until(lambda: tuple(relay.attached for relay in attachment.stats().relays) == answer)
