"""Gates hold and break where they should."""

import pytest

from loadtests.stress.gates import Thresholds, judge, lower_envelope, slope_percent_per_minute
from loadtests.stress.measures import Row

SUMMARY: Row = {"actions": 10, "failures": 0, "wrong": 0, "descriptors_left": 0, "tasks_left": 0}
MIB = 1 << 20


def rows(rise_bytes: float, process: str = "relay", seconds: int = 300) -> list[Row]:
    return [{"seconds": float(i), "rss_bytes": {process: 100 * MIB + rise_bytes * i / 60}} for i in range(seconds)]


def broken(found: list[Row], summary: Row, thresholds: Thresholds | None = None) -> list[str]:
    return [gate.name for gate in judge(found, summary, thresholds or Thresholds(), 60) if not gate.ok]


def test_a_quiet_run_breaks_nothing() -> None:
    assert broken(rows(0), SUMMARY) == []


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"failures": 1}, "failed user actions"),
        ({"wrong": 1}, "wrong bytes"),
        ({"actions": 0}, "user actions"),
        ({"descriptors_left": 1}, "descriptors left at the end"),
        ({"tasks_left": 1}, "tasks left at the end"),
    ],
)
def test_each_gate_breaks_alone(change: Row, name: str) -> None:
    assert broken(rows(0), {**SUMMARY, **change}) == [name]


def test_failures_that_are_allowed() -> None:
    assert broken(rows(0), {**SUMMARY, "failures": 2}, Thresholds(failures=2)) == []


def test_the_most_connections_of_any_second_count() -> None:
    found = [{**row, "connections": count} for row, count in zip(rows(0), (0, 10, 5), strict=False)]
    assert broken(found, SUMMARY, Thresholds(connections=10)) == []
    assert broken(found, SUMMARY, Thresholds(connections=11)) == ["connections at once"]


def test_memory_that_grows_breaks_its_gate() -> None:
    assert broken(rows(2 * MIB), SUMMARY) == ["memory of relay"]
    assert broken(rows(0.5 * MIB), SUMMARY) == []  # half a percent a minute
    assert broken(rows(0.9 * MIB, seconds=300), SUMMARY, Thresholds(slope_percent=0.5)) == []  # the allocator's noise
    assert broken(rows(10 * MIB, seconds=120), SUMMARY) == []  # little time: what the load needs
    assert broken(rows(50 * MIB, seconds=120), SUMMARY) == ["memory of relay"]
    assert broken(rows(-2 * MIB), SUMMARY) == []


def test_the_ramp_does_not_count() -> None:
    ramp = [{"seconds": float(i), "rss_bytes": {"relay": i * MIB}} for i in range(60)]
    flat = [{"seconds": float(i), "rss_bytes": {"relay": 60 * MIB}} for i in range(60, 300)]
    assert broken([*ramp, *flat], SUMMARY) == []


def test_what_is_just_moved_does_not_count() -> None:
    points = [(float(i), 100.0 + (50 if i % 5 == 3 else 0)) for i in range(100)]
    assert [y for _, y in lower_envelope(points)] == [100.0] * 10


def test_slopes() -> None:
    assert slope_percent_per_minute([(float(i), 100 + i / 60) for i in range(60)]) == pytest.approx(1, rel=0.01)
    assert slope_percent_per_minute([(0, 1), (1, 2)]) == 0  # too few
    assert slope_percent_per_minute([(1.0, 5.0)] * 10) == 0  # all at once
    assert slope_percent_per_minute([(float(i), 0.0) for i in range(10)]) == 0
