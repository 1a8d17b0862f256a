"""An exit in a process of its own beside a relay with its inline exit: it gets every connection (PROTOCOL 6.9), so that
a relay that is killed costs no byte, although the relay has an inline exit, too."""

import asyncio
from contextlib import suppress
from pathlib import Path

from loadtests.harness.ports import hold_port
from tests.scenarios.rig import an_exit, client, echo_digest, relay_process, target
from tests.support.loops import in_loop

CONNECTIONS = 12


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@in_loop
async def test_23_no_connection_beside_an_inline_exit_is_lost_when_the_relay_is_killed(tmp_path: Path) -> None:
    """The connections that are open when the relay is killed, and those that are opened right after its restart."""
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline") as relay,
            an_exit(port),
            target(echo) as there,
            client(port) as attachment,
        ):
            before = [await attachment.open_connection("127.0.0.1", there, timeout=40) for _ in range(CONNECTIONS)]
            for reader, writer in before:
                await echo_digest(reader, writer, 10_000)
            relay.kill()
            relay.start()
            await relay.ready()
            opening = [attachment.open_connection("127.0.0.1", there, timeout=60) for _ in range(CONNECTIONS)]
            after = await asyncio.gather(*opening)
            relay.kill()  # a connection that the inline exit had taken would end here
            relay.start()
            await relay.ready()
            for reader, writer in [*before, *after]:
                await echo_digest(reader, writer, 10_000)
                writer.close()
                await writer.wait_closed()
