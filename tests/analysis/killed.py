"""Processes that are killed with SIGKILL while they take new trace files into the tables.

`python -m tests.analysis.killed TRACES TABLES PATH STEP ENGINE` is the command `tunnel-traces compact`, which dies just
before its STEPth touch of a file whose path begins with PATH (the touches of all such files count together).
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

__all__ = ["die_at", "survives"]

# audit events: CPython reports each of these actions before it happens
_TOUCHES = frozenset({"open", "os.mkdir", "os.link", "os.rename", "os.remove", "os.rmdir", "os.symlink"})


def die_at(step: int, beginning: str) -> None:
    """Kill this process just before the `step`th time that it touches any file whose path begins with `beginning`."""
    left = [step]

    def count(event: str, arguments: tuple[Any, ...]) -> None:
        if event in _TOUCHES and any(str(argument).startswith(beginning) for argument in arguments[:2]):
            left[0] -= 1
            if not left[0]:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


def survives(work: Callable[[], object], step: int, folder: Path) -> bool:
    """Run `work` in a process that dies at this step. Return whether it ended before that step."""
    child = os.fork()
    if not child:
        die_at(step, str(folder))
        work()
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL)
    return status == 0


if __name__ == "__main__":
    from tunnel.analysis.cli import main

    die_at(int(sys.argv[4]), sys.argv[3])
    sys.exit(main(["compact", sys.argv[1], "--tables", sys.argv[2], "--engine", sys.argv[5]]))
