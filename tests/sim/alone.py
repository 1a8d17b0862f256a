"""Scenarios for one purpose: a single kind of fault, a dead endpoint, a silent or a slow path, an early abort."""

from __future__ import annotations

from dataclasses import replace

from tests.sim.clock import MILLISECOND, MINUTE, SECOND
from tests.sim.faults import PHASE_US_MAX, STREAM_KINDS, FaultKind, FaultPlan, Moment, Window, plan_of
from tests.sim.node import LadderSpec, NodeSpec
from tests.sim.path import PathShape
from tests.sim.randomness import stream
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tunnel.core import EndpointConfig
from tunnel.exchange import LaneConfig

__all__ = ["one_death", "one_kind", "one_silence", "one_slow_path", "unheard_abort"]

PHASE_US = 30 * SECOND


def one_kind(kind: FaultKind, seed: int) -> Scenario:
    """A client and a service on lanes, an exit on a link, and nothing but this kind of fault.

    Where the kind strikes streamed answers or roads, all three use these instead.
    """
    plan = plan_of(stream(seed, "alone", kind.name), [kind], PHASE_US, 3, [2])
    paced = Flow(40_000, write_bytes=1000, write_pause_us=500 * MILLISECOND)
    streams = (
        StreamSpec(0, 0, 1, paced, paced, Ending.FINISH, label="both ways"),
        StreamSpec(1, 0, 2, paced, Flow(size=40_000), Ending.FINISH, echo=True, label="echo"),
        StreamSpec(2, 0, 2, Flow(60_000, read_bytes=2000, read_pause_us=SECOND), Flow(), Ending.CLOSE, label="one way"),
        StreamSpec(3, 0, 1, Flow(60_000, stop_at=100, stop_us=20 * SECOND), Flow(9), Ending.FINISH, label="stopped"),
    )
    nodes = _nodes(link=True)
    if kind in STREAM_KINDS:
        nodes = tuple(replace(node, streams=True, link=False, lanes=LaneConfig(stream_after_us=0)) for node in nodes)
    if kind is FaultKind.ROAD_CHANGED:
        nodes = tuple(replace(node, ladder=LadderSpec(), link=False) for node in nodes)
    return Scenario(seed, nodes, streams, plan)


def one_death(node: int, seed: int, absence_us: int) -> Scenario:
    """The client (0), the service (1) or the exit (2) dies while four streams are open, and starts again later."""
    paced = Flow(40_000, write_bytes=1000, write_pause_us=500 * MILLISECOND)
    streams = tuple(
        StreamSpec(number, 0, 1 + number % 2, paced, paced, Ending.FINISH, label="killed") for number in range(4)
    )
    moment = Moment(FaultKind.DIED, 5 * SECOND, node, absence_us)
    return Scenario(seed, _nodes(link=seed % 2 == 0), streams, FaultPlan(end_us=10 * SECOND, moments=(moment,)))


def one_silence(length_us: int, user_timeout_us: int) -> Scenario:
    """The client's path swallows everything for `length_us`."""
    paced = Flow(40_000, write_bytes=1000, write_pause_us=500 * MILLISECOND)
    window = Window(FaultKind.BLACKHOLE, 3 * SECOND, 3 * SECOND + length_us, 0)
    plan = FaultPlan(end_us=window.end_us, windows=(window,))
    config = EndpointConfig(user_timeout_us=user_timeout_us)
    return Scenario(1, _nodes(config=config), (StreamSpec(0, 0, 1, paced, paced, label="silenced"),), plan)


def one_slow_path(shape: PathShape, size: int) -> Scenario:
    """One upload with no fault: only the path itself is slow."""
    nodes = (replace(_nodes()[0], shape=shape), *_nodes()[1:])
    return Scenario(1, nodes, (StreamSpec(0, 0, 1, Flow(size), Flow(), Ending.CLOSE, label="slow path"),), FaultPlan())


def unheard_abort() -> Scenario:
    """The exit aborts the second of two streams while its only lane for pushes still carries ACCEPTED of the first."""
    far = PathShape(SECOND, SECOND, 0, 1_000_000)
    client, service, exit_ = _nodes()
    paced = Flow(4000, write_bytes=100, write_pause_us=100 * MILLISECOND)
    streams = tuple(
        StreamSpec(number, 0, 2, paced, paced, Ending.ABORT, start_us, moment_us=3 * SECOND, label="abort")
        for number, start_us in ((0, 5 * SECOND), (2, 5300 * MILLISECOND))
    )
    return Scenario(1, (client, service, replace(exit_, shape=far)), streams, FaultPlan())


def _nodes(*, link: bool = False, config: EndpointConfig | None = None) -> tuple[NodeSpec, ...]:
    endpoint = config or EndpointConfig()
    far = PathShape(30 * MILLISECOND, 30 * MILLISECOND, 5 * MILLISECOND, 1_000_000)
    near = PathShape(2 * MILLISECOND, 2 * MILLISECOND, 0, 20_000_000)
    return (
        NodeSpec("client", shape=far, endpoint=endpoint),
        NodeSpec("service", shape=near, endpoint=endpoint, services=("service",)),
        NodeSpec("exit", shape=near, endpoint=EndpointConfig(exit=True), link=link),
    )


assert PHASE_US < PHASE_US_MAX < 5 * MINUTE
