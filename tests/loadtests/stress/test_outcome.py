"""The rows of several processes become one run, its steps, and its page."""

import json
from pathlib import Path

import pytest

from loadtests.stress.gates import Thresholds, judge
from loadtests.stress.measures import Row, row_of
from loadtests.stress.outcome import read_outcome, without_summary
from loadtests.stress.page import render
from tunnel import AttachmentStats
from tunnel.core import ConnectionStats


def write(directory: Path, name: str, rows: list[Row]) -> None:
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def summary(count: int) -> Row:
    return {
        "time_s": 1.0,
        "actions": count,
        "failures": 1,
        "wrong": 0,
        "moved_bytes": 5,
        "descriptors_left": 0,
        "tasks_left": 0,
        "by_action": {"echo": {"count": count, "failures": 1, "p50_ms": count, "p99_ms": 9.0}},
        "errors": ["late", f"error {count}"],
        "new_descriptors": ["anon_inode:[eventpoll]"],
    }


def make_run(directory: Path) -> None:
    for pid in (1, 2):
        rows: list[Row] = []
        for second in range(6):
            resent = {"pto_probe": second * pid} if second != 4 else {"pto_probe": 0}
            rows.append(
                {
                    "time_s": 1000.0 + second,
                    "pid": pid,
                    "rss_bytes": 100 * pid,
                    "descriptors": 5,
                    "moved_bytes": 1000 * second * pid,
                    "rto_ms": 10 * pid,
                    "connections": pid,
                    "resent_by_cause": resent,
                    "objects": {"dict": 100 + second},
                }
            )
        write(directory, f"process-{pid}.jsonl", rows)
        write(directory, f"summary-{pid}.jsonl", [summary(pid)])
    weather: list[Row] = [
        {
            "time_s": 1000.5 + second,
            "loss": "0" if second < 3 else "0.1",
            "processes": {"relay": {"rss_bytes": 7, "descriptors": 8}},
            "relay": {"switch": {"bytes_held": 9, "bytes_outstanding": 10, "routes": 11}},
        }
        for second in range(6)
    ]
    write(directory, "world-1.jsonl", weather)


def test_processes_are_summed(tmp_path: Path) -> None:
    make_run(tmp_path)
    outcome = read_outcome(tmp_path)
    second = outcome.rows[2]
    assert (second["connections"], second["moved_bytes"], second["rto_ms"]) == (3, 6000, 20)
    assert second["rss_bytes"] == {"users 0": 100, "users 1": 200, "relay": 7}
    assert (second["mailbox_bytes"], second["unconfirmed_bytes"], second["routes"]) == (9, 10, 11)
    assert outcome.summary["actions"] == 3
    assert outcome.summary["by_action"]["echo"] == {"count": 3, "failures": 2, "p50_ms": 2, "p99_ms": 9.0}
    assert outcome.summary["errors"] == ["error 1", "error 2", "late"]


def test_goodput_is_computed_for_each_step(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert read_outcome(tmp_path).steps == [("0", 2.0, 3000.0), ("0.1", 3.0, 3000.0)]


def test_retransmissions_of_connections_that_ended_stay_counted(tmp_path: Path) -> None:
    make_run(tmp_path)
    # The counters rise to 3 and 6, both connections end, and new ones rise to 5 and 10.
    assert read_outcome(tmp_path).resent == {"pto_probe": 3 + 6 + 5 + 10}


def test_a_run_without_measures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="the run ended before it could write them"):
        read_outcome(tmp_path)


def test_a_missing_summary_is_an_error_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    make_run(tmp_path)
    (tmp_path / "summary-2.jsonl").unlink()
    assert without_summary(tmp_path) == [2]
    with pytest.raises(ValueError, match="process 2"):
        read_outcome(tmp_path)
    make_run(tmp_path)
    with (tmp_path / "process-1.jsonl").open("a") as file:
        file.write('{"time_s": 10')
    assert len(read_outcome(tmp_path).rows) == 6


def test_the_page_shows_every_figure(tmp_path: Path) -> None:
    make_run(tmp_path)
    outcome = read_outcome(tmp_path)
    page = render(outcome, judge(outcome.rows, outcome.summary, Thresholds(), 0), "run <this>")
    assert "Broken: failed user actions." in page
    assert "run &lt;this&gt;" in page
    for word in ("pto_probe", "relay", "Goodput by step", "Resident memory", "largest RTO", "dict", "echo"):
        assert word in page
    good = judge(outcome.rows, {**outcome.summary, "failures": 0}, Thresholds(), 0)
    assert "Every gate held: 3 actions, no wrong byte." in render(outcome, good, "")


def test_a_row_sums_the_connections() -> None:
    assert row_of(None) == {"connections": 0}
    one = ConnectionStats(bytes_written=10, bytes_acknowledged=4, srtt_us=2000, rto_us=1000, resent_by_cause={"a": 1})
    two = ConnectionStats(bytes_written=5, srtt_us=4000, rto_us=5000, resent_by_cause={"a": 2, "b": 1}, backoff=3)
    row = row_of(AttachmentStats(True, "poll", "", 6, 0, {1: one, 2: two}))
    assert (row["send_queue_bytes"], row["srtt_ms"], row["rto_ms"], row["rto_ms_max"]) == (11, 3, 3, 5)
    assert (row["resent_by_cause"], row["backoff_max"], row["unreceipted_batches"]) == ({"a": 3, "b": 1}, 3, 6)
