"""The command tunnel-relay in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

from loadtests.harness.tree import python_path

__all__ = ["Process", "process", "small_process"]


class Process:
    """A command that runs until it is ended. `lines`: its output, as far as it was read."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []

    async def line(self, words: str) -> str:
        """Return the next line on standard error that contains these words."""
        assert self.process.stderr is not None
        while line := (await self.process.stderr.readline()).decode():
            self.lines.append(line)
            if words in line:
                return line
        raise AssertionError(f"the command ended without {words!r}: {self.lines}")

    async def event(self, name: str) -> dict[str, Any]:
        """Return the next event of this name that the command writes to standard output (--json)."""
        assert self.process.stdout is not None
        while line := (await self.process.stdout.readline()).decode():
            self.lines.append(line)
            found: dict[str, Any] = json.loads(line)
            if found["event"] == name:
                return found
        raise AssertionError(f"the command ended without the event {name}: {self.lines}")

    async def urls(self) -> tuple[str, str]:
        """Read the URLs of the relay and of its admin listener from the log."""
        relay_url = json.loads(await self.line("listening"))["url"]
        return relay_url, json.loads(await self.line("listening"))["url"]

    async def ended(self) -> int:
        _, rest = await self.process.communicate()
        self.lines += rest.decode().splitlines()
        return await self.process.wait()


def process(*arguments: str, **environment: str) -> AbstractAsyncContextManager[Process]:
    """Start the command."""
    return _started([], arguments, environment)


def small_process(descriptors: int, *arguments: str, **environment: str) -> AbstractAsyncContextManager[Process]:
    """Start the command, which may open no more than this number of descriptors."""
    return _started(["sh", "-c", f'ulimit -n {descriptors}; exec "$@"', "sh"], arguments, environment)


@asynccontextmanager
async def _started(
    before: list[str], arguments: tuple[str, ...], environment: dict[str, str]
) -> AsyncIterator[Process]:
    started = await asyncio.create_subprocess_exec(
        *before,
        sys.executable,
        "-m",
        "tunnel_servlet",
        *arguments,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
    )
    try:
        yield Process(started)
    finally:
        if started.returncode is None:
            started.kill()
            await started.communicate()
