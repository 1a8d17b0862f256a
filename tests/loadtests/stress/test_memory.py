"""The growth of a process's memory, at equal load, and when it counts as not measured."""

from collections.abc import Sequence

import pytest

from loadtests.stress.measures import Row
from loadtests.stress.memory import growth_of, lower_envelope, settled, slope
from loadtests.stress.shapes import Plan, make_plan
from tests.loadtests.stress.runs import MIB, rows

LONG = make_plan("steps", 50, 600, ["0"])


def rise_mib(found: Sequence[Row], plan: Plan = LONG) -> float:
    growth = growth_of("relay", found, plan)
    assert not growth.problem
    return growth.rise_bytes / MIB


def test_a_steady_rise_is_found() -> None:
    found = rows(lambda process, second: 100 * MIB + second * MIB / 60, LONG)
    growth = growth_of("relay", found, LONG)
    assert growth.bytes_per_s == pytest.approx(MIB / 60, rel=0.01)
    assert growth.percent_per_minute == pytest.approx(1, rel=0.1)
    assert growth.rise_bytes == pytest.approx(growth.measured_s * MIB / 60, rel=0.01)
    assert rise_mib(rows(lambda process, second: 100 * MIB, LONG)) == 0


def test_the_ramp_does_not_count() -> None:
    assert rise_mib(rows(lambda process, second: min(second, 60) * MIB, LONG)) == 0


def test_memory_of_data_in_flight_does_not_count() -> None:
    points = [(float(i), 100.0 + (50 if i % 5 == 3 else 0)) for i in range(100)]
    assert [y for _, y in lower_envelope(points, 10)] == [100.0] * 10


def test_the_rest_of_a_window_does_not_count() -> None:
    """The least of a few points may be a peak."""
    points = [(float(i), 100.0) for i in range(20)] + [(float(i), 150.0) for i in range(20, 24)]
    assert [y for _, y in lower_envelope(points, 10)] == [100.0] * 2


def test_there_is_no_slope_without_enough_points() -> None:
    assert slope([[(float(i), 100 + i / 60) for i in range(60)]]) == pytest.approx(1 / 60)
    assert slope([[(0, 1), (1, 2)]]) is None  # too few points
    assert slope([[(1.0, 5.0)] * 10]) is None  # all at the same time
    assert slope([]) is None


def test_levels_share_one_slope_at_different_heights() -> None:
    def level(begin: int, height: float, rise: float) -> list[tuple[float, float]]:
        return [(float(i), height + rise * i) for i in range(begin, begin + 120)]

    assert slope([level(0, 100, 0), level(120, 130, 0), level(240, 160, 0), []]) == pytest.approx(0)
    assert slope([level(0, 100, 3), level(120, 130, 3), level(240, 160, 3)]) == pytest.approx(3)


@pytest.mark.parametrize("losses", [["0", "0.1"], ["0", "0.01", "0.05", "0.1", "0.2"]])
def test_memory_that_rises_with_the_loss_is_not_a_leak_and_memory_that_stays_is(losses: list[str]) -> None:
    """A loss above 0 needs memory: 20 MiB at first, then 10 MiB. All phases are short, as in `make stress`."""
    plan = make_plan("steps", 50, 25.0 * (len(losses) + 1), losses)

    def memory(second: int, leak_bytes_per_phase: float) -> float:
        stage = plan.at(second)
        assert stage is not None
        needed = 0 if stage.loss == "0" else 20 * MIB if second % 25 < 7 else 10 * MIB
        return 100 * MIB + needed + second // 25 * leak_bytes_per_phase

    assert rise_mib(rows(lambda process, second: memory(second, 0), plan), plan) == pytest.approx(0)
    # Constant in each phase, but each one is higher than the one before: only the loss that comes back shows it.
    leaked = rise_mib(rows(lambda process, second: memory(second, 10 * MIB), plan), plan)
    assert leaked == pytest.approx(10 * len(losses), rel=0.2)


def test_the_time_after_a_change_of_the_load_does_not_count() -> None:
    plan = make_plan("spike", 50, 90, ["0"])
    parts = settled(rows(lambda process, second: 0, plan), plan)
    assert {load: len(part) for load, part in parts.items()} == {("0", 5): 40, ("0", 50): 20}
    plan = make_plan("soak", 50, 300, ["0", "0.1"])
    assert {load: len(part) for load, part in settled(rows(lambda process, second: 0, plan), plan).items()} == {
        ("0", 50): 20 + 40 + 40,
        ("0.1", 50): 40 + 40,
    }


@pytest.mark.parametrize("seconds", [20, 30, 60, 150, 600])
def test_one_load_in_a_run_of_any_length_is_measured(seconds: float) -> None:
    plan = make_plan("steps", 50, seconds, ["0"])
    assert rise_mib(rows(lambda process, second: 100 * MIB + second * MIB, plan), plan) > seconds / 4


def test_what_was_not_measured_says_why() -> None:
    found = rows(lambda process, second: 100 * MIB, LONG)
    assert growth_of("nobody", found, LONG).problem.startswith("not measured: its memory is known for 0 of ")
    assert "not measured" in growth_of("relay", [], LONG).problem
    cut = growth_of("relay", found[:200], LONG).problem  # the run went on, but the sampling ended
    assert cut.startswith("not measured: ")
    assert "with the same load" in cut
    plan = make_plan("steps", 50, 4, ["0", "0.1"])
    assert "not measured" in growth_of("relay", rows(lambda process, second: 100 * MIB, plan), plan).problem
