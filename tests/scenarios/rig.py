"""A relay, exits and clients as processes, as users run them; targets in the test's own process."""

import asyncio
import hashlib
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

from loadtests.harness.processes import Process, relay_command, says_event
from tests.servlet.rig import KEYS, TOKENS
from tunnel import Attachment, StreamReader, StreamWriter, attach
from tunnel_servlet.config import render_users
from tunnel_servlet.switch.config import SETTABLE, SwitchConfig

__all__ = [
    "MIB",
    "an_exit",
    "client",
    "echo_digest",
    "is_attached",
    "peak_resident_bytes",
    "python_client",
    "relay_process",
    "target",
]

MIB = 1 << 20
_CONFIG = """\
listen = ["127.0.0.1:{port}"]
exit = "{exits}"
[everyone]
connect = ["127.0.0.0/8:*"]
services = ["*"]
listen = ["*"]
[users.exits]
exit = true
[limits]
{limits}
"""
# A relay whose file may set limits that are fixed for operators.
_FREE = """
import sys
from tunnel_servlet import config
from tunnel_servlet.command.main import main
config.SETTABLE = (*config.SETTABLE, *{fixed})
sys.exit(main())
"""


def relay_process(
    directory: Path,
    port: int,
    *,
    exits: str = "none",
    before: tuple[str, ...] = (),
    more: tuple[str, ...] = (),
    **limits: Any,
) -> Process:
    """Return `tunnel-relay serve` with this configuration; `before` is a command that runs it, `more` has arguments."""
    lines = "\n".join(f"{name} = {value}" for name, value in limits.items())
    (directory / "relay.toml").write_text(_CONFIG.format(port=port, exits=exits, limits=lines))
    (directory / "tokens.toml").write_text(render_users(KEYS))
    arguments = ("serve", "-c", str(directory / "relay.toml"), *more)
    fixed = sorted({field.name for field in fields(SwitchConfig)}.intersection(limits).difference(SETTABLE))
    relay = [sys.executable, "-c", _FREE.format(fixed=fixed), *arguments] if fixed else relay_command(*arguments)
    command = [*before, *relay]
    return Process(command, ready=says_event("listening"))


def an_exit(port: int, *more: str) -> Process:
    """Return `tunnel-relay exit`, which attaches to the relay at that port and dials only this machine. `more` has
    arguments."""
    arguments = ("--relay", f"http://127.0.0.1:{port}", "--proxy", "", "--allow", "127.0.0.0/8:*", *more)
    return Process(relay_command("exit", *arguments), ready=is_attached, environment={"TUNNEL_TOKEN": TOKENS["exits"]})


def is_attached(line: str) -> bool:
    return line.startswith("attached to")


def python_client(program: str, port: int, *words: str, environment: Mapping[str, str] | None = None) -> Process:
    """Return a client program as a process; it prints a line that starts with `attached to` when it is ready."""
    command = [sys.executable, "-c", program, f"http://127.0.0.1:{port}", *words]
    return Process(command, ready=is_attached, environment={"TUNNEL_TOKEN": TOKENS["bob"], **(environment or {})})


def client(port: int, user: str = "bob", **options: Any) -> Attachment:
    """Return an attachment of this process."""
    defaults: dict[str, Any] = {"token": TOKENS[user], "proxy": None, "carrier": "poll", "attach_timeout": 40}
    return attach(f"http://127.0.0.1:{port}", **{**defaults, **options})


@asynccontextmanager
async def target(serve: Any) -> AsyncIterator[int]:
    """Start a TCP server; yield its port."""
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with server:
        yield server.sockets[0].getsockname()[1]


async def echo_digest(reader: StreamReader, writer: StreamWriter, size: int, progress: Any = None) -> None:
    """Send `size` bytes to an echo and compare the bytes that come back; await `progress(received)` after reads."""
    data = hashlib.shake_128(b"echo").digest(size)

    async def send() -> None:
        for start in range(0, size, 64 << 10):
            writer.write(data[start : start + (64 << 10)])
            await writer.drain()

    sending = asyncio.create_task(send())
    received = bytearray()
    try:
        while len(received) < size:
            part = await reader.read(256 << 10)
            assert part, "the stream ended early"
            received += part
            if progress is not None:
                await progress(len(received))
        await sending
    finally:
        sending.cancel()
    assert hashlib.sha256(received).digest() == hashlib.sha256(data).digest()


def peak_resident_bytes(pid: int) -> int:
    """Return the peak resident memory of a process."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024
