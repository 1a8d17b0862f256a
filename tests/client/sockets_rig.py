"""A relay in a thread for tests of blocking sockets, with an exit that knows a few names; and pairs of sockets."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import http.server
import logging
import os
import select
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import structlog

from loadtests.harness.tree import python_path
from tests.encryption.rig import key_file
from tests.servlet import rig
from tunnel import StreamReader, StreamWriter, memory_attach
from tunnel_client import RelaySettings, Runtime, TunnelSocket, create_connection
from tunnel_servlet.access.addresses import IPAddress
from tunnel_servlet.access.grants import EXIT_USER
from tunnel_servlet.exit.dialer import Dialer

__all__ = [
    "DEADLINE_S",
    "KINDS",
    "NAMES",
    "ROOT",
    "Hello",
    "RelayThread",
    "beside",
    "fill",
    "pair",
    "receive",
    "relay_thread",
    "run_python",
]

DEADLINE_S = 60.0  # only a hanging test reaches it
_RESOLVER_S = 2.0  # longer than any timeout of a test that asks for a name without an answer
# The names that the exit resolves; except for the first, they exist nowhere else.
NAMES = {"localhost": "127.0.0.1", "db.internal": "127.0.0.1", "other.internal": "127.0.0.2"}
KINDS = ("plain", "tunnel", "accepted")
ROOT = Path(__file__).parent.parent.parent


class RelayThread:
    """A relay in a thread. A client needs its `url` and `token`. With `encrypted`, the exit and the service require
    encryption from end to end."""

    def __init__(self, *, encrypted: bool = False) -> None:
        self.url = ""
        self._options: dict[str, Any] = {"encryption": "require", "key": key_file()} if encrypted else {}
        self.token = rig.TOKENS["ann"]
        self.asked: list[str] = []  # names that the exit had to resolve
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._log: dict[str, Any] = {}
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="test-relay")

    @property
    def settings(self) -> RelaySettings:
        return RelaySettings(self.url, token=self.token, proxy=None)

    @property
    def environment(self) -> dict[str, str]:
        """The environment variables for a process that uses this relay."""
        return {
            **{name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
            "TUNNEL_RELAY": self.url,
            "TUNNEL_TOKEN": self.token,
            "PYTHONPATH": python_path(),
            "PYTHONWARNINGS": "error",
        }

    def start(self) -> None:
        # Logs of another thread would go to the file that the last test configured, which may be closed.
        self._log = structlog.get_config()
        structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
        self._thread.start()
        self._started.wait()
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        """Stop at once; harmless the second time."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive()
        structlog.configure(**self._log)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            self._failure = error
            self._started.set()

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        async with rig.relay() as running:
            dialer = Dialer(running.relay.grants.rules_of, resolve=self._resolve)
            host = running.relay.host
            async with (
                memory_attach(host, user=EXIT_USER, name="inline", exit_handler=dialer, linger=1.0, **self._options),
                memory_attach(host, user="bob", linger=1.0, **self._options) as services,
            ):
                await services.start_server(_echo, "reports")
                self.url = f"http://{running.addresses[0]}"
                self._started.set()
                await self._stop.wait()
                dialer.abort()

    async def _resolve(self, host: str, port: int) -> list[IPAddress]:
        self.asked.append(host)
        if host == "never.internal":
            with contextlib.suppress(TimeoutError):  # a resolver gives up after a time
                async with asyncio.timeout(_RESOLVER_S):
                    await self._stop.wait()
        return [ip_address(NAMES[host])] if host in NAMES else []


async def _echo(reader: StreamReader, writer: StreamWriter) -> None:
    """The service "reports"."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@contextlib.contextmanager
def relay_thread(*, encrypted: bool = False) -> Iterator[RelayThread]:
    """A relay, stopped at the end."""
    relay = RelayThread(encrypted=encrypted)
    relay.start()
    try:
        yield relay
    finally:
        relay.stop()


@contextlib.contextmanager
def pair(kind: str, runtime: Runtime | None) -> Iterator[tuple[socket.socket, socket.socket]]:
    """Two connected sockets. "plain": kernel sockets; "tunnel": the first is a TunnelSocket; "accepted": the second."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        address = listener.getsockname()
        first: socket.socket
        if kind == "plain":
            first = socket.create_connection(address, timeout=DEADLINE_S)
        else:
            first = create_connection(address, timeout=DEADLINE_S, runtime=runtime)
            assert isinstance(first, TunnelSocket)
        second, _ = listener.accept()
    with first, second:
        second.settimeout(DEADLINE_S)
        yield (second, first) if kind == "accepted" else (first, second)


def receive(sock: socket.socket, size: int) -> bytes:
    """Receive `size` bytes, or fewer at the end of the stream."""
    parts = []
    while size and (data := sock.recv(min(size, 1 << 16))):
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


@contextlib.contextmanager
def beside(work: Callable[[], object]) -> Iterator[None]:
    """Run `work` in another thread during the block; it must end without an error."""
    failures: list[BaseException] = []

    def run() -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    yield
    thread.join(DEADLINE_S)
    assert not thread.is_alive()
    assert failures == []


def fill(sock: socket.socket) -> int:
    """Write until the socket accepts no more for a while; return the number of bytes."""
    sock.setblocking(False)
    written = 0
    while select.select([], [sock], [], 0.3)[1]:
        with contextlib.suppress(BlockingIOError):
            written += sock.send(bytes(1 << 16))
    sock.settimeout(DEADLINE_S)
    return written


def run_python(
    relay: RelayThread, code: str, *arguments: str, expected: int | None = 0
) -> subprocess.CompletedProcess[str]:
    """Run a Python program in a process of its own, with the relay in its environment."""
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        env=relay.environment,
        timeout=DEADLINE_S,
        check=False,
    )
    assert expected is None or done.returncode == expected, done.stderr
    return done


class Hello(http.server.BaseHTTPRequestHandler):
    """Answers hello, and the host that the request named."""

    def do_GET(self) -> None:
        body = b"hello from " + self.headers["Host"].encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass
