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
HALF = "twice: * => / #1"
MORE = "twice: 2 => 3 #1"


def test_a_change_is_named_by_its_function_and_its_tokens() -> None:
    text, names = mutated("box.py", SOURCE)
    found = changes(text)
    assert set(found) == set(names)
    assert sorted(found.values()) == [
        "Box.full: 4 => 5 #1",
        "Box.full: > => >= #1",
        HALF,
        MORE,
    ]


def test_the_name_stays_when_the_code_around_it_moves() -> None:
    moved = SOURCE.replace("\nclass", "\n\nNUMBER = 1\n\n\nclass").replace(
        "def twice", "def once() -> None: ...\n\n\ndef twice"
    )
    assert set(changes(mutated("box.py", SOURCE)[0]).values()) <= set(changes(mutated("box.py", moved)[0]).values())


TWO_OF_EACH = """
def both(first, second):
    return first < 4 and second < 4
"""


def test_the_same_tokens_twice_in_a_function_have_different_numbers() -> None:
    found = sorted(changes(mutated("box.py", TWO_OF_EACH)[0]).values())
    assert found == [
        "both: 4 => 5 #1",
        "both: 4 => 5 #2",
        "both: < => <= #1",
        "both: < => <= #2",
        "both: and => or #1",
    ]


def test_the_name_stays_when_only_the_layout_of_the_line_changes() -> None:
    clearer = TWO_OF_EACH.replace(
        "    return first < 4 and second < 4",
        "    # Four is too many.\n    return (\n        first < 4\n        and second < 4  # of both\n    )",
    )
    named = {change.rpartition(" #")[0] for change in changes(mutated("box.py", clearer)[0]).values()}
    assert {change.rpartition(" #")[0] for change in changes(mutated("box.py", TWO_OF_EACH)[0]).values()} <= named


def test_a_change_that_only_adds_tokens_is_named_with_the_token_before() -> None:
    mutated_text = "def x_f__mutmut_orig(a):\n    return a\n\n\ndef x_f__mutmut_1(a):\n    return a or True\n"
    assert list(changes(mutated_text).values()) == ["f: a => a or True #2"]


def test_a_defence_that_names_two_mutants_is_an_error() -> None:
    function = "def x_f__mutmut_{}(a):\n    return {}\n"
    text = "\n".join(function.format(*pair) for pair in (("orig", "a"), ("1", "None"), ("2", "None")))
    outcomes = dict.fromkeys(("x_f__mutmut_1", "x_f__mutmut_2"), Outcome.SURVIVED)
    row = judge(MODULE, text, outcomes, {"core.box f: a => None #2": "why"})
    assert row.ambiguous == ["core.box f: a => None #2"]
    assert row.has_faults
    assert "defended, but two mutants are meant: core.box f: a => None #2" in list(render([row]))


def test_defended_lines_have_a_reason() -> None:
    text = f"# a comment\n\ncore.box {HALF}\ncore.box {MORE}\n    because\n"
    assert read_defended(text) == {f"core.box {HALF}": "because", f"core.box {MORE}": "because"}
    with pytest.raises(ValueError, match="no reason is given for core"):
        read_defended(f"core.box {HALF}\n")


def test_survivors_are_compared_with_the_defended_mutants() -> None:
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


def test_a_module_without_mutants_has_the_full_score() -> None:
    assert judge(MODULE, "X = 1\n", {}, {}).rate == 100
