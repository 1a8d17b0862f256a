"""Lets child processes run the compiled build of this tree (`make compiled`) instead of its sources."""

import os
from collections.abc import Mapping
from pathlib import Path

from loadtests.harness.tree import PACKAGES

__all__ = ["COMPILED", "NotCompiledError", "compiled_environment", "wants_compiled"]

_WANTED = "TUNNEL_COMPILED"
COMPILED = {_WANTED: "1"}
"""Environment that requests the compiled build, for one process or for all children of a process."""


class NotCompiledError(RuntimeError):
    """There is no compiled build, or it is older than the sources."""


def wants_compiled(environment: Mapping[str, str]) -> bool:
    """Return whether this environment requests the compiled build."""
    return environment.get(_WANTED) == "1"


def compiled_environment(root: Path) -> dict[str, str]:
    """Return the environment in which Python imports the compiled build of the checkout at `root`.

    Raise NotCompiledError if there is no build, or one that is older than the sources.
    """
    build = root / "build" / "compiled"
    stamp = build / ".stamp"
    if not stamp.exists():
        raise NotCompiledError("there is no compiled build: run make compiled")
    built_at = stamp.stat().st_mtime
    if any(file.stat().st_mtime > built_at for package in PACKAGES for file in (root / package).rglob("*.py")):
        raise NotCompiledError("the compiled build is older than the sources: run make compiled")
    # Without PYTHONSAFEPATH, "python -m" would look first in the current directory, where the sources are.
    return {**COMPILED, "PYTHONPATH": f"{build}{os.pathsep}{root}", "PYTHONSAFEPATH": "1"}
