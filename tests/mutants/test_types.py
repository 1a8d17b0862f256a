"""Mutants that mypy refuses are found, by function."""

import shutil
from pathlib import Path

from tests.mutants.areas import Module
from tests.mutants.tree import mutated
from tests.mutants.types import refused
from tests.mutants.verdicts import changes

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
class Box:
    def __init__(self) -> None:
        self.full = False
        self.level: int = 4

    def fill(self, size: int) -> None:
        self.full = size > 4

    def room(self, size: int) -> int:
        return size if self.full else 0
"""


def test_a_mutant_with_a_wrong_type_is_refused_and_others_are_not(tmp_path: Path) -> None:
    """One whose condition is always true or false is not: mypy would not miss the condition if it were left out."""
    tree = tmp_path / "tree"
    module = Module("core", "box")
    (tree / module.path).parent.mkdir(parents=True)
    shutil.copy(ROOT / "pyproject.toml", tree)
    text, _ = mutated("box.py", SOURCE)
    (tree / module.path).write_text(text)
    found = refused(tree, [module])
    words = changes(text)
    assert {words[name] for name in found[module]} == {
        "Box.__init__: False => None #1",
        "Box.__init__: 4 => None #1",
        "Box.fill: size > 4 => None #1",
    }
