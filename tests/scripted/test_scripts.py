"""Every script under `scripts/`: the endpoint follows it, its clauses exist, and they use the whole state table."""

import re
from contextlib import suppress
from pathlib import Path

import pytest

from tests.scripted.language import ScriptError, parse_script
from tests.scripted.runner import play_file
from tunnel.core.connection.state import TRANSITIONS, Action, Input, State

HERE = Path(__file__).parent
SCRIPTS = sorted((HERE / "scripts").rglob("*.trace"))
PROTOCOL = HERE.parent.parent / "docs/PROTOCOL.md"
CLAUSES = set(re.findall(r"^\*\*([0-9]+\.[0-9]+)\*\*", PROTOCOL.read_text(), re.MULTILINE))
SCRIPTS_MIN = 100

Row = tuple[State, tuple[Action, ...]]


def name(path: Path) -> str:
    return str(path.relative_to(HERE / "scripts").with_suffix(""))


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_the_endpoint_follows_the_script(path: Path) -> None:
    failure = ""
    try:
        play_file(path)
    except ScriptError as error:
        failure = str(error)
    if failure:
        pytest.fail(failure, pytrace=False)


@pytest.mark.parametrize("path", SCRIPTS, ids=name)
def test_clauses_that_a_script_names_exist(path: Path) -> None:
    clauses = parse_script(path).clauses
    assert clauses
    assert [clause for clause in clauses if clause not in CLAUSES] == []


class Table(dict[tuple[State, Input], Row]):
    """The state table; it records the rows that were used."""

    def __init__(self) -> None:
        super().__init__(TRANSITIONS)
        self.used: dict[tuple[State, Input], None] = {}

    def get(self, key: tuple[State, Input], default: Row | None = None, /) -> Row | None:  # type: ignore[override]
        if key in self:
            self.used[key] = None
        return super().get(key, default)


@pytest.mark.interpreted
def test_the_scripts_use_every_row_of_the_state_table(monkeypatch: pytest.MonkeyPatch) -> None:
    table = Table()
    monkeypatch.setattr("tunnel.core.connection.connection.TRANSITIONS", table)
    for path in SCRIPTS:
        with suppress(ScriptError):
            play_file(path)
    assert [(state.name, event.name) for state, event in TRANSITIONS if (state, event) not in table.used] == []


def test_there_are_enough_scripts() -> None:
    assert len(SCRIPTS) >= SCRIPTS_MIN
