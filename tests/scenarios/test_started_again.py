"""`tunnel expose` is killed and started again, and is started twice: who gets the connections to the service."""

import asyncio
import sys
from contextlib import suppress
from pathlib import Path

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, says_event
from tests.scenarios.rig import client, relay_process, target
from tests.servlet.rig import TOKENS
from tests.support.loops import in_loop
from tunnel import ResetError


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        writer.write(await reader.readexactly(1))
        await reader.read()
    writer.close()


def exposing(home: Path, port: int, there: int) -> Process:
    words = ["expose", "reports", f"127.0.0.1:{there}", "--relay", f"http://127.0.0.1:{port}", "--proxy", "none"]
    environment = {"TUNNEL_TOKEN": TOKENS["ann"], "XDG_CONFIG_HOME": str(home)}
    command = [sys.executable, "-m", "tunnel_client", *words]
    return Process(command, ready=says_event("listening"), environment=environment)


@in_loop
async def test_24_a_service_that_was_killed_gets_every_connection_when_it_is_started_again(tmp_path: Path) -> None:
    """None of them waits for the killed endpoint, which the relay would know for 5 more minutes."""
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port),
            target(greet) as there,
            client(port, linger=0.1) as attachment,  # its peers are killed before it closes
            exposing(tmp_path, port, there) as killed,
            exposing(tmp_path, port, there) as other,
        ):
            streams = [await attachment.open_connection("reports", timeout=60) for _ in range(2)]
            for reader, writer in streams:  # the two take turns
                writer.write(b"x")
                assert await reader.readexactly(1) == b"x"
            killed.kill()
            killed.start()
            await killed.ready()
            reading = [asyncio.ensure_future(reader.read()) for reader, _ in streams]
            (ended,), (goes_on,) = await asyncio.wait(reading, return_when=asyncio.FIRST_COMPLETED)
            assert isinstance(ended.exception(), ResetError)
            goes_on.cancel()
            assert other.is_running
            for _ in range(4):
                reader, writer = await attachment.open_connection("reports", timeout=60)
                writer.write(b"y")
                assert await reader.readexactly(1) == b"y"
                writer.transport.abort()
