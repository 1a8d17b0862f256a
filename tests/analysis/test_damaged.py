"""A directory with every kind of damage still gives a report, and the report names the damage."""

from pathlib import Path

import pytest

from tests.analysis.damage import BAD_LINES, FRAME_RECORDS
from tests.analysis.job import Found

pytestmark = pytest.mark.timeout(1600)


def test_every_damaged_file_is_named_with_its_problem(found: Found) -> None:
    problems = {(row["file"], row["problem"]) for row in found.damaged.problems}
    assert set(found.expected.items()) <= problems
    newer = next(name for name, problem in found.expected.items() if problem == "version")
    assert problems - set(found.expected.items()) == {(newer, "lines")}
    assert [row["count"] for row in found.damaged.problems if row["problem"] == "lines"] == [BAD_LINES]


def test_a_duplicate_names_its_original(found: Found) -> None:
    (row,) = [row for row in found.damaged.problems if row["problem"] == "duplicate"]
    assert row["same_as"].startswith("whole-")


def test_whole_frames_are_counted_once(found: Found) -> None:
    whole = 2 * FRAME_RECORDS + 100
    events = {row["writer"].split("-")[0]: row["events"] for row in found.damaged.writers}
    assert events == {"whole": whole, "truncated": 2 * FRAME_RECORDS, "corrupt": FRAME_RECORDS + 100, "newer": whole}


def test_a_damaged_frame_counts_as_missing_records_and_not_as_lost_packets(found: Found) -> None:
    missing = {row["writer"].split("-")[0]: row["missing"] for row in found.damaged.writers}
    assert missing["corrupt"] == FRAME_RECORDS
    assert missing["whole"] == missing["newer"] == 0
    assert not found.damaged.totals.get("lost")


def test_a_file_is_added_only_once(found: Found) -> None:
    assert found.rows_again == found.rows_first
    assert found.rows_more == found.rows_first + 1


def test_the_report_names_the_damaged_files(found: Found, job_directory: Path) -> None:
    page = (job_directory / "damaged.html").read_text()
    assert all(name in page for name in found.expected)
    assert "Records missing from the trace itself" in page
