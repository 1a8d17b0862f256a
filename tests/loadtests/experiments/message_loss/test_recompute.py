"""Spark computes the same report from the records of a run."""

from pathlib import Path

import pytest

from loadtests.experiments.message_loss import recompute
from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.report import Report
from loadtests.experiments.message_loss.statistics import Phase, PhaseStatistics

SIZE = 50


def write_run(directory: Path) -> Report:
    """Write the records of an imagined run: five messages are lost in two gaps, and one arrives twice."""
    statistics = PhaseStatistics()
    received: list[list[int]] = [[], []]
    with Recorder(directory, "sender", statistics) as sender:
        for number in range(1, 41):
            if number == 31:
                statistics.phase = Phase.AFTER
            statistics.published[statistics.phase].add(1, SIZE)
            sender.published(number, SIZE)
            on_wire = SIZE + 40 + len(str(number))
            statistics.increment_out_bytes(on_wire)
            sender.buffered(number, on_wire)
            if number not in (12, 13):
                statistics.register_write(1, on_wire)
                sender.written(number, on_wire)
    for i in range(2):
        with Recorder(directory, f"receiver-{i}") as receiver:
            for number in [*range(1 + i, 41, 2), *([40] if i else [])]:
                if number not in (12, 13, 20, 21, 22):
                    receiver.received(number, SIZE)
                    received[i].append(number)
    return Report.of("raw", "builtin", SIZE, received, statistics)


@pytest.mark.real("java")
def test_spark_agrees(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    directory = tmp_path / "raw-builtin"
    expected = write_run(directory)
    assert (expected.lost, expected.twice) == (5, 1)
    spark = recompute.session()
    try:
        assert recompute.recompute(recompute.records_of(spark, directory), "raw", "builtin") == expected
    finally:
        spark.stop()


def test_missing_records_are_an_error_that_says_what_to_do(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert recompute.main([str(tmp_path)]) == 2
    assert "run python -m loadtests.experiments.message_loss first" in capsys.readouterr().err
