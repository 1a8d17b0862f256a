"""Plays cases side by side: starts their processes, acts on them, and waits for the end."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

from loadtests.diagnosis import roles
from loadtests.diagnosis.cases import Act, Case
from loadtests.harness.ports import hold_port

__all__ = ["folder_of", "play"]

SIDE_BY_SIDE = 6
CASE_S = 60.0
READY_S = 60.0
_SIGNALS = {"freeze": (signal.SIGSTOP, signal.SIGCONT), "block": (signal.SIGUSR1, signal.SIGUSR2)}


def folder_of(case: Case) -> str:
    """Return the name of the case's folder."""
    return "".join(letter if letter.isalnum() else "-" for letter in case.name)


def play(cases: Iterable[Case], directory: Path, side_by_side: int = SIDE_BY_SIDE) -> dict[str, float]:
    """Play all cases; each writes its traces to a folder below `directory`. Return how long each took, in seconds."""
    context = get_context("forkserver")  # a process begins with everything imported
    context.set_forkserver_preload([roles.__name__, "tunnel.carriers.poll", "tunnel_servlet.web.application"])
    with ThreadPoolExecutor(side_by_side) as threads:
        return dict(threads.map(lambda case: (case.name, _play(case, directory / folder_of(case), context)), cases))


def _play(case: Case, directory: Path, context: ForkServerContext) -> float:
    began_s = time.monotonic()
    directory.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        _Stage(case, str(directory), context, stack).perform()
    return time.monotonic() - began_s


class _Stage:
    """The processes of one case."""

    def __init__(self, case: Case, directory: str, context: ForkServerContext, stack: contextlib.ExitStack) -> None:
        self._case = case
        self._directory = directory
        self._context = context
        self._stack = stack
        self._reached = context.Event()
        self._port, self._path_port, self._service_port = (stack.enter_context(hold_port()) for _ in range(3))

    def perform(self) -> None:
        case, url = self._case, f"http://{roles.HOST}:{self._port}"
        relay = self._relay()
        near = url
        path = None
        if case.faults or case.bytes_per_s or case.has_path:
            ready = self._context.Event()
            path = self._start(roles.path, case, self._directory, self._path_port, self._port, ready)
            _await(ready)
            near = f"http://{roles.HOST}:{self._path_port}"
        ready = self._context.Event()
        service = self._start(roles.service, case, self._directory, url, self._service_port, ready, self._reached)
        _await(ready)
        client = self._start(roles.client, case, self._directory, near, self._service_port)
        second = None
        if case.has_second:
            second = self._start(roles.client, case, self._directory, url, self._service_port, "second")
        if case.act is not None:
            _await(self._reached)
            who = {"relay": relay, "client": client, "service": service, "path": path}
            if not self._act(case.act, {name: process for name, process in who.items() if process is not None}):
                return
        client.join(CASE_S)
        if second is not None:
            second.join(CASE_S)
        if client.exitcode != 0:
            raise RuntimeError(
                f"{case.name}: the client ended with {client.exitcode}: see {self._directory}.client.log"
            )

    def _act(self, act: Act, who: dict[str, ForkServerProcess]) -> bool:
        """Carry out the act. Return whether the client can go on."""
        if act.what == "kill" and act.who == "all":
            time.sleep(act.for_s)
            for each in who.values():
                _signal(each, signal.SIGKILL)
            return False
        if act.what == "kill":
            _await_trace(Path(self._directory), act.who)  # who dies before its first flush leaves nothing to analyse
            _signal(who[act.who], signal.SIGKILL)
            who[act.who].join()
            time.sleep(act.for_s)
            if act.who == "client":
                return False
            if act.who == "relay":
                self._relay()
        else:
            begin, end = _SIGNALS[act.what]
            _signal(who[act.who], begin)
            time.sleep(act.for_s)
            _signal(who[act.who], end)
        return True

    def _relay(self) -> ForkServerProcess:
        ready = self._context.Event()
        relay = self._start(roles.relay, self._case, self._directory, self._port, ready)
        _await(ready)
        return relay

    def _start(self, role: object, *arguments: object) -> ForkServerProcess:
        process = self._context.Process(target=role, args=arguments, daemon=True)  # type: ignore[arg-type]
        process.start()
        self._stack.callback(_end, process)
        return process


def _await(event: object) -> None:
    if not event.wait(READY_S):  # type: ignore[attr-defined]
        raise RuntimeError(f"nothing happened for {READY_S:.0f} s")


def _await_trace(directory: Path, who: str) -> None:
    until_s = time.monotonic() + READY_S
    while not any(file.stat().st_size for file in directory.glob(f"_{who}-*")):
        if time.monotonic() > until_s:
            raise RuntimeError(f"the {who} wrote no trace for {READY_S:.0f} s")
        time.sleep(0.01)


def _signal(process: ForkServerProcess, number: int) -> None:
    assert process.pid is not None
    os.kill(process.pid, number)


def _end(process: ForkServerProcess) -> None:
    if process.is_alive():
        process.terminate()
        process.join(10.0)
    if process.is_alive():
        process.kill()
        process.join()
