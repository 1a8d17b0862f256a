"""A long transfer on the link: a slow one leaves it for a trial, and a healthy one never does (PROTOCOL 8.6)."""

from __future__ import annotations

import pytest

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import FaultPlan
from tests.sim.ladder_node import LadderNode
from tests.sim.node import LadderSpec, NodeSpec
from tests.sim.path import PathShape
from tests.sim.roads import Mode
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.world import World

_NEAR = PathShape(MILLISECOND, MILLISECOND, 0, 100_000_000)


def transferred(flow: Flow, bytes_per_second: int, *, upload: bool, streams: bool, connections: int = 1) -> LadderNode:
    """Run one transfer to its end; all bytes arrive, or it raises. All connections share the rate of the path, unless
    exchanges use several `connections` that each have it."""
    shape = PathShape(40 * MILLISECOND, 40 * MILLISECOND, 5 * MILLISECOND, bytes_per_second, connections=connections)
    up, down = (flow, Flow()) if upload else (Flow(), flow)
    scenario = Scenario(
        seed=1,
        nodes=(
            NodeSpec("client", shape=shape, ladder=LadderSpec(), streams=streams),
            NodeSpec("service", shape=_NEAR, services=("service",)),
        ),
        streams=(StreamSpec(0, 0, 1, up, down, Ending.FINISH, SECOND, label="long"),),
        plan=FaultPlan(),
    )
    world = World(scenario)
    world.begin()
    (found,) = world.ladder_nodes
    for road in found.roads.roads.values():
        road.mode = Mode.WORKS
    world.run()
    return found


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("upload", [True, False])
def test_a_slow_path_that_is_no_faster_with_requests_costs_one_trial_a_minute(upload: bool, streams: bool) -> None:
    node = transferred(Flow(size=8_000_000), 100_000, upload=upload, streams=streams)
    assert 2 <= len(node.roads.roads["link"].tries) <= 3
    assert node.carrier._ladder.used_road == "link"


@pytest.mark.parametrize("upload", [True, False])
def test_a_path_that_limits_each_connection_is_left_to_requests_until_the_transfer_ends(upload: bool) -> None:
    node = transferred(Flow(size=8_000_000), 100_000, upload=upload, streams=True, connections=3)
    first, *later = node.roads.roads["link"].tries
    assert 0 < len(later) <= 1  # while the transfer lasts, the road rests
    assert later[0] - first < 60 * SECOND  # on the link, it takes 80 s
    assert node.carrier._ladder.used_road == "link"


@pytest.mark.parametrize("upload", [True, False])
def test_a_healthy_transfer_never_leaves_its_road(upload: bool) -> None:
    node = transferred(Flow(size=20_000_000), 2_000_000, upload=upload, streams=True)
    assert len(node.roads.roads["link"].tries) == 1
    assert node.carrier._ladder.used_road == "link"


@pytest.mark.parametrize("upload", [True, False])
def test_a_slow_application_on_a_healthy_path_never_leaves_its_road(upload: bool) -> None:
    flow = Flow(size=3_000_000, write_bytes=10_000, write_pause_us=100 * MILLISECOND)
    node = transferred(flow, 2_000_000, upload=upload, streams=True)
    assert len(node.roads.roads["link"].tries) == 1
    assert node.carrier._ladder.used_road == "link"
