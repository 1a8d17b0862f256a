"""Each kind of fault alone: it strikes, and every stream ends as it should all the same."""

import pytest

from tests.sim.alone import one_kind
from tests.sim.clock import SECOND
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.runner import run_scenario


@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.name.lower())
def test_every_stream_ends_as_it_should_under_one_kind_of_fault_alone(kind: FaultKind) -> None:
    outcome = run_scenario(one_kind(kind, seed=12))
    assert not outcome.failure
    # The key "" counts all strikes, in whatever state the connections were.
    assert outcome.cells[kind.name][""] > 0


def test_a_path_heals_only_when_a_relay_that_restarted_at_the_last_moment_is_back() -> None:
    """A restart that is drawn may begin just before the end of the faults; without restarts, nothing has to return."""
    plan = FaultPlan(end_us=20 * SECOND, restart_exchanges_mean=20, restarts_max=1, restart_absence_us=5 * SECOND)
    assert plan.healed_us == 25 * SECOND
    assert FaultPlan(end_us=20 * SECOND, restart_absence_us=5 * SECOND).healed_us == 20 * SECOND
