"""How mutants are named, defended and counted."""

import pytest

from tests.mutants.areas import Module
from tests.mutants.plugin import Outcome
from tests.mutants.tree import mutated
from tests.mutants.verdicts import changes, judge, read_defended, render

SOURCE = '''
class Box:
    def full(self, size: int) -> bool:
        """Whether it is."""
        return size > 4


def twice(number: int) -> int:
    return number * 2
'''
MODULE = Module("core", "box")
HALF = "twice: return number * 2 => return number / 2"
MORE = "twice: return number * 2 => return number * 3"


def test_a_change_is_named_by_its_function_and_its_words() -> None:
    text, names = mutated("box.py", SOURCE)
    found = changes(text)
    assert set(found) == set(names)
    assert sorted(found.values()) == [
        "Box.full: return size > 4 => return size > 5",
        "Box.full: return size > 4 => return size >= 4",
        MORE,
        HALF,
    ]


def test_the_name_stays_when_the_code_around_it_moves() -> None:
    moved = SOURCE.replace("\nclass", "\n\nNUMBER = 1\n\n\nclass").replace(
        "def twice", "def once() -> None: ...\n\n\ndef twice"
    )
    assert set(changes(mutated("box.py", SOURCE)[0]).values()) <= set(changes(mutated("box.py", moved)[0]).values())


def test_defended_lines_have_a_reason() -> None:
    text = f"# a comment\n\ncore.box {HALF}\ncore.box {MORE}\n    because\n"
    assert read_defended(text) == {f"core.box {HALF}": "because", f"core.box {MORE}": "because"}
    with pytest.raises(ValueError, match="no reason is given for core"):
        read_defended(f"core.box {HALF}\n")


def test_mutants_are_counted_and_survivors_compared_with_what_is_defended() -> None:
    text, names = mutated("box.py", SOURCE)
    words = changes(text)
    outcomes = dict.fromkeys(names, Outcome.KILLED)
    by_words = {change: name for name, change in words.items()}
    outcomes[by_words[HALF]] = Outcome.SURVIVED
    outcomes[by_words[MORE]] = Outcome.UNREACHED
    outcomes[names[0]] = Outcome.TIMEOUT
    row = judge(
        MODULE, text, outcomes, {f"core.box {HALF}": "why", "core.box f: a => b": "why", "core.boxes f: a": "x"}
    )
    assert (row.mutants, row.noticed, row.timeouts) == (4, 2, 1)
    assert row.survivors == [f"core.box {MORE}"]
    assert row.defended == [f"core.box {HALF}"]
    assert row.stale == ["core.box f: a => b"]
    assert row.rate == pytest.approx(200 / 3)
    lines = list(render([row]))
    assert lines[:2] == [f"core.box {MORE}", "defended, but there is no such mutant: core.box f: a => b"]
    assert lines[-2].split() == ["core.box", "4", "1", "1", "0", "1", "1", "66.7%"]
    assert lines[-1].split() == ["all", "4", "1", "1", "0", "1", "1", "66.7%"]


def test_a_module_without_mutants_is_without_fault() -> None:
    assert judge(MODULE, "X = 1\n", {}, {}).rate == 100
