"""An exit in a process of its own, beside a relay with its inline exit, is stopped or killed: who dials afterwards."""

import asyncio
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, says_event
from tests.scenarios.rig import an_exit, client, relay_process, target
from tests.servlet.rig import until
from tests.support.loops import in_loop
from tunnel import Attachment

OPENS_S = 60.0  # well below the 75 s for which a connection waited that was handed to an exit without an answer


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):
        writer.write(b"hello")
        await writer.drain()
        await reader.read()
    writer.close()


async def greeted(attachment: Attachment, port: int, by: Process) -> None:
    """Open a connection to the target, which must greet, and which this process must have dialled."""
    before = said(by, "dialled")
    reader, writer = await attachment.open_connection("127.0.0.1", port, timeout=OPENS_S)
    assert await reader.readexactly(5) == b"hello"
    writer.transport.abort()
    await until(lambda: said(by, "dialled") > before)


def said(process: Process, event: str) -> int:
    """Return how many lines of the process's log have this event."""
    return sum(map(says_event(event), process.output.splitlines()))


@in_loop
async def test_24_an_exit_that_is_stopped_hands_over_to_the_inline_exit(tmp_path: Path) -> None:
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline") as relay,
            an_exit(port) as stopped,
            target(greet) as there,
            client(port) as attachment,
        ):
            await greeted(attachment, there, by=stopped)
            stopped.signal(signal.SIGTERM)
            assert await asyncio.to_thread(stopped.wait, OPENS_S) == 0
            await until(lambda: said(relay, "inline_exit"))
            await greeted(attachment, there, by=relay)
            stopped.start()
            await stopped.ready()
            await greeted(attachment, there, by=stopped)


@in_loop
async def test_24_an_exit_that_was_killed_holds_up_one_connection_and_no_other(tmp_path: Path) -> None:
    """The relay learns nothing of the end. The connection that it hands to the dead exit goes to the inline one."""
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline") as relay,
            an_exit(port) as killed,
            target(greet) as there,
            client(port) as attachment,
        ):
            await greeted(attachment, there, by=killed)
            killed.kill()
            for _ in range(3):
                await greeted(attachment, there, by=relay)
            assert said(relay, "exit_silent") == 1
            killed.start()
            await killed.ready()
            await greeted(attachment, there, by=killed)


@in_loop
async def test_24_the_client_of_an_exit_with_a_key_that_was_killed_learns_what_the_relay_waits_for(
    tmp_path: Path,
) -> None:
    """No other exit may dial the target in clear. So the connection waits, and ends when a new exit has come."""
    key, known = tmp_path / "exit.pem", tmp_path / "known_peers"
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline") as relay,
            an_exit(port, "--key", str(key)) as killed,
            target(greet) as there,
            client(port, known_peers=known) as attachment,
        ):
            heard: list[str] = []
            attachment.add_wait_listener(_Heard(heard))
            await greeted(attachment, there, by=killed)
            killed.kill()
            opening = asyncio.ensure_future(attachment.open_connection("127.0.0.1", there))
            await until(lambda: any(kept(why) for why in heard))
            assert heard[0].startswith("the exit has been silent for ")
            with pytest.raises(TimeoutError, match="no answer within 3 s: the exit has been silent for"):
                await attachment.open_connection("127.0.0.1", there, timeout=3)
            killed.start()
            await killed.ready()
            _, writer = await opening
            writer.transport.abort()
            assert said(relay, "dialled") == 0


def kept(why: str) -> bool:
    return "it encrypts, so its connection does not go to an exit in the relay's process" in why


class _Heard:
    def __init__(self, reasons: list[str]) -> None:
        self._reasons = reasons

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        self._reasons.append(why)
