"""The processes of the demo, started as a user would start them, on this machine with free ports and new tokens."""

import json
from contextlib import ExitStack
from types import TracebackType
from typing import Self

import msgspec

from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process
from tunnel_client.forward.traffic import TrafficReport

__all__ = ["TOPOLOGY", "Stage"]

TOPOLOGY = "application ─ forward ═ HTTP ═▶ fault proxy ═══▶ relay ◀═ link ═ exit ─ target"
_HARM = (
    *("--drop-request", "0.05", "--drop-response", "0.05"),
    *("--duplicate", "0.02", "--flip", "0.01"),
    *("--buffer", "--no-upgrade"),
)
_is_traffic = says_event("traffic")


class Stage:
    """The processes of the demo, which run inside the `with` block. The caller serves the target at `target_port`."""

    def __init__(self, target_port: int, seed: int) -> None:
        self.relay = RelayProcess()
        self.local_port = 0  # at which the forward listens
        self.faults: dict[str, int] = {}  # number of each kind; set by finish()
        self.exchanges = 0
        self._target_port = target_port
        self._seed = seed
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack as stack:
            stack.enter_context(self.relay)
            outside = stack.enter_context(exit_process(self.relay).start())
            self._proxy = stack.enter_context(self._make_proxy())
            self._forward = stack.enter_context(self._make_forward(self._proxy.ready_line.split()[-1]))
            outside.wait_ready()
            bind: str = json.loads(self._forward.ready_line)["bind"]
            self.local_port = int(bind.rpartition(":")[2])
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._stack.close()

    def _make_proxy(self) -> Process:
        arguments = ("--listen", "127.0.0.1:0", "--upstream", self.relay.url, "--seed", str(self._seed), "--json")
        command = python_command("loadtests.faultproxy", *arguments, *_HARM)
        return Process(command, ready=lambda line: line.startswith("listening on "))

    def _make_forward(self, url: str) -> Process:
        options = ("--relay", url, "--proxy", "", "--carrier", "poll", "--stats", "0.25")
        command = python_command("tunnel_client", "forward", *options, f"0:127.0.0.1:{self._target_port}")
        environment = {"TUNNEL_TOKEN": self.relay.tokens["client"]}
        return Process(command, ready=says_event("listening"), environment=environment)

    def traffic(self) -> TrafficReport:
        """Return the latest figures that the forward has logged."""
        for line in reversed(self._forward.output.splitlines()):
            if _is_traffic(line):
                return msgspec.json.decode(line, type=TrafficReport)
        return TrafficReport()

    def finish(self) -> None:
        """Stop the forward and the proxy, and read the proxy's counters."""
        self._forward.stop()
        self._proxy.stop()
        lines = self._proxy.output.splitlines()
        if lines and lines[-1].startswith("{"):
            counts = json.loads(lines[-1])
            self.exchanges = counts["exchanges"]
            self.faults = {kind: count for kind, count in counts["faults"].items() if count}
