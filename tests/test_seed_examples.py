"""The programs in examples/seeds print what their own texts say."""

import gc
import re
import runpy
import sys
import textwrap
from pathlib import Path

import pytest
import structlog

ROOT = Path(__file__).parent.parent
SEEDS = ROOT / "examples" / "seeds"
SHARED = SEEDS / "http_tunnel_protocol" / "two_endpoints.py"
PROGRAMS = [path for path in sorted(SEEDS.rglob("*.py")) if path != SHARED]


def promised(program: Path) -> str:
    """Return the lines that the program says it prints."""
    found = re.search(r"\nPrints:\n((?:    .*\n)+)\"\"\"", program.read_text())
    assert found is not None, f"{program} does not say what it prints"
    return textwrap.dedent(found[1])


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_a_program_prints_what_it_says(
    program: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(program.parent)  # as Python does for a program
    try:
        runpy.run_path(str(program), run_name="__main__")
        gc.collect()
    finally:
        sys.modules.pop(SHARED.stem, None)
        structlog.reset_defaults()
    shown = capsys.readouterr()
    assert shown.out == promised(program)
    assert shown.err == ""


def test_each_program_is_named_in_the_table() -> None:
    text = (SEEDS / "README.md").read_text()
    named = re.findall(r"\]\((\w+/\w+\.py)\)", text)
    assert sorted(named) == [str(path.relative_to(SEEDS)) for path in PROGRAMS]
