"""The endpoint in `node`, a relay, and the paths between them: direct, nginx, and nginx after a lossy proxy.

with NodeWorld(directory) as world, world.expose("reports"):
    done = world.connect("link", "nginx", "service:reports", b"hello")
    assert done.stdout == b"hello"
"""

import contextlib
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

import tunnel_client
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from tests.real.servers import start_nginx, start_server

__all__ = ["LOOPBACK", "PATHS", "WAIT_S", "NodeWorld", "installed_node_endpoint"]

LOOPBACK = "127.0.0.1"
WAIT_S = 60.0  # only a hang takes that long
# Carrier and path. The fault proxy loses single exchanges, so it is combined with poll alone.
# The carrier "auto" finds a link on the way through nginx, and none on the way through the fault proxy.
PATHS = [
    ("poll", "direct"),
    ("link", "direct"),
    ("poll", "nginx"),
    ("link", "nginx"),
    ("auto", "nginx"),
    ("poll", "faults"),
    ("auto", "faults"),
]

_ENDPOINT = Path(__file__).parent / "node"
_LOST = ("--drop-request", "0.025", "--drop-response", "0.025", "--seed", "7")
_NPM_S = 300.0


def installed_node_endpoint() -> Path:
    """Return the folder of the endpoint, with its one dependency installed.

    If `npm ci` fails, the test is skipped; under REQUIRE_REAL=1 it fails.
    """
    lock = _ENDPOINT / "package-lock.json"
    stamp = _ENDPOINT / "node_modules" / ".package-lock.json"
    with (_ENDPOINT / "package.json").open() as guard:
        fcntl.flock(guard, fcntl.LOCK_EX)  # tests run in several processes
        if not stamp.exists() or stamp.stat().st_mtime < lock.stat().st_mtime:
            npm = shutil.which("npm")
            assert npm is not None, "npm is missing: make system-deps"
            done = subprocess.run(
                [npm, "ci", "--no-audit", "--no-fund"],
                cwd=_ENDPOINT,
                capture_output=True,
                text=True,
                timeout=_NPM_S,
                check=False,
            )
            if done.returncode:
                reason = f"npm ci in tests/interop/node failed: {done.stderr[-500:]}"
                if os.environ.get("REQUIRE_REAL") == "1":
                    pytest.fail(reason, pytrace=False)
                pytest.skip(reason)
            stamp.touch()
    return _ENDPOINT


class NodeWorld:
    """A relay, an exit, an echo server and three paths to the relay. Use it in a `with` block."""

    def __init__(self, directory: Path) -> None:
        self.relay = RelayProcess()
        self._directory = directory
        self._main = installed_node_endpoint() / "main.mjs"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            relay = stack.enter_context(self.relay)
            exits = exit_process(relay).start()
            stack.callback(exits.kill)
            nginx = stack.enter_context(start_nginx(self._directory, "nginx-upgrade.conf", relay=relay.port))
            faults = stack.enter_context(start_server(lambda port: _faults(port, nginx.url)))
            self._urls = {"direct": relay.url, "nginx": nginx.url, "faults": faults.url}
            echo = Process(python_command("loadtests.harness.echo"), ready=lambda line: line.startswith("echo "))
            self.echo_port = int(stack.enter_context(echo).ready_line.split()[1])
            self._token_file = self._directory / "token"
            self._token_file.write_text(relay.tokens["client"])
            self._token_file.chmod(0o600)
            exits.wait_ready()
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    # The endpoint in JavaScript

    def command(self, name: str, carrier: str, path: str, *arguments: str) -> list[str]:
        """Return `node main.mjs NAME ...` with the relay, the token and the carrier."""
        options = ["--relay", self._urls[path], "--token-file", str(self._token_file), "--carrier", carrier]
        return ["node", str(self._main), name, *options, *arguments]

    def connect(
        self, carrier: str, path: str, target: str, data: bytes, *options: str
    ) -> subprocess.CompletedProcess[bytes]:
        """Send `data` to the target and return what came back, with the exit code."""
        command = self.command("connect", carrier, path, *options, target)
        return subprocess.run(command, input=data, capture_output=True, timeout=WAIT_S, check=False)

    @contextlib.contextmanager
    def serve(self, carrier: str, path: str, name: str) -> Iterator[Process]:
        """Offer the service `name`, which echoes. It is announced when the block begins."""
        command = self.command("serve", carrier, path, name)
        with Process(command, ready=lambda line: line.startswith("listening")) as process:
            yield process

    # The endpoint in Python

    @contextlib.contextmanager
    def expose(self, name: str) -> Iterator[None]:
        """Offer the echo server as the service `name`, by `tunnel expose`."""
        command = python_command("tunnel_client", "expose", name, f"{LOOPBACK}:{self.echo_port}", "--proxy", "none")
        environment = {"TUNNEL_RELAY": self.relay.url, "TUNNEL_TOKEN": self.relay.tokens["client"]}
        with Process(command, ready=says_event("listening"), environment=environment):
            yield

    @contextlib.contextmanager
    def runtime(self, carrier: str, path: str) -> Iterator[tunnel_client.Runtime]:
        """Yield a runtime: the sockets of this process use its attachment."""
        token = self.relay.tokens["client"]
        settings = tunnel_client.RelaySettings(self._urls[path], token=token, proxy=None, carrier=carrier)
        runtime = tunnel_client.Runtime(settings, linger=2.0)
        try:
            yield runtime
        finally:
            runtime.close()

    def replace_relay(self) -> None:
        """Kill the relay and start another one at the same port."""
        self.relay.process.kill()
        self.relay.process.start()
        self.relay.process.wait_ready()

    @contextlib.contextmanager
    def closed_port(self) -> Iterator[int]:
        """Yield a port that refuses connections for as long as the block lasts."""
        with hold_port() as port:
            yield port


def _faults(port: int, upstream: str) -> list[str]:
    return python_command("loadtests.faultproxy", "--listen", f"{LOOPBACK}:{port}", "--upstream", upstream, *_LOST)
