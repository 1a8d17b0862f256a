"""Bounds on key figures: what they compare, and what a report says of those that it fails."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.analysis.job import Found
from tests.analysis.plain import compressed
from tunnel.analysis.bounds import FIGURES, bound_of, failures
from tunnel.analysis.cli import main
from tunnel.analysis.page.figures import key_figures
from tunnel.analysis.results.result import Analysis
from tunnel.ground.exit_codes import EXCEEDED, OK, USAGE

OF = Analysis(
    end_us=2_000_000,
    totals={
        "streams": 2, "both_ends": 2, "packets": 1_000, "unique_packets": 900, "judged": 1_000, "lost": 50,
        "judged_repeats": 100, "needless": 25, "useful_bytes": 80, "known_bytes": 100, "payload_bytes": 1_000_000,
        "busy_us": 1_000_000,
    },
    trips={"us": [40_000, 60_000, 90_000]},
    stalls=[{"us": 30}],
    limits={"idle": 70},
)  # fmt: skip


@pytest.mark.parametrize(
    ("text", "fails"),
    [
        ("loss > 4.9%", True),
        ("loss > 5 %", False),
        ("LOSS>=5%", True),
        ("repeats > 9%", True),
        ("repeats < 10%", False),
        ("needless <= 25%", True),
        ("stalled > 29%", True),
        ("efficiency < 81%", True),
        ("round_trip > 39ms", True),
        ("round_trip > 0.04 s", False),
        ("round_trip_p99 > 89999 us", True),
        ("goodput < 8.1 Mbit/s", True),
        ("goodput < 8000 kbit/s", False),
    ],
)
def test_a_bound_is_compared_in_its_unit(text: str, fails: bool) -> None:
    assert bool(failures(OF, [bound_of(text)])) == fails


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("loss", "is no bound: write FIGURE > NUMBER UNIT"),
        ("losses > 1%", "the figures are loss, repeats, "),
        ("loss > 1", "'loss > 1' has no unit: loss is given in %"),
        ("loss => 1%", "is no bound: write FIGURE > NUMBER UNIT, as in 'loss > 1%', with >, >=, < or <=; the figures"),
        ("loss > 1 ms", "has the unit ms: loss is given in %"),
        ("goodput < 1 %", "goodput is given in bit/s, kbit/s, mbit/s, gbit/s"),
    ],
)
def test_what_is_no_bound_says_what_is_one(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=re.escape(words)):
        bound_of(text)


def test_each_bound_that_fails_is_a_sentence() -> None:
    bounds = [bound_of("loss  >  1%"), bound_of("repeats > 50%"), bound_of("round_trip > 1ms")]
    assert failures(OF, bounds) == [
        "loss is 5.0 %, so the bound loss > 1% is exceeded",
        "round_trip is 40 ms, so the bound round_trip > 1ms is exceeded",
    ]


@pytest.mark.parametrize("figure", sorted(FIGURES))
def test_a_figure_that_is_unknown_fails(figure: str) -> None:
    unit = next(iter(FIGURES[figure].units))
    for of in (Analysis(), Analysis(totals=dict.fromkeys(OF.totals, 0) | {"streams": 1})):
        assert "is unknown, so it may be that" in failures(of, [bound_of(f"{figure} > 99{unit}")])[0]


def test_figures_are_those_of_the_page(found: Found) -> None:
    shown = {name: text for name, text, _ in key_figures(found.truth)}
    assert FIGURES["goodput"].text(FIGURES["goodput"].value(found.truth)) == shown["Goodput"]
    assert FIGURES["round_trip"].text(FIGURES["round_trip"].value(found.truth)) == shown["Round trip"]
    assert FIGURES["stalled"].text(FIGURES["stalled"].value(found.truth)) == shown["Stalled"]


def test_a_page_that_cannot_be_written_is_refused_before_anything_is_computed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compressed(tmp_path, "one", 9)
    assert main(["report", str(tmp_path), "-o", str(tmp_path)]) == USAGE
    assert f"{tmp_path} is a directory: name the file for the page, as in -o report.html" in capsys.readouterr().err
    assert not (tmp_path / "_tables").exists()


def test_the_command_writes_the_report_and_ends_with_8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    compressed(tmp_path, "one", 9)
    command = ["report", str(tmp_path), "-o", str(tmp_path / "r.html")]
    assert main(command) == OK
    (tmp_path / "r.html").unlink()
    assert main([*command, "--fail-if", "loss > 1%"]) == EXCEEDED
    assert (tmp_path / "r.html").exists()
    assert "tunnel-traces: loss is unknown" in capsys.readouterr().err
    with pytest.raises(SystemExit) as stopped:
        main([*command, "--fail-if", "loss > much"])
    assert stopped.value.code == USAGE
    assert "is no bound" in capsys.readouterr().err
