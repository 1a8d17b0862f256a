"""If events of a connection come before it has a protocol, the protocol gets them when it is attached."""

import asyncio
from collections.abc import Callable

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import Attachment, LostError, Transport


class Ending(asyncio.Protocol):
    """Ends the connection as soon as it is made."""

    def __init__(self, end: Callable[[Transport], None]) -> None:
        self._end = end

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, Transport)
        self._end(transport)


class RecordingProtocol(asyncio.Protocol):
    """Records the calls that it receives."""

    def __init__(self) -> None:
        self.told: list[str] = []
        self.lost: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.told.append("made")

    def eof_received(self) -> bool:
        self.told.append("eof")
        return False

    def connection_lost(self, exc: BaseException | None) -> None:
        self.told.append("lost")
        self.lost.set_result(exc)


async def late(client: Attachment, seen: Callable[[Transport], object]) -> RecordingProtocol:
    """Connect, wait until `seen` holds, and only then attach a protocol."""
    made = await client._endpoint.connect("ending", None, None)
    while not seen(made.transport):  # noqa: ASYNC110 - nothing signals this
        await asyncio.sleep(0)
    protocol = RecordingProtocol()
    made.begin(protocol)
    await protocol.lost
    return protocol


@in_loop
async def test_an_end_of_file_before_the_protocol_is_not_lost() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.create_server(lambda: Ending(Transport.write_eof), "ending")
        protocol = await late(client, lambda transport: transport._reading.is_finished)
        assert protocol.told == ["made", "eof", "lost"]
        assert protocol.lost.result() is None


@in_loop
async def test_a_reset_before_the_protocol_is_not_lost() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        await service.create_server(lambda: Ending(Transport.abort), "ending")
        protocol = await late(client, lambda transport: transport._state.over)
        assert protocol.told == ["made", "lost"]
        with pytest.raises(LostError):
            raise protocol.lost.result() or AssertionError
