"""The servers of the stress suite, under one process: relay, exit, fault proxy and target, with faults on request.

`python -m loadtests.stress.world` starts them and logs their addresses. A line of JSON to its control port requests a
fault, and each answer is a line of JSON with the state of the processes:

  {"loss": "0.05"}         set the loss of single packets at the relay: a probability, or gilbert:P:R
  {"restart": "relay"}     kill -9 and start again; also "exit", "proxy" or "target"
  {"blackhole": 3}         stop the fault proxy for this number of seconds
  {"count": false}         also return the objects of relay and exit by type; true: after a run of Python's collector
  {}                       only return the state

The relay asks for a token. STRESS_RELAY in the environment names another module to run in place of
`loadtests.harness.lossyrelay`: a test proves with a relay that leaks that the run fails.
"""

import argparse
import asyncio
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory
from typing import Any

import structlog

from loadtests.harness.counted import Counted
from loadtests.harness.lossyrelay import ask_loss
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.processinfo import look_at
from loadtests.stress.state import relay_state
from tunnel.process.command_line import configure_log
from tunnel_servlet.access.tokens import make_admin_secret, make_token
from tunnel_servlet.command.files import write_users

__all__ = ["COUNTED", "READY_S", "SERVERS", "World", "main"]

READY_S = 180.0  # all servers start in some seconds, but longer on a busy machine
SERVERS = ("exit", "proxy", "relay", "target")
COUNTED = ("exit", "relay")
"""The servers that are programs of the tunnel, whose objects are counted."""

_log = structlog.get_logger("world")
_END_S = 10.0
_CONFIG = """\
listen = ["127.0.0.1:{relay}"]
exit = "none"
tokens = "relay.tokens.toml"
{more}
[users.client]
connect = ["127.0.0.1:{target}"]

[users.exit]
exit = true
"""


class World:
    """The running servers, inside an `async with` block; their addresses are in `where`."""

    def __init__(self, *, weather: Sequence[str] = (), seed: int = 1, trace: str = "", relay_config: str = "") -> None:
        self.where: dict[str, Any] = {}
        self._weather = list(weather)
        self._seed = seed
        self._trace = trace
        self._relay_config = relay_config
        self._stack = contextlib.AsyncExitStack()
        self._directory = Path()
        self._counted: dict[str, Counted] = {}
        self._processes: dict[str, Process] = {}
        self._loss = "0"
        self._admin_secret = make_admin_secret(SystemRandom())
        self._ports: dict[str, int] = {}

    async def __aenter__(self) -> "World":
        try:
            self._directory = Path(self._stack.enter_context(TemporaryDirectory(prefix="tunnel-stress-")))
            self._counted = {name: Counted(self._directory / f"{name}.objects") for name in COUNTED}
            for name in ("target", "relay", "admin", "loss", "proxy"):
                self._ports[name] = self._stack.enter_context(hold_port())
            tokens = self._write_config()
            # All start at once, which takes as long as the slowest: the exit attaches as soon as the relay listens.
            for name, process in self._commands(tokens["exit"]):
                self._processes[name] = await self._stack.enter_async_context(process.start())
            for process in self._processes.values():
                await process.ready(READY_S)
        except BaseException:
            await self._stack.aclose()
            raise
        self.where = {
            "relay": f"http://127.0.0.1:{self._ports['proxy']}",
            "target": f"127.0.0.1:{self._ports['target']}",
            "token": tokens["client"],
        }
        return self

    async def __aexit__(self, *exception: object) -> None:
        for process in self._processes.values():
            process.signal(signal.SIGINT)  # ends at once, but closes the traces
        for process in self._processes.values():
            with contextlib.suppress(subprocess.TimeoutExpired):
                await asyncio.to_thread(process.wait, _END_S)
        await self._stack.aclose()

    def _write_config(self) -> dict[str, str]:
        """Write the configuration of relay and exit; return the token of each user."""
        made = {user: make_token(SystemRandom()) for user in ("client", "exit")}
        users = {user: (key,) for user, (_, key) in made.items()}
        write_users(self._directory / "relay.tokens.toml", users, self._admin_secret)
        more = Path(self._relay_config).read_text(encoding="utf-8") if self._relay_config else ""
        text = _CONFIG.format(relay=self._ports["relay"], target=self._ports["target"], more=more)
        (self._directory / "relay.toml").write_text(text, encoding="utf-8")
        return {user: token for user, (token, _) in made.items()}

    def _commands(self, exit_token: str) -> list[tuple[str, Process]]:
        ports = {name: f"127.0.0.1:{port}" for name, port in self._ports.items()}
        trace = ["--trace", self._trace] if self._trace else []
        seed = ["--seed", str(self._seed)]
        url, config = f"http://{ports['relay']}", ["-c", str(self._directory / "relay.toml")]
        relay = [*config, "--admin", ports["admin"], "--control", str(self._ports["loss"]), *seed, *trace]
        module = os.environ.get("STRESS_RELAY", "loadtests.harness.lossyrelay")
        leave = ["exit", *config, "--relay", url, "--allow", ports["target"], "--proxy", "", *trace]
        proxy = ["--listen", ports["proxy"], "--upstream", url, *seed, *self._weather, *trace]
        target = python_command("loadtests.stress.target", "--port", str(self._ports["target"]))
        return [
            ("target", Process(target, ready=says_event("listening"))),
            ("relay", Process(self._counted["relay"].command(module, *relay), ready=says_event("lossy"))),
            (
                "exit",
                Process(
                    self._counted["exit"].command("tunnel_servlet", *leave),
                    ready=lambda line: line.startswith("attached"),
                    environment={"TUNNEL_TOKEN": exit_token},
                ),
            ),
            (
                "proxy",
                Process(
                    python_command("loadtests.faultproxy", *proxy),
                    ready=lambda line: line.startswith("listening on "),
                ),
            ),
        ]

    async def order(self, wish: dict[str, Any]) -> dict[str, Any]:
        """Carry out an order, then return the state. Raise ValueError if the order is not valid."""
        unknown = set(wish) - {"loss", "restart", "blackhole", "count"}
        if unknown or not isinstance(wish, dict):
            raise ValueError(f"unknown order: {wish}")
        if "loss" in wish:
            found = await ask_loss(self._ports["loss"], str(wish["loss"]))
            if "error" in found:
                raise ValueError(found["error"])
            self._loss = str(wish["loss"])
        if "restart" in wish:
            await self._restart(str(wish["restart"]))
        if "blackhole" in wish:
            await self._stand_still("proxy", float(wish["blackhole"]))
        counted = {"objects": await self._count(collect=bool(wish["count"]))} if "count" in wish else {}
        return {**await self.state(), **counted}

    async def _count(self, *, collect: bool) -> dict[str, dict[str, int]]:
        """Return the objects of relay and exit by type; a process that does not answer is left out."""
        found = {}
        for name, counted in self._counted.items():
            with contextlib.suppress(OSError):
                found[name] = await counted.ask(self._processes[name], collect=collect)
        return found

    async def _restart(self, name: str) -> None:
        process = self._processes[name]
        await asyncio.to_thread(process.kill)
        process.start()
        await process.ready()
        if name == "relay":
            await ask_loss(self._ports["loss"], self._loss)
        _log.info("restarted", process=name)

    async def _stand_still(self, name: str, seconds: float) -> None:
        process = self._processes[name]
        process.signal(signal.SIGSTOP)
        try:
            await asyncio.sleep(seconds)
        finally:
            process.signal(signal.SIGCONT)

    async def state(self) -> dict[str, Any]:
        """Return memory and descriptors of each process, and the counters of the relay."""
        found: dict[str, Any] = {"time_s": time.time(), "loss": self._loss, "processes": {}}
        for name, process in self._processes.items():
            info = look_at(process.pid)
            if info is not None:
                found["processes"][name] = {**asdict(info), "pid": process.pid}
        with contextlib.suppress(OSError, ValueError):
            found["relay"] = await relay_state(self._ports["admin"], self._admin_secret)
            found["loss_counts"] = await ask_loss(self._ports["loss"])
        return found

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the orders of one control connection until it ends."""
        try:
            while line := await reader.readline():
                try:
                    answer = await self.order(json.loads(line))
                except (ValueError, KeyError, TypeError) as error:
                    answer = {"error": f"{error}; see python -m loadtests.stress.world --help"}
                writer.write(json.dumps(answer).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError) as error:
            _log.warning("control lost", error=str(error))
        finally:
            writer.close()


async def _run(arguments: argparse.Namespace) -> None:
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    async with (
        World(
            weather=arguments.weather.split(),
            seed=arguments.seed,
            trace=arguments.trace,
            relay_config=arguments.relay_config,
        ) as world,
        await asyncio.start_server(world.serve, "127.0.0.1", 0) as server,
    ):
        _log.info("ready", control=server.sockets[0].getsockname()[1], **world.where)
        await stopped.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run until SIGTERM or SIGINT."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.stress.world",
        description="Relay, exit, fault proxy and target of the stress suite, with faults on request.",
        epilog="example: python -m loadtests.stress.world --weather '--drop-response 0.02 --delay 5ms'",
    )
    parser.add_argument("--weather", default="", help="options of the fault proxy")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trace", default="", metavar="DIR", help="write traces to this directory")
    parser.add_argument("--relay-config", default="", metavar="FILE", help="configuration of the relay, for its limits")
    arguments = parser.parse_args(argv)
    configure_log("info")
    asyncio.run(_run(arguments))
    return 0


if __name__ == "__main__":
    sys.exit(main())
