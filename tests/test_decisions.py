"""docs/DECISIONS.md has the form that it describes, and every number of a decision that the tree names is there."""

import re
import tomllib
from pathlib import Path

import pytest

from tests.support.text_files import text_files

ROOT = Path(__file__).parent.parent
DOCUMENT = ROOT / "docs" / "DECISIONS.md"
LINES_MAX = 20
_NUMBERS = r"\d+(?:(?:, | and |, and )\d+)*"
REPLACED = re.compile(rf"replaces decisions? ({_NUMBERS})")
REFERRED = re.compile(rf"(?:DECISIONS(?:\.md\)?)?,? |\bdecisions? )({_NUMBERS})\b")
_TOWNCRIER = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["towncrier"]
KINDS = {kind["directory"] for kind in _TOWNCRIER["type"]}
FRAGMENT = re.compile(rf"\+[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(sorted(KINDS))})\.md")


def entries() -> dict[int, list[str]]:
    """Return the lines of each entry, heading included, by its number."""
    parts = re.split(r"(?m)^(?=## \d)", DOCUMENT.read_text())[1:]
    found = [(int(part.split()[1]), part.rstrip().splitlines()) for part in parts]
    assert len({number for number, _ in found}) == len(found), "two entries have one number"
    return dict(found)


ENTRIES = entries()


def numbers(text: str) -> set[int]:
    return {int(number) for number in re.findall(r"\d+", text)}


def referred(text: str) -> set[int]:
    """Return the numbers of decisions that a text names, except those that it says are replaced."""
    joined = re.sub(r"\s*\n[#/\s]*", " ", text)
    return {number for found in REFERRED.findall(REPLACED.sub("", joined)) for number in numbers(found)}


def test_entries_are_short_have_a_status_and_stand_newest_first() -> None:
    assert list(ENTRIES) == sorted(ENTRIES, reverse=True)
    assert {number: len(lines) for number, lines in ENTRIES.items() if len(lines) > LINES_MAX} == {}
    assert [number for number, lines in ENTRIES.items() if not lines[1].startswith("Status: binding")] == []


def test_the_index_has_each_entry_once() -> None:
    index = DOCUMENT.read_text().partition("## Index by subject\n")[2].partition("\n## ")[0]
    listed = [int(number) for row in index.splitlines()[3:] for number in re.findall(r"\d+", row.split("|")[2:3][0])]
    assert sorted(listed) == sorted(ENTRIES)


def test_an_entry_that_another_one_replaces_is_gone() -> None:
    replaced = {number for found in REPLACED.findall(DOCUMENT.read_text()) for number in numbers(found)}
    assert replaced
    assert replaced & set(ENTRIES) == set()


def test_each_decision_that_the_tree_names_exists() -> None:
    named = {str(file.relative_to(ROOT)): referred(file.read_text()) for file in text_files()}
    missing = {name: found - set(ENTRIES) for name, found in named.items() if found - set(ENTRIES)}
    assert named["Dockerfile"] == {39, 41}  # the search finds something
    assert missing == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("(docs/DECISIONS.md, 39 and 41)", {39, 41}),
        ("see decision 8, and decisions 1, 2 and 3", {8, 1, 2, 3}),
        ("# a comment whose decision\n# 12 is in the next line", {12}),
        ("Status: binding; replaces decisions 87, 88 and 95.", set()),
        ("decisions = 0", set()),
    ],
)
def test_references_are_found(text: str, expected: set[int]) -> None:
    assert referred(text) == expected


def test_the_files_of_changes_have_names_that_towncrier_reads() -> None:
    """It passes over a file with another name without a word, and the change would be missing in the changelog."""
    names = {file.name for file in (ROOT / "changes").iterdir()} - {"README.md"}
    assert [name for name in sorted(names) if not FRAGMENT.fullmatch(name)] == []
    assert FRAGMENT.fullmatch("+relay-answers-options.fixed.md")
    assert not FRAGMENT.fullmatch("relay.fixed.md")
    assert not FRAGMENT.fullmatch("+relay.fixd.md")
