"""Each kind of fault alone: it strikes, and every stream ends as it should all the same."""

import pytest

from tests.sim.alone import one_kind
from tests.sim.faults import FaultKind
from tests.sim.runner import run_scenario


@pytest.mark.parametrize("kind", FaultKind, ids=lambda kind: kind.name.lower())
def test_every_stream_ends_as_it_should_under_one_kind_of_fault_alone(kind: FaultKind) -> None:
    outcome = run_scenario(one_kind(kind, seed=12))
    assert not outcome.failure
    # The number of times it struck, in whatever state the connections were.
    assert outcome.cells[kind.name][""] > 0
