"""`tunnel up` within the test's own event loop, through a real relay: a file, the supervisor, and what it said."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from loadtests.harness.ports import hold_port
from tests.servlet.rig import TOKENS, relay, settings
from tunnel_client.cli.main import make_parser
from tunnel_client.cli.up.file import ReadFile, read_up_file
from tunnel_client.cli.up.keeper import Keeper, State
from tunnel_client.cli.up.relay_choice import chosen_settings
from tunnel_client.cli.up.supervisor import Supervisor
from tunnel_client.settings import RelaySettings
from tunnel_servlet.web.running import RunningRelay

__all__ = ["LOOPBACK", "UpRig", "ask", "free_port", "free_ports", "open_up", "private"]

LOOPBACK = "127.0.0.1"
_WAIT_S = 60.0

_held = ExitStack()  # ports, as long as this process lives: a few dozen descriptors


class UpRig:
    """A supervisor, which serves the entries of a file at a relay."""

    supervisor: Supervisor

    def __init__(self, path: Path, running: RunningRelay, url: str = "", proxy: str = "") -> None:
        self.path = path
        self.running = running
        self.said: list[tuple[str, str]] = []  # event, text
        self._news = asyncio.Event()
        url = url or f"http://{running.addresses[0]}"
        proxy = proxy or 'proxy = "none"'
        self._relay = f'[relay]\nurl = "{url}"\n{proxy}\ntoken-file = "token"\n'
        private(path.parent / "token", TOKENS["ann"])
        self.arguments: argparse.Namespace = make_parser(["up"]).parse_args(["up", "-c", str(path)])

    def write(self, entries: str, more: str = "") -> None:
        """Write the file, with these lines for the relay and these entries."""
        new = self.path.with_suffix(".new")
        new.write_text(f"{self._relay}{more}\n{entries}")
        new.replace(self.path)

    def load(self) -> tuple[ReadFile, RelaySettings]:
        read = read_up_file(self.path)
        return read, chosen_settings(read, self.arguments)

    def say(self, event: str, text: str, **fields: Any) -> None:
        self.said.append((event, text))
        self._news.set()

    def keeper(self, name: str) -> Keeper:
        return self.supervisor.keepers[name]

    async def reload(self, entries: str, more: str = "") -> None:
        """Write the file and let the supervisor read it, without waiting for its next check of the files."""
        self.write(entries, more)
        self.supervisor._watch.look()
        while self.supervisor._tasks:
            await asyncio.gather(*self.supervisor._tasks)

    async def event(self, name: str, text: str = "") -> str:
        """Wait until this event has been said, and return its text. Forget it, and all before it."""
        async with asyncio.timeout(_WAIT_S):
            while True:
                for number, (event, said) in enumerate(self.said):
                    if event == name and text in said:
                        del self.said[: number + 1]
                        return said
                self._news.clear()
                await self._news.wait()

    async def serves(self, *names: str) -> None:
        """Wait until these entries are served."""
        async with asyncio.timeout(_WAIT_S):
            while not all(self.keeper(name).state is State.SERVING for name in names):
                self._news.clear()
                await self._news.wait()


@asynccontextmanager
async def open_up(
    directory: Path,
    entries: str,
    more: str = "",
    config: dict[str, Any] | None = None,
    *,
    url: str = "",
    proxy: str = "",
) -> AsyncIterator[UpRig]:
    """Run the supervisor while the context lasts. `url` is that of a gateway before the relay, `proxy` the line of the
    file about the proxy."""
    running = relay(settings(exit="inline", switch={"settle_us": 1}, **(config or {})))
    async with running:
        rig = UpRig(directory / "tunnel.toml", running, url, proxy)
        rig.write(entries, more)
        rig.supervisor = Supervisor(*rig.load(), rig.load, rig.say)
        task = asyncio.create_task(rig.supervisor.run())
        try:
            yield rig
            assert not task.done()
        finally:
            task.cancel()
            with suppress(asyncio.CancelledError):
                await task


async def ask(port: int, words: bytes) -> bytes:
    """Send words through a local port, and return the whole answer."""
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(words)
    writer.write_eof()
    heard = await reader.read(-1)
    writer.close()
    return heard


def free_port() -> int:
    """Return a port that nothing else can have as long as this process lives."""
    return _held.enter_context(hold_port())


def free_ports(count: int) -> list[int]:
    """Return different ports that nothing else can have."""
    return [free_port() for _ in range(count)]


def private(path: Path, text: str) -> Path:
    """Write a file that only its owner can read."""
    path.touch(0o600)
    path.write_text(text)
    return path
