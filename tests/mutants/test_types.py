"""Mutants that mypy refuses are found, by function."""

from pathlib import Path

from tests.mutants.areas import Module
from tests.mutants.tree import mutated
from tests.mutants.types import refused
from tests.mutants.verdicts import changes

SOURCE = """
class Box:
    def __init__(self) -> None:
        self.full = False
        self.level: int = 4

    def fill(self, size: int) -> None:
        self.full = size > 4
"""


def test_a_mutant_with_a_wrong_type_is_refused_and_others_are_not(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    module = Module("core", "box")
    (tree / module.path).parent.mkdir(parents=True)
    text, _ = mutated("box.py", SOURCE)
    (tree / module.path).write_text(text)
    found = refused(tree, [module])
    words = changes(text)
    assert {words[name] for name in found[module]} == {
        "Box.__init__: False => None #1",
        "Box.__init__: 4 => None #1",
        "Box.fill: size > 4 => None #1",
    }
