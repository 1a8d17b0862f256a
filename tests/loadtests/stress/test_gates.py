"""The gates of a stress run hold and break where they should."""

from collections.abc import Sequence

import pytest

from loadtests.stress.gates import Thresholds, judge, lower_envelope, settled, slope_percent_per_minute
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
def test_each_gate_breaks_independently(change: Row, name: str) -> None:
    assert broken(rows(0), {**SUMMARY, **change}) == [name]


def test_failures_within_the_threshold_are_allowed() -> None:
    assert broken(rows(0), {**SUMMARY, "failures": 2}, Thresholds(failures=2)) == []


def test_the_most_connections_of_any_second_count() -> None:
    found = [{**row, "connections": count} for row, count in zip(rows(0), (0, 10, 5), strict=False)]
    assert broken(found, SUMMARY, Thresholds(connections=10)) == []
    assert broken(found, SUMMARY, Thresholds(connections=11)) == ["connections at once"]


def test_memory_that_grows_breaks_its_gate() -> None:
    assert broken(rows(2 * MIB), SUMMARY) == ["memory of relay"]
    assert broken(rows(0.5 * MIB), SUMMARY) == []  # half a percent a minute
    assert broken(rows(0.9 * MIB, seconds=300), SUMMARY, Thresholds(slope_percent=0.5)) == []  # less than 4 MiB in all
    assert broken(rows(10 * MIB, seconds=120), SUMMARY) == []  # less than 32 MiB in a short run
    assert broken(rows(50 * MIB, seconds=120), SUMMARY) == ["memory of relay"]
    assert broken(rows(-2 * MIB), SUMMARY) == []


def test_the_ramp_does_not_count() -> None:
    ramp = [{"seconds": float(i), "rss_bytes": {"relay": i * MIB}} for i in range(60)]
    flat = [{"seconds": float(i), "rss_bytes": {"relay": 60 * MIB}} for i in range(60, 300)]
    assert broken([*ramp, *flat], SUMMARY) == []


def test_memory_of_data_in_flight_does_not_count() -> None:
    points = [(float(i), 100.0 + (50 if i % 5 == 3 else 0)) for i in range(100)]
    assert [y for _, y in lower_envelope(points)] == [100.0] * 10


def test_a_slope_is_in_percent_per_minute_and_0_without_enough_points() -> None:
    assert slope_percent_per_minute([[(float(i), 100 + i / 60) for i in range(60)]]) == pytest.approx(1, rel=0.01)
    assert slope_percent_per_minute([[(0, 1), (1, 2)]]) == 0  # too few points
    assert slope_percent_per_minute([[(1.0, 5.0)] * 10]) == 0  # all at the same time
    assert slope_percent_per_minute([[(float(i), 0.0) for i in range(10)]]) == 0
    assert slope_percent_per_minute([]) == 0


def test_levels_share_one_slope_at_different_heights() -> None:
    def level(begin: int, height: float, rise: float) -> list[tuple[float, float]]:
        return [(float(i), height + rise * i / 60) for i in range(begin, begin + 120)]

    steps = [level(0, 100, 0), level(120, 130, 0), level(240, 160, 0), []]
    assert slope_percent_per_minute(steps) == pytest.approx(0)
    leaking = [level(0, 100, 3), level(120, 130, 3), level(240, 160, 3)]
    assert slope_percent_per_minute(leaking) == pytest.approx(300 / 139, rel=0.01)


def stepped(rise_bytes: float, losses: Sequence[str]) -> list[Row]:
    """Return rows for a minute of each loss. A loss above 0 needs memory: 20 MiB for 25 s, then 10 MiB."""
    found: list[Row] = []
    for second in range(60 * len(losses)):
        loss = losses[second // 60]
        held = 100 * MIB + rise_bytes * second / 60
        if loss != "0":
            held += (20 if second % 60 < 25 else 10) * MIB
        found.append({"seconds": float(second), "loss": loss, "rss_bytes": {"relay": held}})
    return found


def test_memory_that_rises_with_the_loss_is_not_a_leak() -> None:
    losses = ("0", "0", "0.1", "0.1", "0", "0", "0.1", "0.1")
    assert broken(stepped(0, losses), SUMMARY) == []
    assert broken(stepped(2 * MIB, losses), SUMMARY) == ["memory of relay"]


def test_memory_that_is_higher_when_a_loss_returns_is_a_leak() -> None:
    """Memory is constant within each minute, but each minute is higher than the one before."""
    found = [
        {"seconds": float(i), "loss": str(i // 60 % 2), "rss_bytes": {"relay": 100 * MIB + i // 60 * 3 * MIB}}
        for i in range(600)
    ]
    assert broken(found, SUMMARY) == ["memory of relay"]
    assert {loss: len(part) for loss, part in settled(found, 60).items()} == {"1": 5 * 30, "0": 4 * 30}
