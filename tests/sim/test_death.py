"""The peers of a dead endpoint learn of its death when its next life attaches; a silent path is an error only after
the user timeout."""

import pytest

from tests.sim.alone import one_death, one_silence
from tests.sim.clock import MINUTE, SECOND
from tests.sim.workload import Outcome
from tests.sim.world import World
from tunnel.core import LostReason


@pytest.mark.parametrize("node", [0, 1, 2])
@pytest.mark.parametrize("seed", [1, 2])
def test_peers_of_a_dead_endpoint_learn_of_its_death_when_its_successor_attaches(node: int, seed: int) -> None:
    absence_us = 7 * SECOND
    world = World(one_death(node, seed, absence_us))
    world.run()
    ends_us = [
        party.ended_us - 5 * SECOND - absence_us
        for each in world.streams.values()
        for party in each.parties
        if party.outcome is Outcome.LOST
    ]
    assert len(ends_us) >= 2
    assert max(ends_us) <= 2 * SECOND


def test_a_silence_longer_than_the_user_timeout_is_an_error_on_both_sides() -> None:
    world = World(one_silence(3 * MINUTE, user_timeout_us=MINUTE))
    world.begin()
    while world.open_streams and world.clock.step(10 * MINUTE):
        pass
    parties = world.streams[0].parties
    assert [party.outcome for party in parties] == [Outcome.LOST, Outcome.LOST]
    assert {party.reason for party in parties} <= {LostReason.TIMEOUT, LostReason.UNKNOWN}
    assert all(party.ended_us <= 2 * MINUTE + 10 * SECOND for party in parties)


def test_a_silence_shorter_than_the_user_timeout_is_no_error() -> None:
    world = World(one_silence(50 * SECOND, user_timeout_us=MINUTE))
    world.run()
    assert [party.outcome for party in world.streams[0].parties] == [Outcome.CLEAN, Outcome.CLEAN]
