"""The limits of a path: they count each request that comes, so that repeats may keep them from ending."""

from tests.sim.clock import SECOND
from tests.sim.faults import FaultKind, FaultPlan, Window
from tests.sim.limits import PathLimits

K = FaultKind


def limits(kind: FaultKind) -> PathLimits:
    return PathLimits(FaultPlan(end_us=90 * SECOND, windows=(Window(kind, 5 * SECOND, 80 * SECOND, 1),)), 1)


def struck(kind: FaultKind, *times_s: float, new_connection: bool = True) -> list[bool]:
    found = limits(kind)
    return [found.strike(round(at_s * SECOND), new_connection=new_connection)[0] is kind for at_s in times_s]


def test_each_request_renews_a_ban_and_its_end_is_final() -> None:
    for kind in (K.BANNED, K.SWALLOWED):
        assert struck(kind, 4, 5, 14, 23, 33, 34, 60) == [False, True, True, True, False, False, False]


def test_a_request_keeps_its_place_in_the_queue() -> None:
    found = limits(K.QUEUED)
    waits = [found.strike(at_s * SECOND, new_connection=False)[1] for at_s in (4, 5, 5, 5, 7)]
    assert [wait_us // 100_000 for wait_us in waits] == [0, 0, 3, 6, 0]


def test_five_new_connections_pass_in_ten_seconds_and_those_that_are_cut_count_too() -> None:
    assert struck(K.FEW_CONNECTIONS, *range(5, 12)) == [False] * 5 + [True] * 2
    assert struck(K.FEW_CONNECTIONS, *range(5, 30, 3)) == [False] * 9
    assert struck(K.FEW_CONNECTIONS, *range(5, 12), new_connection=False) == [False] * 7


def test_a_window_concerns_one_path() -> None:
    plan = FaultPlan(end_us=90 * SECOND, windows=(Window(K.BANNED, 0, 80 * SECOND, 1),))
    assert PathLimits(plan, 0).strike(SECOND, new_connection=True) == (None, 0)
