"""A peer may end a connection before our protocol is attached: the protocol learns of the end all the same."""

import asyncio

import pytest

from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel import ExitRequest


@pytest.mark.parametrize("how", ["eof", "close"])
def test_an_end_of_file_that_arrives_with_the_acceptance_is_delivered(how: str) -> None:
    async def accept_and_end(request: ExitRequest) -> None:
        reader, writer = request.accept_streams()
        if how == "eof":
            writer.write_eof()
            await reader.read()
        writer.close()

    @in_loop
    async def test() -> None:
        async with (
            MemoryTestRelay() as relay,
            relay.attach("exit", exit_handler=accept_and_end),
            relay.attach("ann") as client,
        ):
            async with asyncio.timeout(30):
                reader, writer = await client.open_connection("target", 1)
                assert await reader.read() == b""
            writer.close()

    test()
