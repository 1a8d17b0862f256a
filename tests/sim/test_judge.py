"""The simulator's judgement: which results count as a proper end of a stream, and which do not."""

from tests.sim.alone import unheard_abort
from tests.sim.workload import Outcome
from tests.sim.world import World
from tunnel.core import LostReason
from tunnel.wire import RejectReason


def test_an_abort_before_the_acceptance_left_reaches_the_initiator_as_a_refusal() -> None:
    world = World(unheard_abort())
    world.run()
    initiator, acceptor = world.streams[2].parties
    assert (acceptor.outcome, acceptor.reason) == (Outcome.LOST, LostReason.ABORTED)
    assert (initiator.outcome, initiator.refusal) == (Outcome.REFUSED, RejectReason.REFUSED)
    assert world.streams[2].refusals == 0  # the initiator did not open it again
    assert [party.outcome for party in world.streams[0].parties] == [Outcome.LOST, Outcome.LOST]


def test_a_refusal_for_another_reason_does_not_count_as_an_abort() -> None:
    world = World(unheard_abort())
    world.run()
    stream = world.streams[2]
    initiator, acceptor = stream.parties
    assert stream.aborted_unheard
    initiator.refusal = RejectReason.TIMED_OUT
    assert not stream.aborted_unheard
    initiator.refusal = RejectReason.GONE
    acceptor.aborted = False
    assert not stream.aborted_unheard
