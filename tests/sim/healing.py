"""The time until bytes move again after a path or a relay recovers: one stream, one fault, nothing else."""

from __future__ import annotations

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import FaultKind, FaultPlan, Moment, Window
from tests.sim.node import NodeSpec
from tests.sim.path import PathShape
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.world import World

__all__ = ["HEALING_US", "time_to_first_byte_after_blackhole", "time_to_first_byte_after_restart"]

HEALING_US = 2 * SECOND  # docs/RELIABILITY.md, scenario 18
HOLE_STARTS_US = 3 * SECOND


def time_to_first_byte_after_blackhole(kind: FaultKind, length_us: int, seed: int, *, upload: bool, bulk: bool) -> int:
    """Return the virtual time from the end of the blackhole to the first new byte at the reader.

    Raise Violation if the run does not complete.
    """
    heals_us = HOLE_STARTS_US + length_us
    if bulk:
        flow = Flow(size=6_000_000)
    else:  # one byte every 100 ms, before, during and after the blackhole
        flow = Flow(size=heals_us // (100 * MILLISECOND) + 50, write_bytes=1, write_pause_us=100 * MILLISECOND)
    up, down = (flow, Flow()) if upload else (Flow(), flow)
    far = PathShape(40 * MILLISECOND, 40 * MILLISECOND, 5 * MILLISECOND, 1_000_000)
    near = PathShape(MILLISECOND, MILLISECOND, 0, 100_000_000)
    scenario = Scenario(
        seed=seed,
        nodes=(NodeSpec("client", shape=far), NodeSpec("service", shape=near, services=("service",))),
        streams=(StreamSpec(0, 0, 1, up, down, Ending.FINISH, SECOND, label="healing"),),
        plan=FaultPlan(end_us=heals_us, windows=(Window(kind, HOLE_STARTS_US, heals_us, 0),)),
    )
    world = World(scenario)
    world.moves = []
    world.run()
    return next(time_us - heals_us for time_us, _, _ in world.moves if time_us >= heals_us)


def time_to_first_byte_after_restart(absence_us: int, start_us: int, seed: int, *, upload: bool) -> int:
    """Return the virtual time from the relay's restart to the first new byte at the reader of a stream.

    The stream opens at `start_us`. The relay dies at 3 s and restarts after `absence_us`. The service returns to the
    relay later than the client, and on a link.
    """
    back_us = HOLE_STARTS_US + absence_us
    flow = Flow(size=(back_us - start_us) // (100 * MILLISECOND) + 50, write_bytes=1, write_pause_us=100 * MILLISECOND)
    up, down = (flow, Flow()) if upload else (Flow(), flow)
    near = PathShape(MILLISECOND, MILLISECOND, 0, 100_000_000)
    far = PathShape(40 * MILLISECOND, 40 * MILLISECOND, 5 * MILLISECOND, 1_000_000)
    scenario = Scenario(
        seed=seed,
        nodes=(NodeSpec("client", shape=near), NodeSpec("service", shape=far, services=("service",), link=True)),
        streams=(StreamSpec(0, 0, 1, up, down, Ending.FINISH, start_us, label="restart"),),
        plan=FaultPlan(end_us=back_us, moments=(Moment(FaultKind.RELAY_RESTART, HOLE_STARTS_US, -1, absence_us),)),
    )
    world = World(scenario)
    world.moves = []
    world.run()
    return next(time_us - back_us for time_us, _, _ in world.moves if time_us >= back_us)
