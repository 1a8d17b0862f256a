"""The meaning of one seed: the nodes, their paths and limits, the streams and the faults. Data; nothing runs here."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.sim.answer_flow import FlowShape
from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import LINK_KINDS, STREAM_KINDS, FaultKind, FaultPlan, draw_limit, draw_plan, draw_rate
from tests.sim.front import FrontLimits
from tests.sim.hostile import HostileSpec, draw_hostiles
from tests.sim.hostile_packets import ACTS
from tests.sim.node import LadderSpec, NodeSpec
from tests.sim.path import PathShape
from tests.sim.randomness import between, chance, log_between, pick, stream
from tests.sim.streams import Flow, StreamSpec, draw_busy_exit, draw_extras, draw_streams
from tunnel.core import EndpointConfig
from tunnel.exchange import POLL, LaneConfig
from tunnel_servlet.switch.config import SwitchConfig

__all__ = ["DRAW_VERSION", "Scenario", "draw_scenario"]

DRAW_VERSION = 9
"""Each version added something to scenarios. 2: streams that stay long in states that others pass quickly
(draw_extras); 3: packets that are lost one by one; 4: an exit that sends much while it dials, where bodies are
limited (draw_busy_exit); 5: hostile users (draw_hostiles); 6: streams that are encrypted from end to end; 7: streamed
answers (_with_streamed_answers); 8: endpoints that move between roads (_with_ladders); 9: limits of requests and
connections (draw_limit)."""

KIB = 1024
HOSTILE_SHARE = 0.125  # of all seeds
STREAMED_SHARE = 0.4  # of all seeds
LIMITED_SHARE = 0.25  # of all seeds
LADDER_SHARE = 0.3  # of all seeds
ENCRYPTED_SHARE = 0.125  # of all seeds; each encrypts half of its streams


@dataclass(frozen=True, slots=True)
class Scenario:
    """Everything that a run depends on."""

    seed: int
    nodes: tuple[NodeSpec, ...]
    streams: tuple[StreamSpec, ...]
    plan: FaultPlan
    switch: SwitchConfig = field(default_factory=SwitchConfig)
    front: FrontLimits = FrontLimits()
    hostiles: tuple[HostileSpec, ...] = ()
    short_way: bool = True
    """Usual packets take the short way at the relay."""

    def natural_end_us(self) -> int:
        """A generous time for the applications alone to finish, on their own paths without faults."""
        total = sum(spec.up.size + spec.down.size for spec in self.streams)
        slowest = min(node.shape.bytes_per_second for node in self.nodes)
        moving_us = 6 * total * SECOND // slowest
        return moving_us + max((_natural_us(spec) for spec in self.streams), default=0)

    def may_listen(self, user: str, name: str) -> bool:
        """Hostile users may not listen under the names of others."""
        return name.startswith(user) or all(each.user != user for each in self.hostiles)

    def describe(self) -> list[str]:
        """The options that the seed expands to, one per line."""
        lines = [f"node {index}: {_words(node)}" for index, node in enumerate(self.nodes)]
        labels = sorted({spec.label for spec in self.streams})
        total = sum(spec.up.size + spec.down.size for spec in self.streams)
        encrypted = sum(spec.encrypted for spec in self.streams)
        words = f", {encrypted} of them encrypted" if encrypted else ""
        lines.append(f"streams: {len(self.streams)} ({', '.join(labels)}), {total} bytes{words}")
        lines.append(f"faults until {self.plan.end_us / SECOND:.1f} s: " + "; ".join(self.plan.describe()))
        lines += [f"{each.user}: {each.count} acts of {', '.join(each.acts)}" for each in self.hostiles]
        return lines


def draw_scenario(
    seed: int,
    version: int = DRAW_VERSION,
    *,
    hostile: bool = False,
    encrypted: bool = False,
    streamed: bool = False,
    ladder: bool = False,
    short_way: bool = True,
) -> Scenario:
    """The scenario of a seed. An older version draws the scenario that the seed had when it was recorded. `hostile`: it
    has hostile users in any case; `encrypted`: all its streams are encrypted;
    `streamed`: all its endpoints ask for streamed answers; `ladder`: all of them move between roads; `short_way`: usual
    packets take the short way at the relay."""
    random = stream(seed, "scenario")
    initiators = between(random, 1, 2)
    acceptors = 2 if chance(random, 0.3) else 1
    count = initiators + acceptors
    nodes = tuple(_draw_node(random, index, index < initiators) for index in range(count))
    plan = draw_plan(stream(seed, "plan"), count, range(count), any(node.link for node in nodes))
    pairs = [(one, other) for one in range(initiators) for other in range(initiators, count)]
    streams = draw_streams(stream(seed, "streams"), pairs, plan.end_us)
    dialled = [(one, other) for one, other in pairs if nodes[other].endpoint.exit]
    if version >= 2:
        streams += draw_extras(stream(seed, "extras"), pairs, dialled, len(streams), plan.end_us)
    if version >= 3:
        plan = _with_packet_loss(plan, stream(seed, "packet loss"))
    if version >= 9 and chance(limiting := stream(seed, "limits"), LIMITED_SHARE):
        plan = draw_limit(limiting, plan, count)
    if version >= 4 and plan.body_limits:
        number = 1 + max(spec.number for spec in streams)
        streams += draw_busy_exit(stream(seed, "busy exit"), dialled, number)
    if encrypted:
        streams = [replace(each, encrypted=True) for each in streams]
    elif version >= 6:
        streams = _with_encryption(streams, stream(seed, "encryption"))
    nodes = tuple(_asking(node, index, streams) for index, node in enumerate(nodes))
    scenario = Scenario(seed, nodes, tuple(streams), plan, _draw_switch(random), short_way=short_way)
    if version >= 7:
        scenario = _with_streamed_answers(scenario, stream(seed, "streamed answers"), always=streamed)
    if version >= 8:
        scenario = _with_ladders(scenario, stream(seed, "ladders"), always=ladder)
    random = stream(seed, "hostile users")
    if version < 5 or not (chance(random, HOSTILE_SHARE) or hostile):
        return scenario
    return _with_hostiles(scenario, random)


def _with_streamed_answers(scenario: Scenario, random: Random, *, always: bool) -> Scenario:
    """Let endpoints ask for streamed answers, on paths that pass them, hold them back, cut and falsify them."""
    if not (chance(random, STREAMED_SHARE) or always):
        return scenario
    nodes = []
    for node in scenario.nodes:
        asks = always or chance(random, 0.8)
        joins_us = log_between(random, 100, 300 * MILLISECOND) if chance(random, 0.2) else 0
        flow = FlowShape(buffers=chance(random, 0.15), joins_us=joins_us)
        after_us = pick(random, (0, 0, 500 * MILLISECOND, 2 * SECOND))
        stream_us = max(node.lanes.hold_us_min, log_between(random, 2 * SECOND, 55 * SECOND))
        lanes = replace(node.lanes, stream_after_us=after_us, stream_us=stream_us)
        shape = replace(node.shape, flow=flow)
        nodes.append(replace(node, streams=asks, lanes=lanes, shape=shape) if asks else node)
    rates = {kind: draw_rate(random, kind) for kind in STREAM_KINDS if chance(random, 0.2)}
    plan = replace(scenario.plan, rates={**scenario.plan.rates, **rates})
    switch = replace(scenario.switch, streams=not chance(random, 0.1))
    return replace(scenario, nodes=tuple(nodes), plan=plan, switch=switch)


def _with_ladders(scenario: Scenario, random: Random, *, always: bool) -> Scenario:
    """Let endpoints move between roads, which have faults of their own."""
    if not (chance(random, LADDER_SHARE) or always):
        return scenario
    nodes = []
    for node in scenario.nodes:
        climbs = chance(random, 0.7) or always
        ladder = LadderSpec(
            roads=pick(random, (("link", "websocket"), ("link", "websocket"), ("link",), ("websocket",))),
            remembered=pick(random, ("", "", POLL, "link", "websocket", "unheard of")),
            eager=chance(random, 0.2),
            links=pick(random, (2, 4)) if chance(random, 0.2) else 1,
        )
        nodes.append(replace(node, ladder=ladder, link=False) if climbs else node)
    kinds = tuple(kind for kind in LINK_KINDS if chance(random, 0.4))
    plan = scenario.plan
    if kinds and not plan.link_kinds:
        plan = replace(plan, link_kinds=kinds, link_mean_us=log_between(random, SECOND, 20 * SECOND))
    return replace(scenario, nodes=tuple(nodes), plan=plan)


def _with_hostiles(scenario: Scenario, random: Random) -> Scenario:
    """Add hostile users, and give the honest ones names of their own."""
    nodes = tuple(replace(node, user=pick(random, ("ann", "bob"))) for node in scenario.nodes)
    front = FrontLimits(
        per_source_max=log_between(random, 16, 1024),
        per_user_max=log_between(random, 32, 2048),
        bytes_max=log_between(random, 32 * KIB * KIB, 256 * KIB * KIB),
        charges=True,
    )
    hostiles = draw_hostiles(random, scenario.plan.end_us, tuple(ACTS))
    return replace(scenario, nodes=nodes, front=front, hostiles=hostiles)


def _asking(node: NodeSpec, index: int, streams: list[StreamSpec]) -> NodeSpec:
    """An endpoint that offers encrypted services decides on each CONNECT, as one with a key does."""
    asks = any(each.encrypted and each.acceptor == index for each in streams)
    return replace(node, endpoint=replace(node.endpoint, asks_services=True)) if asks else node


def _with_encryption(streams: list[StreamSpec], random: Random) -> list[StreamSpec]:
    if not chance(random, ENCRYPTED_SHARE):
        return streams
    return [replace(each, encrypted=chance(random, 0.5)) for each in streams]


def _with_packet_loss(plan: FaultPlan, random: Random) -> FaultPlan:
    if not chance(random, 0.1):
        return plan
    return replace(plan, rates={**plan.rates, FaultKind.PACKET_LOST: draw_rate(random, FaultKind.PACKET_LOST)})


def _draw_node(random: Random, index: int, initiator: bool) -> NodeSpec:
    exit_node = not initiator and chance(random, 0.4)
    pulls = log_between(random, 50 * MILLISECOND, 2 * SECOND) if chance(random, 0.1) else 0
    return NodeSpec(
        name=f"{'client' if initiator else 'exit' if exit_node else 'service'}-{index}",
        shape=_draw_shape(random),
        endpoint=_draw_endpoint(random, exit_node),
        lanes=LaneConfig(**_draw_lanes(random, pulls)),
        services=() if initiator or exit_node else (f"service-{index}",),
        near_wrap=chance(random, 0.3),
        link=chance(random, 0.15 if initiator else 0.5),
    )


def _draw_shape(random: Random) -> PathShape:
    """Draw a path, from a neighbour's to scenario 22's (docs/RELIABILITY.md): 256 kbit/s at 2 s of round trip."""
    one_way_us = log_between(random, 200, 300 * MILLISECOND)
    if chance(random, 0.04):
        return PathShape(SECOND, SECOND, 50 * MILLISECOND, 32_000)
    jitter_us = between(random, 0, one_way_us) if chance(random, 0.5) else 0
    return PathShape(one_way_us, one_way_us, jitter_us, log_between(random, 100_000, 50_000_000))


def _draw_endpoint(random: Random, exit_node: bool) -> EndpointConfig:
    start = log_between(random, 16 * KIB, 256 * KIB)
    return EndpointConfig(
        window_bytes_start=start,
        window_bytes_max=log_between(random, start, 16 * KIB * KIB),
        budget_bytes=log_between(random, 64 * KIB, 256 * KIB * KIB),
        send_buffer_bytes_max=log_between(random, 8 * KIB, 4 * KIB * KIB),
        packet_bytes_max=log_between(random, 2 * KIB, 512 * KIB),
        out_of_order_packets_max=log_between(random, 64, 16_384),
        exit=exit_node,
    )


def _draw_lanes(random: Random, pull_interval_us: int) -> dict[str, Any]:
    lanes_max = between(random, 1, 8)
    drawn: dict[str, Any] = {
        "lanes_max": lanes_max,
        "lanes_start": between(random, 1, lanes_max),
        "body_bytes_start": log_between(random, 16 * KIB, 256 * KIB),
        "pull_interval_us": pull_interval_us,
    }
    return drawn


def _draw_switch(random: Random) -> SwitchConfig:
    """Draw the limits of the relay: often generous, sometimes tight, so that edges and drops matter."""
    if chance(random, 0.5):
        return SwitchConfig()
    reserved = log_between(random, 4 * KIB, 16 * KIB)
    return SwitchConfig(
        packet_bytes_max=log_between(random, 16 * KIB, 1024 * KIB),
        reserved_bytes=reserved,
        route_bytes_max=log_between(random, 2 * reserved, 1024 * KIB),
        initial_edge_bytes=log_between(random, reserved, 256 * KIB),
        mailbox_bytes_max=log_between(random, 8 * 1024 * KIB, 32 * 1024 * KIB),
    )


def _natural_us(spec: StreamSpec) -> int:
    """The sum of the applications' pauses in one stream: a side may have to read, with pauses, before it writes."""
    times = [spec.start_us, spec.dial_us, spec.moment_us, *(_flow_us(flow) for flow in (spec.up, spec.down))]
    return sum(times)


def _flow_us(flow: Flow) -> int:
    writes = -(-flow.size // flow.write_bytes) * flow.write_pause_us
    # A paced reader may receive its bytes in pieces of one packet each.
    reads = (-(-flow.size // flow.read_bytes) + -(-flow.size // KIB)) * flow.read_pause_us
    return writes + reads + flow.stop_us


def _words(node: NodeSpec) -> str:
    shape, lanes = node.shape, node.lanes
    words = [
        node.name,
        f"{shape.up_us / 1000:.1f}+{shape.down_us / 1000:.1f} ms",
        f"jitter {shape.jitter_us / 1000:.1f} ms",
        f"{shape.bytes_per_second / 1e6:.2f} MB/s",
        f"lanes {lanes.lanes_start}-{lanes.lanes_max} x {lanes.body_bytes_start}",
        f"window {node.endpoint.window_bytes_start}-{node.endpoint.window_bytes_max}",
        f"packet {node.endpoint.packet_bytes_max}",
    ]
    if lanes.pull_interval_us:
        words.append(f"pulls each {lanes.pull_interval_us / 1000:.0f} ms")
    if node.link:
        words.append("link")
    if node.streams:
        how = " held back" if shape.flow.buffers else f" joined for {shape.flow.joins_us / 1000:.1f} ms"
        words.append(f"streamed answers{how if shape.flow != FlowShape() else ''}")
    if node.ladder is not None:
        ladder = node.ladder
        words.append(f"ladder of {' and '.join(ladder.roads)}, {ladder.links} open" + ", eager" * ladder.eager)
        words += [f"remembers {ladder.remembered}"] if ladder.remembered else []
    if node.near_wrap:
        words.append("near wrap")
    return ", ".join(words)
