"""A copy of the project in which every function of the chosen modules is followed by its mutants."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable
from pathlib import Path

from mutmut.mutation.file_mutation import mutate_file_contents

from tests.mutants.areas import Module
from tests.mutants.verdicts import changes

__all__ = ["mutate", "mutated"]

COPIED = ("client", "docs", "loadtests", "servlet", "tests", "tunnel")


def mutate(root: Path, tree: Path, modules: Iterable[Module]) -> dict[Module, list[str]]:
    """Make `tree` from `root`; return the names of each module's mutants."""
    shutil.rmtree(tree, ignore_errors=True)
    tree.mkdir(parents=True)
    for name in COPIED:
        shutil.copytree(root / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(root / "pyproject.toml", tree)
    made = {}
    for module in modules:
        text = _kept(tree.parent / "made", str(module.path), (root / module.path).read_text())
        (tree / module.path).write_text(text)
        made[module] = list(changes(text))
    return made


def _kept(kept: Path, path: str, source: str) -> str:
    """Return what `mutated` makes of the source, from a file if it has been made before: making it takes long."""
    found = kept / f"{hashlib.sha256((path + source).encode()).hexdigest()[:24]}.py"
    if not found.exists():
        kept.mkdir(exist_ok=True)
        found.write_text(mutated(path, source)[0])
    return found.read_text()


def mutated(path: str, source: str) -> tuple[str, list[str]]:
    """The source with all mutants of its functions, and their names."""
    found = mutate_file_contents(path, source)
    return found.code, list(found.mutant_names)
