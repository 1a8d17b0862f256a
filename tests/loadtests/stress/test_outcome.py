"""The rows of several processes become one run, its steps, and its page."""

import json
from pathlib import Path

import pytest

from loadtests.stress.gates import Finding
from loadtests.stress.measures import Row, row_of
from loadtests.stress.outcome import Population, read_outcome, without_summary
from loadtests.stress.page import render
from loadtests.stress.repairs import RepairCounter
from tunnel import AttachmentStats
from tunnel.core import ConnectionStats


def write(directory: Path, name: str, rows: list[Row]) -> None:
    (directory / name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def summary(count: int) -> Row:
    return {
        "time_s": 1.0,
        "pid": count,
        "kinds": {"EchoUser": ["echo"]},
        "objects_before": {"tunnel.A": 10 * count},
        "objects_after": {"tunnel.A": 10 * count + 1},
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
            resent = {"pto_probe": second * pid}
            rows.append(
                {
                    "time_s": 1000.0 + second,
                    "pid": pid,
                    "rss_bytes": 100 * pid,
                    "send_queue_bytes": 1,
                    "receive_queue_bytes": 2,
                    "descriptors": 5,
                    "moved_bytes": 1000 * second * pid,
                    "rto_ms": 10 * pid,
                    "connections": pid,
                    "resent_by_cause": resent,
                    "objects": {"tunnel.A": 100 * pid + second},
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
            "loss_counts": {"lost": 2 * second},
            "objects": {"relay": {"tunnel.B": 50 - second}},
        }
        for second in range(6)
    ]
    write(directory, "world-1.jsonl", weather)
    end: Row = {
        "time_s": 1010.0,
        "objects_before": {"relay": {"tunnel.B": 3}},
        "objects_after": {"relay": {"tunnel.B": 4}},
    }
    write(directory, "end-1.jsonl", [end])


def test_processes_are_summed(tmp_path: Path) -> None:
    make_run(tmp_path)
    outcome = read_outcome(tmp_path)
    second = outcome.rows[2]
    assert (second["connections"], second["moved_bytes"], second["rto_ms"]) == (3, 6000, 20)
    assert second["rss_bytes"] == {"users 0": 100, "users 1": 200, "relay": 7}
    assert second["kept_bytes"] == {"users 0": 97, "users 1": 197, "relay": 7}  # without what is queued
    assert (second["mailbox_bytes"], second["unconfirmed_bytes"], second["routes"]) == (9, 10, 11)
    assert outcome.summary["actions"] == 3
    assert outcome.summary["by_action"]["echo"] == {"count": 3, "failures": 2, "p50_ms": 2, "p99_ms": 9.0}
    assert outcome.summary["errors"] == ["error 1", "error 2", "late"]


def test_goodput_is_computed_for_each_step(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert read_outcome(tmp_path).steps == [("0", 2.0, 3000.0), ("0.1", 3.0, 3000.0)]


def test_retransmissions_and_losses_are_counted_by_the_loss_in_force(tmp_path: Path) -> None:
    make_run(tmp_path)
    outcome = read_outcome(tmp_path)
    assert outcome.resent == {"pto_probe": 5 + 10}
    assert outcome.resent_by_loss == {"0": {"pto_probe": 2 + 4}, "0.1": {"pto_probe": 3 + 6}}
    assert outcome.lost_by_loss == {"0": 4, "0.1": 6}


def test_retransmissions_of_connections_that_ended_stay_counted() -> None:
    counter = RepairCounter()
    one, two = ConnectionStats(resent_by_cause={"pto_probe": 3}), ConnectionStats(resent_by_cause={"pto_probe": 4})
    assert counter.look({1: one}) == {"pto_probe": 3}
    assert counter.look({1: one, 2: two}) == {"pto_probe": 7}
    assert counter.look({2: ConnectionStats(resent_by_cause={"pto_probe": 5, "retransmit_timeout": 1})}) == {
        "pto_probe": 8,
        "retransmit_timeout": 1,
    }
    assert counter.look({}) == {"pto_probe": 8, "retransmit_timeout": 1}


def test_first_and_last_objects_come_from_the_same_process(tmp_path: Path) -> None:
    make_run(tmp_path)
    assert read_outcome(tmp_path).objects == {
        "users 0": Population({"tunnel.A": 10}, {"tunnel.A": 105}, {"tunnel.A": 11}),
        "users 1": Population({"tunnel.A": 20}, {"tunnel.A": 205}, {"tunnel.A": 21}),
        "relay": Population({"tunnel.B": 3}, {"tunnel.B": 50}, {"tunnel.B": 4}),
    }
    write(tmp_path, "summary-1.jsonl", [{**summary(1), "objects_before": {}}])
    write(tmp_path, "summary-2.jsonl", [{**summary(2), "objects_after": {}}])
    (tmp_path / "end-1.jsonl").unlink()
    assert set(read_outcome(tmp_path).objects) == {"users 0"}


def test_figures_of_servers_that_are_no_longer_sampled_are_not_repeated(tmp_path: Path) -> None:
    make_run(tmp_path)
    rows = [
        {"time_s": 1000.0 + second, "pid": 1, "rss_bytes": 1, "descriptors": 1, "moved_bytes": 0}
        for second in range(20)
    ]
    write(tmp_path, "process-1.jsonl", rows)
    with (tmp_path / "world-1.jsonl").open("a") as file:
        file.writelines(json.dumps({"time_s": 1006.0 + second, "error": "it has ended"}) + "\n" for second in range(14))
    known = [row["seconds"] for row in read_outcome(tmp_path).rows if "relay" in row["rss_bytes"]]
    assert known == [0, 1, 2, 3, 4, 5, 6, 7, 8]


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
    broken = Finding("wrong bytes", "1", "none", ok=False)
    page = render(outcome, [broken], "run <this>")
    assert "Broken: wrong bytes." in page
    assert "run &lt;this&gt;" in page
    for word in ("pto_probe", "at loss 0.1", "relay", "Goodput by step", "Resident memory", "largest RTO", "echo"):
        assert word in page
    for process in ("users 0", "users 1", "relay"):
        assert f"<h3>{process}</h3>" in page
    assert "<td class=''>tunnel.A</td><td class='number'>20</td><td class='number'>205</td>" in page
    assert "Every gate held: 3 actions, no wrong byte." in render(outcome, [], "")


def test_a_row_sums_the_connections() -> None:
    assert row_of(None) == {"connections": 0}
    one = ConnectionStats(bytes_written=10, bytes_acknowledged=4, srtt_us=2000, rto_us=1000)
    two = ConnectionStats(bytes_written=5, srtt_us=4000, rto_us=5000, backoff=3)
    row = row_of(AttachmentStats(True, "poll", "", 6, 0, {1: one, 2: two}))
    assert (row["send_queue_bytes"], row["srtt_ms"], row["rto_ms"], row["rto_ms_max"]) == (11, 3, 3, 5)
    assert (row["backoff_max"], row["unreceipted_batches"]) == (3, 6)
