"""Runs a module and counts what its work costs: `python -m loadtests.bench.budget_child LIBRARY FILE MODULE [ARG...]`.

The module runs as `python -m MODULE` would run it. At SIGUSR1 this process writes to FILE, as JSON, what it did since
the signal before: calls of Python functions and of built-in ones in all of its threads, allocations, and packets.
LIBRARY is made of `allocations.c`.
"""

import cProfile
import ctypes
import gc
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from loadtests.harness.counted import run_counted
from tunnel.core import Endpoint
from tunnel_servlet.switch.switch import Switch

__all__ = ["main"]

_PR_SET_PTRACER, _ANYBODY = 0x59616D61, ctypes.c_ulong(-1)  # prctl(2): strace is no parent of this process


class _Packets:
    """The packets that went through the endpoints and switches of this process since `take`."""

    def __init__(self) -> None:
        self._count = 0
        self._switched = 0
        self._switches: list[Switch] | None = None
        next_batch, receive = Endpoint.next_batch, Endpoint.receive_packets

        def counted_next_batch(endpoint: Endpoint, *arguments: Any) -> Any:
            batch = next_batch(endpoint, *arguments)
            if batch is not None:
                for _ in batch.packets:
                    self._count += 1
            return batch

        def counted_receive(endpoint: Endpoint, packets: list[Any], now: int) -> None:
            for _ in packets:
                self._count += 1
            receive(endpoint, packets, now)

        Endpoint.next_batch = counted_next_batch  # type: ignore[assignment, method-assign]
        Endpoint.receive_packets = counted_receive  # type: ignore[assignment, method-assign]

    def take(self) -> int:
        """Return the count. The first call finds the switches, so it must come when the process is ready."""
        if self._switches is None:
            self._switches = [thing for thing in gc.get_objects() if isinstance(thing, Switch)]
        counters = [switch.stats().counters for switch in self._switches]
        switched = sum(one.packets_received + one.packets_sent for one in counters)
        found = self._count + switched - self._switched
        self._count, self._switched = 0, switched
        return found


class _Calls:
    """Calls since `take`: of Python functions, with each time that one goes on after a pause, and of built-in ones."""

    def __init__(self) -> None:
        self._threads = {"call": 0, "c_call": 0}
        self._before = (0, 0)
        self.profile = cProfile.Profile()
        threading.setprofile(self._count)

    def _count(self, frame: FrameType, event: str, argument: object) -> None:
        if event in self._threads:
            self._threads[event] += 1

    def take(self) -> tuple[int, int]:
        """Return the two counts. The profile must be off."""
        calls, builtin = self._threads["call"], self._threads["c_call"]
        for entry in self.profile.getstats():
            if not isinstance(entry.code, CodeType):
                builtin += entry.callcount
            elif entry.code.co_filename != __file__:
                calls += entry.callcount
        found = (calls - self._before[0], builtin - self._before[1])
        self._before = (calls, builtin)
        return found


def _allocations(library: str) -> Callable[[], int]:
    """Begin to count allocations; return the function that tells how many there were."""
    counter = ctypes.CDLL(library)
    counter.count_allocations()
    value = ctypes.c_ulonglong.in_dll(counter, "allocations")
    return lambda: value.value


def main() -> None:
    """Run the module; its exit code is that of this process."""
    library, *command = sys.argv[1:]
    ctypes.CDLL(None).prctl(_PR_SET_PTRACER, _ANYBODY, 0, 0, 0)
    calls, packets, allocations = _Calls(), _Packets(), _allocations(library)
    before = 0

    def count() -> dict[str, int]:
        nonlocal before
        calls.profile.disable()
        allocated = allocations() - before
        called, called_builtin = calls.take()
        found = {"calls": called, "builtin": called_builtin, "packets": packets.take(), "allocations": allocated}
        before = allocations()
        calls.profile.enable()
        return found

    run_counted(command, count)


if __name__ == "__main__":
    main()
