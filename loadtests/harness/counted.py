"""Runs a module and counts its objects on request: `python -m loadtests.harness.counted FILE MODULE [ARGUMENT...]`.

The module runs as `python -m MODULE` would run it. At SIGUSR1 this process writes the number of its objects by type to
FILE, as JSON. At SIGUSR2 it first runs Python's collector, so that only objects that something still holds are counted.
Both also return malloc's unused memory to the system, so that the resident size shows the memory in use.
Neither is part of the product: a program of the tunnel knows nothing of these signals.
"""

import asyncio
import gc
import json
import os
import runpy
import signal
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

from loadtests.harness.processes import Process, python_command
from tunnel.process.malloc import give_back_freed_memory

__all__ = ["Counted", "main", "own_objects", "run_counted"]

# The tunnel's own types, and those with which its tasks and sockets are made.
_ROOTS = frozenset({"tunnel", "tunnel_servlet", "tunnel_client", "asyncio", "_asyncio", "uvloop"})
_LOOK_S = 0.02
_ANSWER_S = 30.0


def own_objects() -> dict[str, int]:
    """Count the objects of the tunnel's own types, and of tasks and sockets, by the full names of the types.

    Objects that Python's collector does not track, such as packets, are not seen.
    """
    counts = Counter(type(thing) for thing in gc.get_objects())
    found: Counter[str] = Counter()
    for kind, count in counts.items():
        module = getattr(kind, "__module__", None)
        if isinstance(module, str) and module.partition(".")[0] in _ROOTS:
            found[f"{module}.{kind.__qualname__}"] += count
    return dict(found)


class Counted:
    """A way to start a process that counts on request: its objects, or what another `launcher` counts."""

    def __init__(self, file: Path, launcher: Sequence[str] = ("loadtests.harness.counted",)) -> None:
        self._file = file
        self._launcher = launcher

    def command(self, module: str, *arguments: str) -> list[str]:
        """Return the command that runs the module so that it can be asked."""
        return python_command(*self._launcher, str(self._file), module, *arguments)

    async def ask(self, process: Process, *, collect: bool = False) -> dict[str, int]:
        """Return the counts by name. Raise OSError if the process has ended, or does not answer in time."""
        self._file.unlink(missing_ok=True)
        process.signal(signal.SIGUSR2 if collect else signal.SIGUSR1)
        async with asyncio.timeout(_ANSWER_S):
            while not self._file.exists():  # a file of another process gives no event
                if not process.is_running:
                    raise ChildProcessError(f"{' '.join(process.command)}: the process has ended")
                await asyncio.sleep(_LOOK_S)
        found: dict[str, int] = json.loads(self._file.read_bytes())
        return found


def run_counted(argv: Sequence[str], count: Callable[[], dict[str, int]]) -> None:
    """Run the module that `argv` names (FILE MODULE [ARGUMENT...]), and answer each question with what `count` says."""
    file, module, *arguments = argv

    def answer(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGUSR2:
            gc.collect()
        found = count()
        unfinished = Path(f"{file}.new")
        unfinished.write_text(json.dumps(found), encoding="ascii")
        os.replace(unfinished, file)  # a reader sees the whole file or none

    for number in (signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, answer)
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


def main() -> None:
    """Run the module; its exit code is that of this process."""

    def count() -> dict[str, int]:
        give_back_freed_memory()
        return own_objects()

    run_counted(sys.argv[1:], count)


if __name__ == "__main__":
    main()
