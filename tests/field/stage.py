"""Everything around an intermediary, as users run it: relays, their exits, `tunnel forward` and `tunnel doctor`."""

import asyncio
import contextlib
import os
import socket
import subprocess
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Self

import msgspec

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, cpu_seconds, python_command, relay_command, says_event
from loadtests.harness.tree import python_path
from tests.field.hops.hop import Ground
from tests.field.rows import Row
from tests.servlet.rig import KEYS, TOKENS
from tests.support.certificates import TLS
from tunnel_servlet.config import render_users

__all__ = ["Road", "Stage", "StageError", "start_forwarder", "start_target"]

_CA = TLS / "ca.pem"
_PEER = "loadtests.bench.road_peer"
_CONFIG = """\
listen = ["http://127.0.0.1:{port}", "https://127.0.0.1:{tls}"]
exit = "none"
[tls]
certificate = "{certificate}"
key = "{certificate}"
[everyone]
connect = ["127.0.0.1:*"]
[users.exits]
exit = true
"""
_ATTACH_S = 45.0  # `tunnel forward` itself tries for 30 s
_END_S = 2.0  # the wait for the end of a client that has closed its output
_STATUS_S = 10.0
_DOCTOR_S = 240.0
_NO_PROXIES = dict.fromkeys(("http_proxy", "https_proxy", "all_proxy", "no_proxy"), "")


class StageError(Exception):
    """The client ended, or was not attached in time; `code` is its exit code, if it ended."""

    def __init__(self, text: str, code: int | None) -> None:
        super().__init__(text)
        self.code = code


class Road(msgspec.Struct, frozen=True):
    """The options with which a client reaches the relay; not a road of the ladder."""

    url: str
    proxy: str  # "none" for a direct connection
    ca: Path

    @property
    def options(self) -> list[str]:
        """These settings as options of `tunnel forward` and `tunnel doctor`."""
        return ["--relay", self.url, "--proxy", self.proxy, "--ca", str(self.ca)]


def start_target(stack: ExitStack) -> int:
    """Start the target of all transfers; return its port."""
    process = Process(python_command("tests.field.target"), ready=lambda line: line.startswith("target "))
    return int(stack.enter_context(process).ready_line.split()[1])


def start_forwarder(stack: ExitStack, port: int) -> int:
    """Start a bare TCP forwarder to that port, to show what the machine can do without the tunnel. Return its port."""
    command = python_command(_PEER, "forward", "--port", str(port))
    process = Process(command, ready=lambda line: line.startswith("ready "))
    return int(stack.enter_context(process).ready_line.split()[1])


class Stage:
    """The processes of one row. After `start`, `port` leads to the target through the tunnel and the row's hops."""

    def __init__(self, row: Row, carrier: str, target: int) -> None:
        self._row = row
        self._carrier = carrier
        self._target = target
        self._stack = ExitStack()
        self._relays: list[Process] = []
        self.road: Road
        self.port = 0
        self.forward: Process

    def start(self) -> Self:
        """Start everything. Raise StageError if the client cannot attach; everything else runs nevertheless."""
        self._directory = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="field-")))
        self._directory.chmod(0o755)
        ground, tls = self._start_relays()
        self.road = self._start_hops(ground, tls)
        self._start_forward()
        return self

    def close(self) -> None:
        """End every process."""
        self._stack.close()

    def _start_relays(self) -> tuple[Ground, int]:
        ports: list[int] = []
        for number in range(self._row.relays):
            home = self._directory / f"relay{number}"
            home.mkdir(mode=0o700)
            port, tls = self._stack.enter_context(hold_port()), self._stack.enter_context(hold_port())
            config = _CONFIG.format(port=port, tls=tls, certificate=TLS / "server.pem")
            (home / "relay.toml").write_text(config)
            (home / "tokens.toml").write_text(render_users(KEYS))
            command = relay_command("serve", "-c", str(home / "relay.toml"))
            self._relays.append(self._stack.enter_context(Process(command, ready=says_event("listening"))))
            self._start_exit(port)
            ports.append(port)
        return Ground(self._directory, tuple(ports), self._copy_ca()), tls

    def _copy_ca(self) -> Path:
        copy = self._directory / "ca.pem"  # the checkout may be closed to the users that programs run as
        copy.write_bytes(_CA.read_bytes())
        return copy

    def _start_exit(self, port: int) -> None:
        arguments = ["--relay", f"http://127.0.0.1:{port}", "--proxy", "", "--allow", "127.0.0.1:*"]
        environment = {"TUNNEL_TOKEN": TOKENS["exits"], **_NO_PROXIES}
        command = relay_command("exit", *arguments)
        self._stack.enter_context(
            Process(command, ready=lambda line: line.startswith("attached"), environment=environment)
        )

    def _start_hops(self, ground: Ground, tls: int) -> Road:
        """Start the hops from the relay towards the client."""
        relay = tls if self._row.tls else ground.relays[0]
        # A name for TLS: Squid makes certificates for names only.
        origin = "https://localhost" if self._row.tls else "http://127.0.0.1"
        port, proxy, ca = relay, "none", _CA
        for hop in reversed(self._row.hops):
            there = hop.start(self._stack, ground, port)
            if hop.is_proxy:
                proxy = f"http://127.0.0.1:{there}"
            else:
                port = there
            ca = hop.ca(ground.directory) if hop.ca is not None and self._row.tls else ca
        return Road(f"{origin}:{port}", proxy, ca)

    @property
    def _environment(self) -> dict[str, str]:
        return {"TUNNEL_TOKEN": TOKENS["bob"], "XDG_RUNTIME_DIR": str(self._directory / "run"), **_NO_PROXIES}

    def _start_forward(self) -> None:
        (self._directory / "run").mkdir(mode=0o700)
        self.port = self._stack.enter_context(hold_port())
        words = ["forward", f"{self.port}:127.0.0.1:{self._target}", "--carrier", self._carrier, *self.road.options]
        self.forward = Process(
            python_command("tunnel_client", *words),
            ready=lambda line: "listening" in line,
            environment=self._environment,
        )
        self._stack.callback(self._end_forward)
        self.forward.start()
        try:
            self.forward.wait_ready(_ATTACH_S)
        except RuntimeError:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.forward.wait(_END_S)
            self.check_forward()
            raise StageError(f"the client did not attach within {_ATTACH_S:.0f} s: {self._last_line()}", None) from None

    def _last_line(self) -> str:
        lines = self.forward.output.strip().splitlines()
        return lines[-1] if lines else "it said nothing"

    def check_forward(self) -> None:
        """Raise StageError if the client has ended."""
        if not self.forward.is_running:
            raise StageError(self._last_line(), self.forward.wait())

    def _end_forward(self) -> None:
        if self.forward.is_running:
            self.forward.kill()

    async def stop_forward(self) -> None:
        """End the client alone, so that the path is free for the doctor."""
        await asyncio.to_thread(self._end_forward)

    def used_carrier(self) -> str:
        """The carrier that the client uses now, as `tunnel status` learns it; empty if it does not say."""
        for path in (self._directory / "run" / "tunnel").glob("*.sock"):
            with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
                sock.settimeout(_STATUS_S)
                sock.connect(str(path))
                text = b"".join(iter(lambda: sock.recv(1 << 16), b""))
                return str(msgspec.json.decode(text)["carrier"]).split(" ")[0]
        return ""

    async def replace_relay(self) -> None:
        """Kill the relay that has used most processor time (SIGKILL), and start it again at once."""
        busiest = max(self._relays, key=lambda relay: cpu_seconds(relay.pid))
        busiest.kill()
        busiest.start()
        await busiest.ready()

    async def examine(self) -> tuple[int, str]:
        """Run `tunnel doctor` with the options of `road`; return its exit code and its output: a report in JSON, if it
        printed one."""
        words = ["doctor", f"127.0.0.1:{self._target}", "--json", *self.road.options]
        child = await asyncio.create_subprocess_exec(
            *python_command("tunnel_client", *words),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env={**os.environ, "PYTHONPATH": python_path(), **self._environment},
        )
        try:
            async with asyncio.timeout(_DOCTOR_S):
                output, _ = await child.communicate()
        except TimeoutError:
            child.kill()
            await child.wait()
            return -1, f"the doctor did not end within {_DOCTOR_S:.0f} s"
        return child.returncode or 0, output.decode(errors="replace")
