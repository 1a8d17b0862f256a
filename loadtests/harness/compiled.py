"""The compiled build of this tree (`make compiled`), for processes that are to run it instead of the sources."""

import os
from collections.abc import Mapping
from pathlib import Path

from loadtests.harness.tree import PACKAGES

__all__ = ["COMPILED", "NotCompiledError", "compiled_environment", "wants_compiled"]

_WANTED = "TUNNEL_COMPILED"
COMPILED = {_WANTED: "1"}
"""What asks for it, in the environment of one process or of whoever starts them."""


class NotCompiledError(RuntimeError):
    """There is no build of these sources."""


def wants_compiled(environment: Mapping[str, str]) -> bool:
    """Whether a process with this environment is to run the compiled build."""
    return environment.get(_WANTED) == "1"


def compiled_environment(root: Path) -> dict[str, str]:
    """What makes a Python process import the build; NotCompiledError when there is none, or an older one."""
    build = root / "build" / "compiled"
    stamp = build / ".stamp"
    if not stamp.exists():
        raise NotCompiledError("nothing is compiled: make compiled")
    built_at = stamp.stat().st_mtime
    if any(file.stat().st_mtime > built_at for package in PACKAGES for file in (root / package).rglob("*.py")):
        raise NotCompiledError("what is compiled is older than the sources: make compiled")
    # The safe path: else "python -m" looks into the present directory first, where the sources are.
    return {**COMPILED, "PYTHONPATH": f"{build}{os.pathsep}{root}", "PYTHONSAFEPATH": "1"}
