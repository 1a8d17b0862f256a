"""Paths that are only slow lose nothing, and cause few retransmissions (docs/RELIABILITY.md, scenario 22)."""

import pytest

from tests.sim.alone import one_slow_path
from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.path import PathShape
from tests.sim.world import World

SHAPES = {
    "256 kbit/s at 2 s": PathShape(SECOND, SECOND, 0, 32_000),
    "1 MB/s at 600 ms": PathShape(300 * MILLISECOND, 300 * MILLISECOND, 0, 1_000_000),
    "10 MB/s at 100 ms with jitter": PathShape(50 * MILLISECOND, 50 * MILLISECOND, 40 * MILLISECOND, 10_000_000),
}


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_a_slow_path_causes_no_storm_of_retransmissions(shape: PathShape) -> None:
    world = World(one_slow_path(shape, 400_000))
    world.run()
    writer = world.streams[0].initiator
    assert writer is not None
    stats = writer.connection.snapshot()
    assert stats.packets_sent > 10
    assert stats.packets_resent * 20 <= stats.packets_sent
