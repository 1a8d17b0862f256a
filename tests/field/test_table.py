"""The table as text and as Markdown, and the document around it."""

import datetime
import re

import pytest

from tests.field import table
from tests.field.document import FILE, render_document
from tests.field.results import Bare, Doctor, Result
from tests.field.rows import ROWS, Row
from tests.field.table import COLUMNS, cells, render_markdown, render_text

BARE = Bare(up_bps=200e6, down_bps=400e6, echo_ms=0.1)
WHOLE = Result(
    "caddy",
    "auto",
    used="link",
    up_bps=100e6,
    down_bps=2.25e6,
    echo_ms=1.04,
    idle_ms=250.0,
    kill_s=1.26,
    bare=BARE,
    doctor=Doctor(0, "works", notes=["buffering", "idle limit"], problems=["body limit"]),
)


def test_the_cells_of_a_result_show_its_figures() -> None:
    assert cells(WHOLE) == (
        "Caddy",
        "auto, link",
        "100",
        "2.2",
        "50.0% / 0.6%",
        "1.0 ms",
        "250 ms",
        "1.3 s",
        "0; problem: body limit; note: buffering, idle limit",
        "whole",
    )


def test_parts_that_broke_are_shown_as_no_and_the_reason_is_in_the_outcome() -> None:
    found = cells(Result("caddy", "poll", used="poll", broken={"up": "no | way"}))
    assert found[2:8] == ("no", "no", "", "no", "no", "no")
    assert found[-1] == "FAILED: up: no | way"


def test_a_known_fault_has_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    row = Row("caddy", "Caddy", known={"up": "answers 502"})
    monkeypatch.setattr(table, "_ROWS", {"caddy": row})
    assert cells(Result("caddy", "poll", broken={"up": "reset"}))[-1] == "known: up: reset (answers 502)"


def test_a_refusal_has_no_figures() -> None:
    refused = Result("squid-accelerator", "poll", broken={"attach": "401"}, code=4, doctor=Doctor(4, "no"))
    assert cells(refused)[2:] == ("", "", "", "", "", "", "4", "refused, exit code 4")


def test_the_columns_of_the_text_are_aligned() -> None:
    head, first, second = render_text([WHOLE, Result("direct", "poll")]).splitlines()
    place = head.index("MB/s up")
    assert (first[place:][:3], second[place:][:2]) == ("100", "no")
    assert not first.endswith(" ")


def test_a_bar_in_a_cell_does_not_end_it() -> None:
    lines = render_markdown([Result("caddy", "poll", broken={"up": "no | way"})]).splitlines()
    assert [line.count("|") for line in lines] == [len(COLUMNS) + 1] * 3


def test_the_document_has_the_machine_the_date_and_the_programs() -> None:
    text = render_document([WHOLE], "2 processors", datetime.date(2026, 1, 2), "caddy 2.6.2")
    assert "Measured on 2026-01-02: 2 processors." in text
    assert "Programs: caddy 2.6.2." in text
    assert "| Caddy | auto, link |" in text


def test_the_document_names_the_rows_that_were_not_measured() -> None:
    results = [Result(row.name, "auto") for row in ROWS if row.name != "closes"]
    text = render_document(results, "2 processors", datetime.date(2026, 1, 2), "")
    assert "Not measured in this run: closes after each answer.\n" in text
    whole = render_document([*results, Result("closes", "auto")], "2 processors", datetime.date(2026, 1, 2), "")
    assert "Not measured" not in whole


def test_the_document_of_this_checkout_has_every_row() -> None:
    """A new row must be measured: make test-field FIELD=--write."""
    text = re.sub(r"\s+", " ", FILE.read_text())
    assert [row.name for row in ROWS if row.title not in text] == []
