"""Simulated runs whose losses are all known, to be compared with the results of the analysis."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from random import Random

from tests.sim.clock import MILLISECOND, MINUTE, SECOND
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.node import NodeSpec
from tests.sim.path import PathShape
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.world import World
from tunnel.core import EndpointConfig
from tunnel.traces import TraceEvent, TraceFault, TraceRecord, TraceSink
from tunnel.traces.writer import TraceWriter
from tunnel.wire import Frame, PacketType
from tunnel_servlet.switch.switch import Switch

__all__ = ["Gilbert", "GilbertWorld", "Loss", "simulate"]

Loss = tuple[int, int]  # the sender's id of the connection, the packet's number
PACKET_BYTES = 1_100
ENDING_US = 11 * MINUTE  # after this time the last connection is forgotten
BURST_BEGINS, BURST_ENDS = 0.02, 0.3


class Gilbert:
    """Chooses the DATA packets to lose: first attempts in bursts, by one Markov chain for each stream, and one in
    fifty repeats. It records all of them."""

    def __init__(self, seed: int) -> None:
        self.lost: list[Loss] = []
        self.repeats_lost: list[tuple[int, int, int]] = []
        self._random = Random(seed)
        self._in_burst: dict[int, bool] = {}

    def loses(self, frame: Frame) -> bool:
        """Whether this packet is lost."""
        if frame.type != PacketType.DATA:
            return False
        attempt = frame.data[2]
        if attempt:
            lost = self._random.random() < 0.02
            if lost:
                self.repeats_lost.append((frame.source, frame.sequence, attempt))
            return lost
        lost = self._in_burst.get(frame.source, False)
        lost = self._random.random() >= BURST_ENDS if lost else self._random.random() < BURST_BEGINS
        self._in_burst[frame.source] = lost
        if lost:
            self.lost.append((frame.source, frame.sequence))
        return lost


class GilbertWorld(World):
    """A world whose relay loses packets of accepted bodies and traces each loss."""

    def __init__(self, scenario: Scenario, gilbert: Gilbert, trace: TraceSink) -> None:
        self.gilbert = gilbert
        super().__init__(scenario, trace)

    def settle(self, length_us: int) -> None:
        """Let this time pass."""
        self._settle(length_us)

    def _make_switch(self) -> Switch:
        random = Random(self.scenario.seed)
        return Switch(self.scenario.switch, random, self._authorise, packet_filter=self._passes, trace=self.trace)

    def _passes(self, frame: Frame) -> bool:
        if not self.gilbert.loses(frame):
            return True
        assert self.trace is not None
        self.trace(
            TraceRecord(
                time_us=self.clock.now_us,
                node="relay",
                event=TraceEvent.FAULT_INJECTED,
                cause=TraceFault.PACKET_DROPPED,
                connection=frame.source,
                peer=frame.destination,
                sequence=frame.sequence,
                attempt=frame.data[2],
                size_bytes=len(frame.data),
            )
        )
        return False


@dataclass(frozen=True, slots=True)
class Run:
    """The faults of one run."""

    gilbert: Gilbert
    strikes: dict[str, int]
    """Faults of exchanges by kind."""


def simulate(
    directory: Path,
    *,
    streams: int,
    bytes_each: int,
    seed: int = 1,
    near_wrap: bool = True,
    delay_us: int = 20 * MILLISECOND,
    resets: float = 0.1,
) -> Run:
    """Let a client send data to a service, over a relay that loses packets and a path that loses exchanges. Write the
    trace to `directory`, and return the faults."""
    small = EndpointConfig(packet_bytes_max=PACKET_BYTES, window_bytes_start=64 * 1024)
    path = PathShape(delay_us, delay_us, 0, 2_000_000)
    near = PathShape(100, 100, 0, 100_000_000)
    flow = Flow(size=bytes_each, write_bytes=64 * 1024)
    scenario = Scenario(
        seed=seed,
        nodes=(
            NodeSpec("client", shape=path, endpoint=small, near_wrap=near_wrap),
            NodeSpec("service", shape=near, endpoint=small, services=("service",)),
        ),
        streams=tuple(
            StreamSpec(number, 0, 1, flow, Flow(), Ending.FINISH, SECOND, label="bulk") for number in range(streams)
        ),
        plan=FaultPlan(
            end_us=10 * MINUTE,
            rates={FaultKind.REQUEST_RESET: resets, FaultKind.RESPONSE_RESET: resets},
            nodes=(0,),
        ),
    )
    gilbert = Gilbert(seed)
    with TraceWriter(directory, name="sim", queue_records=1 << 20) as trace:
        world = GilbertWorld(scenario, gilbert, trace)
        world.strikes = []
        world.begin()
        while world.open_streams and world.clock.step(20 * MINUTE):
            pass
        world.settle(ENDING_US)
    strikes: dict[str, int] = {}
    for _, kind in world.strikes:
        strikes[kind.value] = strikes.get(kind.value, 0) + 1
    return Run(gilbert, strikes)
