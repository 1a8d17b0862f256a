"""The paths that real clients take, through a relay, an exit and nginx as processes: good, bad and encrypted.

    def test_it(way: Way) -> None:
        with tunnel_client.create_connection(target, runtime=way.runtime) as sock:
            ...
            with way.trouble():
                ...  # on all but the good path, the relay was just killed, and its successor may not be ready yet

Every path carries only exchanges (poll), through nginx with its defaults. On the bad path, a fault proxy before nginx
also loses 5 % of the exchanges. On the encrypted path, every stream must be encrypted from end to end. The exit is a
process of its own, so that connections outlive the relay.
"""

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

import tunnel_client
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from tests.real.servers import Server, start_nginx, start_server
from tests.real.transfers import access_log
from tunnel.encryption.keys import KeyFile

__all__ = ["LOOPBACK", "PROXY_VARIABLES", "WAIT_S", "WAYS", "Way", "World", "environment", "run_command", "wait_until"]

LOOPBACK = "127.0.0.1"
WAIT_S = 50.0  # only a hanging test reaches it
WAYS = ("nginx", "faults", "encrypted")
_LOOK_S = 0.02
_LOST = ("--drop-request", "0.025", "--drop-response", "0.025", "--seed", "7")
_NAMES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
PROXY_VARIABLES = (*_NAMES, *(name.upper() for name in _NAMES))


class World:
    """Everything between a client and its server; a context manager."""

    def __init__(self, directory: Path) -> None:
        self.relay = RelayProcess()
        self.directory = directory
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            relay = stack.enter_context(self.relay)
            key = KeyFile(self.directory / "exit.pem", make=True)
            exits = exit_process(relay, "--key", str(key.path)).start()
            stack.callback(exits.kill)
            nginx = stack.enter_context(start_nginx(self.directory, "nginx-defaults.conf", relay=relay.port))
            faults = stack.enter_context(start_server(lambda port: _faults(port, nginx)))
            urls = {"nginx": nginx.url, "faults": faults.url, "encrypted": nginx.url}
            self.ways = {name: stack.enter_context(Way(self, name, urls[name], key)) for name in WAYS}
            exits.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def exchanges(self) -> int:
        """The number of HTTP requests that nginx has answered."""
        return len(access_log(self.directory))


def _faults(port: int, nginx: Server) -> list[str]:
    return python_command("loadtests.faultproxy", "--listen", f"{LOOPBACK}:{port}", "--upstream", nginx.url, *_LOST)


class Way:
    """One path to the relay, and the commands that use it. Commands run until the path is closed, and tests share most
    of them."""

    def __init__(self, world: World, name: str, url: str, key: KeyFile) -> None:
        self.name = name
        self._world = world
        self._key = key
        token = world.relay.tokens["client"]
        settings = tunnel_client.RelaySettings(url, token=token, proxy=None, carrier="poll", encryption="off")
        if self.is_encrypted:
            settings = replace(settings, encryption="require", peer_key=(key.fingerprint,))
        self._stack = contextlib.ExitStack()
        self._ports: dict[tuple[str, ...], int] = {}
        self.runtime = tunnel_client.Runtime(settings, linger=2.0)
        # For our commands; they find `tunnel` in the directory of the Python that runs the tests.
        self.environment = {
            "TUNNEL_RELAY": url,
            "TUNNEL_TOKEN": token,
            "TUNNEL_CARRIER": "poll",
            "TUNNEL_ENCRYPTION": settings.encryption,
            "TUNNEL_PEER_KEY": " ".join(settings.peer_key),
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.runtime.close()
        self._stack.close()

    @property
    def is_encrypted(self) -> bool:
        """Whether every stream must be encrypted, with the key of the exit and the services."""
        return self.name == "encrypted"

    def patch(self) -> tunnel_client.patch:
        """Return a patch that leads Python clients, which know nothing of the tunnel, through it to servers here."""
        return tunnel_client.patch(hosts=[LOOPBACK], runtime=self.runtime)

    def forward(self, port: int) -> int:
        """Start `tunnel forward` to this port; return the local port."""
        return self._serve("forward", "{port}:" + f"{LOOPBACK}:{port}")

    def proxy(self) -> int:
        """Start `tunnel proxy`; return its port."""
        return self._serve("proxy", "{port}")

    def expose(self, name: str, port: int) -> str:
        """Publish the server at this port; return the name of the service."""
        return self._expose(f"{name}-{self.name}-{port}", f"{LOOPBACK}:{port}")

    def expose_unix(self, name: str, path: Path) -> str:
        """Publish the server at this Unix socket; return the name of the service."""
        return self._expose(f"{name}-{self.name}", f"unix:{path}")

    def expose_datagrams(self, name: str, port: int) -> str:
        """Publish the UDP server at this port; return the name of the service, without the prefix for UDP."""
        name = f"{name}-{self.name}-{port}"
        self._expose(f"udp/{name}", f"{LOOPBACK}:{port}")
        return name

    def _expose(self, name: str, address: str) -> str:
        if ("expose", name) not in self._ports:
            options = ("--key", str(self._key.path)) if self.is_encrypted else ()
            self._start("expose", name, address, *options)
            self._ports["expose", name] = 1
        return name

    def forward_unix(self, path: Path, target: str) -> None:
        """Start `tunnel forward` from a Unix socket at this path to the target."""
        self._start("forward", f"unix:{path}:{target}")

    def forward_datagrams(self, name: str) -> int:
        """Start `tunnel forward` to a service of datagrams; return the local UDP port."""
        with socket.socket(type=socket.SOCK_DGRAM) as free:
            free.bind((LOOPBACK, 0))
            port: int = free.getsockname()[1]
        self._start("forward", f"udp/{port}:{name}")
        return port

    def forward_service(self, name: str) -> int:
        """Start `tunnel forward` to a service; return the local port."""
        return self._serve("forward", "{port}:" + name)

    @contextlib.contextmanager
    def trouble(self) -> Iterator[None]:
        """On all but the good path, kill the relay as the block begins; its successor is ready when the block ends."""
        if self.name == "nginx":
            yield
            return
        relay = self._world.relay.process
        relay.kill()
        relay.start()
        try:
            yield
        finally:
            relay.wait_ready()

    def exchanges(self) -> int:
        """The number of HTTP requests that nginx has answered, on any path."""
        return self._world.exchanges()

    def _serve(self, command: str, words: str) -> int:
        key = (command, words)
        if key not in self._ports:
            port = self._stack.enter_context(hold_port())
            self._start(command, words.format(port=port))
            self._ports[key] = port
        return self._ports[key]

    def _start(self, *arguments: str) -> None:
        command = python_command("tunnel_client", *arguments, "--proxy", "none")
        process = Process(command, ready=says_event("listening"), environment=self.environment)
        self._stack.enter_context(process)


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return when the condition holds. It is polled, since other programs give no event to wait for."""
    until = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < until, f"{what}: not within {WAIT_S:.0f} s"
        time.sleep(_LOOK_S)


def environment(way: Way) -> dict[str, str]:
    """The environment for a program that starts our commands."""
    return {**os.environ, **way.environment}


def run_command(way: Way, command: Sequence[str], *, directory: Path | None = None, **variables: str) -> str:
    """Run a command that must succeed; return its output."""
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        env={**environment(way), **variables},
        cwd=directory,
        timeout=WAIT_S,
        check=False,
    )
    text = (done.stdout + done.stderr).decode(errors="replace")
    assert done.returncode == 0, f"{' '.join(command)}: {done.returncode}\n{text}"
    return done.stdout.decode(errors="replace")
