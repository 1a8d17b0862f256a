"""The Spark job of the analysis on clusters: a standalone master with two workers, and Spark's own local cluster."""

import json
from pathlib import Path

import pytest

from tests.analysis.cluster import CODEC, WORKERS, standalone, submit
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.writer import TraceWriter

pytestmark = pytest.mark.timeout(1500)

FILES = 4


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    for number in range(FILES):
        with TraceWriter(tmp_path / "traces", name=f"w{number}") as trace:
            for time_us in range(2000):
                trace(TraceRecord(time_us=time_us, node=f"n{number}", event=TraceEvent.ATTACHED))
    (tmp_path / "log").mkdir()
    return tmp_path / "traces"


def executors_that_worked(log: Path) -> dict[str, int]:
    """Executor -> number of tasks that it finished."""
    done: dict[str, int] = {}
    for path in sorted(log.rglob("*")):
        if path.is_file() and not path.name.startswith((".", "appstatus")):
            for line in path.read_text().splitlines():
                event = json.loads(line)
                if event["Event"] == "SparkListenerTaskEnd" and event["Task End Reason"]["Reason"] == "Success":
                    executor = event["Task Info"]["Executor ID"]
                    done[executor] = done.get(executor, 0) + 1
    return done


def check(master: str, traces: Path) -> None:
    log = traces.parent / "log"
    result = submit(master, traces, log)
    assert result.returncode == 0, result.stderr[-4000:]
    intake = json.loads(result.stdout.strip().splitlines()[-1])
    assert len(intake["files"]) == FILES
    assert [file["problem"] for file in intake["files"]] == [""] * FILES
    worked = executors_that_worked(log)
    assert len(worked) == WORKERS, worked
    assert all(worked.values())
    assert list((traces / "_tables" / "events").glob(f"*/*/*.{CODEC}.parquet"))  # not our own setting, which is zstd


def test_two_executors_of_a_standalone_master_share_the_work(traces: Path) -> None:
    with standalone(traces.parent) as master:
        check(master, traces)


def test_two_executors_of_a_local_cluster_share_the_work(traces: Path) -> None:
    check(f"local-cluster[{WORKERS},1,512]", traces)
