"""Processes whose log is not read: a full pipe may cost log lines, and nothing else."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

import tunnel
from loadtests.harness.tree import python_path
from tests.servlet.rig import TOKENS, relay
from tests.support.loops import in_loop
from tunnel_servlet.command.main import main

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the size of a pipe can be set only on Linux")

PIPE_BYTES = 4096
REFUSALS = 50  # each makes a log line of more than 100 bytes; one user may make more such lines than this
CONFIG = """
listen = ["127.0.0.1:0"]
admin = "127.0.0.1:0"
[users.eve]
connect = ["127.0.0.1:1"]
[users.ann]
connect = ["127.0.0.0/8:*"]
"""


class Quiet:
    """A command of tunnel-relay whose standard error is a small pipe. Only `line` and `ended` read the pipe."""

    def __init__(self, process: asyncio.subprocess.Process, pipe: int) -> None:
        self.process = process
        self.read = b""
        self._pipe = pipe

    async def line(self, words: str) -> str:
        """Read until a whole line contains these words, and return it."""
        while True:
            for line in self.read.decode().splitlines()[: self.read.count(b"\n")]:
                if words in line:
                    self.read = self.read[self.read.index(line.encode()) + len(line) + 1 :]
                    return line
            assert await self._more(), f"the command ended without {words!r}: {self.read.decode()}"

    async def ended(self, *, reads: bool) -> int:
        """Wait for the end and return the exit code. Read the log meanwhile if `reads`."""
        if reads:
            while await self._more():
                pass
        return await self.process.wait()

    async def _more(self) -> bool:
        data = await asyncio.to_thread(os.read, self._pipe, PIPE_BYTES)
        self.read += data
        return bool(data)


@contextmanager
def pipe() -> Iterator[tuple[int, int]]:
    reading, writing = os.pipe()
    fcntl.fcntl(writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    try:
        yield reading, writing
    finally:
        os.close(reading)


async def start(reading: int, writing: int, *arguments: str, **environment: str) -> Quiet:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tunnel_servlet", *arguments),
        stderr=writing,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
    )
    os.close(writing)
    return Quiet(process, reading)


async def get(url: str) -> tuple[int, str]:
    async with aiohttp.ClientSession() as session, session.get(url) as response:
        return response.status, await response.text()


async def echo_server() -> asyncio.Server:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        writer.close()

    return await asyncio.start_server(echo, "127.0.0.1", 0)


async def is_served(attachment: tunnel.Attachment, port: int) -> bool:
    """Whether a new connection through the attachment works."""
    reader, writer = await attachment.open_connection("127.0.0.1", port, timeout=30)
    writer.write(b"hello")
    answer = await reader.read()
    writer.close()
    return answer == b"hello"


async def flood(attachment: tunnel.Attachment, port: int) -> None:
    """Open connections that are refused, and whose log lines fill the pipe."""

    async def fail() -> None:
        with pytest.raises((tunnel.RefusedError, tunnel.DeniedError)):
            await attachment.open_connection("127.0.0.1", port, timeout=30)

    await asyncio.gather(*(fail() for _ in range(REFUSALS)))


@pytest.fixture
def tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """Create relay.toml in the current directory; return the tokens of its users."""
    monkeypatch.chdir(tmp_path)
    Path("relay.toml").write_text(CONFIG)
    found = {}
    for user in ("eve", "ann"):
        assert main(["user", "add", user, "-c", "relay.toml", "--json"]) == 0
        found[user] = json.loads(capsys.readouterr().out)["token"]
    structlog.reset_defaults()
    return found


@pytest.mark.parametrize("reads", [False, True])
@in_loop
async def test_two_users_a_relay_whose_log_is_not_read_serves_and_ends(tokens: dict[str, str], reads: bool) -> None:
    with pipe() as ends:
        quiet = await start(*ends, "serve", "-c", "relay.toml")
        url, admin = [json.loads(await quiet.line("listening"))["url"] for _ in range(2)]
        echo = await echo_server()
        port = echo.sockets[0].getsockname()[1]
        options: dict[str, Any] = {"proxy": None, "carrier": "link"}
        async with (
            echo,
            tunnel.attach(url, token=tokens["eve"], **options) as eve,
            tunnel.attach(url, token=tokens["ann"], **options) as ann,
        ):
            await flood(eve, 2)
            assert await get(f"{admin}/livez") == (200, "live\n")
            assert await is_served(ann, port)
            status, page = await get(f"{admin}/metrics")
            assert status == 200
            assert "\ntunnel_log_lines_dropped_total 0.0\n" in page
        quiet.process.send_signal(signal.SIGTERM)
        assert await quiet.ended(reads=reads) == 0
        if reads:
            events = [json.loads(line)["event"] for line in quiet.read.decode().splitlines()]
            assert events.count("connect") == REFUSALS + 1
            assert events[-1] == "stopped"


@in_loop
async def test_two_users_an_exit_whose_log_is_not_read_serves_and_ends(tokens: dict[str, str]) -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        with pipe() as ends:
            command = ("exit", "--relay", url, "--allow", "127.0.0.1:*", "-c", "relay.toml")
            quiet = await start(*ends, *command, TUNNEL_TOKEN=TOKENS["exits"])
            await quiet.line("attached to")
            echo = await echo_server()
            port = echo.sockets[0].getsockname()[1]
            async with (
                echo,
                tunnel.attach(url, token=TOKENS["ann"], proxy=None, carrier="link") as eve,
                tunnel.attach(url, token=TOKENS["bob"], proxy=None, carrier="link") as bob,
            ):
                await flood(eve, 1)
                assert await is_served(bob, port)
            quiet.process.send_signal(signal.SIGTERM)
            assert await quiet.ended(reads=False) == 0
