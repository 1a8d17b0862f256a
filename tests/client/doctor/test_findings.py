"""Findings as text for people and as JSON for programs."""

import json

from tunnel.ground.exit_codes import INTEGRITY, OK, UNREACHABLE
from tunnel.ground.printable import counted
from tunnel_client.doctor.findings import Finding, Report, Verdict, render_finding, render_summary


def test_lines_are_broken_and_indented() -> None:
    text = render_finding(Finding("relay", Verdict.PROBLEM, "word " * 30, "do this"))
    lines = text.splitlines()
    assert lines[0].startswith("  problem    relay         word word")
    assert all(len(line) <= 110 for line in lines)
    assert lines[1].startswith(" " * 27 + "word")
    assert text.endswith("do this\n")


def test_a_word_longer_than_a_line_stays_whole() -> None:
    assert "x" * 200 in render_finding(Finding("relay", Verdict.OK, "x" * 200))


def test_the_first_problem_decides_the_exit_code_and_all_are_reported() -> None:
    told: list[Finding] = []
    report = Report("http://relay", told=told.append)
    report.add("a", Verdict.OK, "fine", ms=1)
    report.add("b", Verdict.PROBLEM, "bad", "mend it", exit_code=4)
    report.add("c", Verdict.PROBLEM, "worse", exit_code=3)
    assert report.exit_code == 4
    assert [finding.step for finding in told] == ["a", "b", "c"]
    report.summary, report.next = "no", "tunnel login"
    assert render_summary(report) == "\nverdict: no\nnext:    tunnel login\n"
    report.next = ""
    assert render_summary(report) == "\nverdict: no\n"
    found = json.loads(report.encode())
    assert found["version"] == 1
    assert found["findings"][0] == {"step": "a", "verdict": "ok", "text": "fine", "advice": "", "data": {"ms": 1}}
    assert "told" not in found


def test_a_note_leaves_the_exit_code_at_0_and_a_problem_sets_it_to_3_by_default() -> None:
    report = Report("http://relay")
    report.add("a", Verdict.NOTE, "odd")
    assert report.exit_code == OK
    report.add("b", Verdict.PROBLEM, "bad")
    assert report.exit_code == UNREACHABLE
    report.add("c", Verdict.PROBLEM, "worse", exit_code=INTEGRITY)
    assert report.exit_code == UNREACHABLE


def test_numbers_have_their_noun() -> None:
    assert [counted(1, "note"), counted(2, "note")] == ["1 note", "2 notes"]


def test_a_finding_without_advice_ends_with_its_text() -> None:
    assert render_finding(Finding("relay", Verdict.OK, "fine")) == "  ok         relay         fine\n"


def test_lines_are_filled_up_to_their_width() -> None:
    words = f"{'x' * 41} {'y' * 40}"
    assert render_finding(Finding("relay", Verdict.OK, words)).count("\n") == 1
    assert render_finding(Finding("relay", Verdict.OK, words + "y")).count("\n") == 2
