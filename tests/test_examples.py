"""The programs in examples/ that use the library run as they are, as processes of their own."""

import asyncio
import os
import sys

import tunnel
from loadtests.harness.relays import RelayProcess
from loadtests.harness.tree import ROOT, python_path
from tests.support.loops import in_loop

DEADLINE_S = 60.0  # only a hanging test reaches it


async def answer(reader: tunnel.StreamReader, writer: tunnel.StreamWriter) -> None:
    """Answer each line, as a service, with the same line in capitals."""
    while line := await reader.readline():
        writer.write(line.upper())
    writer.close()


class Watching:
    """examples/watch.py in a process, which reads the lines that the test writes."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.process = process
        self._in, self._out = process.stdin, process.stdout

    def say(self, line: str) -> None:
        self._in.write(f"{line}\n".encode())

    def end(self) -> None:
        self._in.close()

    async def shows(self, start: str) -> str:
        """Wait for a line of output that begins so; skip the lines before it."""
        while line := (await self._out.readline()).decode().rstrip():
            if line.startswith(start):
                return line
        raise AssertionError(f"the program ended without a line {start!r}")


@in_loop
async def test_watch_tells_of_a_relay_that_was_killed_and_of_its_return() -> None:
    with RelayProcess() as relay:
        environment = {"PYTHONPATH": python_path(), "PYTHONWARNINGS": "error", "TUNNEL_TOKEN": relay.tokens["client"]}
        async with (
            asyncio.timeout(DEADLINE_S),
            tunnel.attach(relay.url, token=relay.tokens["client"], proxy=None) as services,
        ):
            await services.start_server(answer, "reports")
            program = Watching(
                await asyncio.create_subprocess_exec(
                    *(sys.executable, str(ROOT / "examples" / "watch.py"), relay.url, "reports"),
                    stdin=asyncio.subprocess.PIPE,
                    stdout=asyncio.subprocess.PIPE,
                    env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
                    | environment,
                )
            )
            program.say("before")
            assert await program.shows("answer") == "answer: BEFORE"
            await relay.replace()
            assert await program.shows("disconnected: ")
            assert await program.shows("reconnected") == "reconnected"
            program.say("after")
            assert await program.shows("answer") == "answer: AFTER"
            program.end()
            counts = await program.shows("")
            assert await program.process.wait() == 0
    filled, batches, written = (int(word) for word in counts.split() if word.isdigit())
    assert 0 < batches < filled <= written
