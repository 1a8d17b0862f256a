"""Users pay for the processor time of their work, although the clock of processor time is rarely read."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.turns.meter import EXCESS_S, GarbageTime, ProcessorMeter

SHORT_S = EXCESS_S / 10
LONG_S = EXCESS_S * 20
TINY_S = 1e-9  # tolerance for rounding errors

seconds = st.floats(0, LONG_S)


class FakeCollector:
    """Stands in for the garbage collector; a test sets its time."""

    total_s = 0.0


class Machine:
    """A machine whose processor works for one thread, for another, or for none."""

    def __init__(self, garbage: GarbageTime | None = None) -> None:
        self.wall_s = 1000.0
        self.processor_s = 7.0
        self.readings = 0
        self.meter = ProcessorMeter(lambda: self.wall_s, self._read, garbage)

    def _read(self) -> float:
        self.readings += 1
        return self.processor_s

    def work(self, work_s: float, elsewhere_s: float = 0.0) -> None:
        """Let the thread work for `work_s`, and wait for the processor for `elsewhere_s`."""
        self.wall_s += work_s + elsewhere_s
        self.processor_s += work_s

    def measured(self, work_s: float, elsewhere_s: float = 0.0) -> float:
        began = self.meter.start()
        self.work(work_s, elsewhere_s)
        return self.meter.since(began)


def test_short_work_is_measured_without_a_system_call_for_each_piece() -> None:
    machine = Machine()
    total_s = sum(machine.measured(SHORT_S) for _ in range(1000))
    assert total_s == pytest.approx(1000 * SHORT_S)
    assert machine.readings <= 1000 * SHORT_S / EXCESS_S + 1


def test_the_clock_is_read_before_work_that_follows_long_unmeasured_work() -> None:
    """The unmeasured work is not charged."""
    machine = Machine()
    machine.measured(SHORT_S)
    machine.work(LONG_S)
    assert machine.measured(2 * EXCESS_S, LONG_S) == pytest.approx(2 * EXCESS_S)


def test_long_work_is_charged_whole_after_much_short_work() -> None:
    machine = Machine()
    for _ in range(9):
        machine.measured(SHORT_S)
    assert machine.measured(LONG_S) == pytest.approx(LONG_S)


def test_work_inside_other_work_is_a_part_of_it() -> None:
    machine = Machine()
    began = machine.meter.start()
    assert machine.measured(LONG_S) == pytest.approx(LONG_S)
    assert machine.measured(LONG_S, LONG_S) == pytest.approx(LONG_S)
    assert machine.meter.since(began) == pytest.approx(2 * LONG_S)


@pytest.mark.parametrize("work_s", [0.0, SHORT_S, LONG_S])
def test_no_user_pays_for_a_garbage_collection(work_s: float) -> None:
    collector = FakeCollector()
    machine = Machine(collector)
    began = machine.meter.start()
    machine.work(work_s, 2 * LONG_S)
    machine.work(3 * LONG_S)
    collector.total_s += 3 * LONG_S
    assert machine.meter.since(began) == pytest.approx(work_s)
    assert machine.measured(LONG_S, LONG_S) == pytest.approx(LONG_S)
    machine.work(SHORT_S)
    assert machine.measured(SHORT_S) == pytest.approx(SHORT_S)


@given(st.lists(st.tuples(seconds, seconds, seconds, seconds), max_size=30))
def test_the_measured_time_is_at_least_the_truth_and_at_most_a_little_more(
    pieces: list[tuple[float, float, float, float]],
) -> None:
    machine = Machine()
    for work_s, elsewhere_s, other_s, idle_s in pieces:
        found_s = machine.measured(work_s, elsewhere_s)
        assert work_s - TINY_S <= found_s <= min(work_s + elsewhere_s, work_s + EXCESS_S) + TINY_S
        machine.work(other_s, idle_s)  # between two pieces of work


def test_two_users_one_pays_little_for_time_that_the_processor_spent_on_another() -> None:
    machine = Machine()
    machine.measured(SHORT_S)
    assert machine.measured(SHORT_S, LONG_S) <= SHORT_S + EXCESS_S


def test_the_real_clocks_measure_work() -> None:
    meter = ProcessorMeter()
    began = meter.start()
    while (found_s := meter.since(began)) < 3 * EXCESS_S:
        pass
    assert found_s < 1
