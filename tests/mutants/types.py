"""Mutants that the type checker notices: `make lint` is part of `make test`, so tests need not catch those mutants."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from tests.mutants.areas import Module

__all__ = ["refused"]

ERROR = re.compile(r"^(.+\.py):(\d+): error: (.*)$")
# Each mutant of a constructor is a copy of it in the same class, and declares the same attributes again. mypy reports
# this as an error, which is not due to the mutant. Nor is a condition with "or True" after it a wrong type: mypy finds
# these words needless, but would not miss the condition if it were left out, which is the same change.
_NO_TYPES = ("[no-redef]", "[redundant-expr]")


def refused(tree: Path, modules: Iterable[Module]) -> dict[Module, set[str]]:
    """The names of the mutants in `tree` that mypy refuses."""
    by_path = {str(module.path): module for module in modules}
    options = ["--no-warn-unused-ignores", "--no-pretty", f"--cache-dir={tree.parent / 'mypy'}"]
    command = [sys.executable, "-m", "mypy", *options, *by_path]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise RuntimeError(f"mypy did not run: {done.stdout}{done.stderr}")
    lines: dict[str, set[int]] = {}
    for line in done.stdout.splitlines():
        found = ERROR.match(line)
        if found is not None and found[1] in by_path and not found[3].endswith(_NO_TYPES):
            lines.setdefault(found[1], set()).add(int(found[2]))
    return {
        module: set(_functions_with((tree / path).read_text(), lines.get(path, set())))
        for path, module in by_path.items()
    }


def _functions_with(text: str, lines: set[int]) -> Iterable[str]:
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and "__mutmut_" in node.name:
            last = node.end_lineno or node.lineno
            if any(node.lineno <= line <= last for line in lines):
                yield node.name
