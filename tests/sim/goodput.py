"""The throughput that loss leaves: one transfer up and one down over a lossy path, compared with a lossless one."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import dataclass
from typing import Any

from tests.sim.clock import MILLISECOND, MINUTE, SECOND
from tests.sim.faults import FaultKind, FaultPlan
from tests.sim.node import NodeSpec
from tests.sim.path import PathShape
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.world import World
from tunnel.core import EndpointConfig
from tunnel.exchange import LaneConfig

__all__ = ["GOALS", "PATHS", "Mode", "kept", "main"]

KIB, MIB = 1024, 1024 * 1024
LIMIT_US = 120 * MINUTE  # of virtual time: a transfer is cut off then, and counts as if it had ended
SEEDS = (1, 2, 3)


@dataclass(frozen=True, slots=True)
class Mode:
    """The way in which exchanges fail: half of them before the request arrives, half after it took effect."""

    name: str
    kinds: tuple[FaultKind, FaultKind]
    goals: dict[float, float]
    """Rate of failing exchanges -> the part of the goodput that must remain."""


GOALS = (
    Mode("reported", (FaultKind.REQUEST_RESET, FaultKind.RESPONSE_RESET), {0.02: 0.90, 0.10: 0.60, 0.30: 0.25}),
    Mode("silent", (FaultKind.REQUEST_LOST, FaultKind.RESPONSE_LOST), {0.02: 0.50, 0.10: 0.20, 0.30: 0.05}),
)
# For comparison, the part that the TCP of smoltcp kept: 32 KiB of buffer, packets lost at these rates, 100 ms.
SMOLTCP = {0.02: 0.516, 0.10: 0.117, 0.30: 0.0036}

PATHS: dict[str, tuple[PathShape, int]] = {
    "100 ms, 10 MB/s (reference)": (PathShape(50 * MILLISECOND, 50 * MILLISECOND, 0, 10_000_000), 24 * MIB),
    "20 ms, 50 MB/s": (PathShape(10 * MILLISECOND, 10 * MILLISECOND, 0, 50_000_000), 48 * MIB),
    "600 ms, 1 MB/s": (PathShape(300 * MILLISECOND, 300 * MILLISECOND, 0, 1_000_000), 8 * MIB),
}
"""Name -> shape and size of the transfer. The goals apply to the first."""


def transfer_us(seed: int, shape: PathShape, size: int, upload: bool, rates: dict[FaultKind, float]) -> int:
    """Virtual time from the opening to the last byte, or to LIMIT_US if the transfer takes longer."""
    flow = Flow(size=size, write_bytes=MIB)
    up, down = (flow, Flow()) if upload else (Flow(), flow)
    lanes = LaneConfig(
        lanes_start=4, lanes_max=4, adapt_lanes=False, body_bytes_start=256 * KIB, body_bytes_max=256 * KIB
    )
    window = EndpointConfig(window_bytes_start=16 * MIB, send_buffer_bytes_max=16 * MIB)
    near = PathShape(100, 100, 0, 1_000_000_000)
    scenario = Scenario(
        seed=seed,
        nodes=(
            NodeSpec("client", shape=shape, endpoint=window, lanes=lanes),
            NodeSpec("service", shape=near, endpoint=window, lanes=LaneConfig(), services=("service",)),
        ),
        streams=(StreamSpec(0, 0, 1, up, down, Ending.FINISH, SECOND, label="bulk"),),
        plan=FaultPlan(end_us=LIMIT_US, rates=rates, nodes=(0,)),
    )
    world = World(scenario)
    world.begin()
    while world.delivered_bytes < size and world.clock.step(LIMIT_US):
        pass
    return world.clock.now_us - SECOND


def kept(name: str, mode: Mode, rate: float, upload: bool, seeds: tuple[int, ...] = SEEDS) -> float:
    """The part of the goodput that remains, as the median of some seeds."""
    shape, size = PATHS[name]
    clean_us = transfer_us(0, shape, size, upload, {})
    each = 1 - math.sqrt(1 - rate)  # the exchange fails if either half fails
    lossy_us = [transfer_us(seed, shape, size, upload, dict.fromkeys(mode.kinds, each)) for seed in seeds]
    return clean_us / statistics.median(lossy_us)


def measure() -> list[dict[str, Any]]:
    """One row per path, mode and rate."""
    rows = []
    for name in PATHS:
        for mode in GOALS:
            for rate, goal in mode.goals.items():
                up, down = (kept(name, mode, rate, upload) for upload in (True, False))
                binding = name.endswith("(reference)")
                passed = not binding or min(up, down) >= goal
                rows.append(
                    {
                        "path": name,
                        "mode": mode.name,
                        "rate": rate,
                        "up": up,
                        "down": down,
                        "goal": goal,
                        "pass": passed,
                    }
                )
    return rows


def main(*, as_json: bool) -> int:
    """Print the table; return 0 when every goal on the reference path was reached."""
    rows = measure()
    if as_json:
        print(json.dumps(rows))
    else:
        print(render(rows))
    return 0 if all(row["pass"] for row in rows) else 1


def render(rows: list[dict[str, Any]]) -> str:
    """The table as text."""
    lines = ["goodput kept, compared with the same path without loss; 4 lanes, bodies of 256 KiB, window 16 MiB", ""]
    lines.append(
        f"{'path':<30}{'failures':<11}{'rate':>6}{'upload':>9}{'download':>10}{'goal':>7}   {'':<6}{'smoltcp':>8}"
    )
    for row in rows:
        binding = row["path"].endswith("(reference)")
        word = ("ok" if row["pass"] else "FAILED") if binding else "-"
        lines.append(
            f"{row['path']:<30}{row['mode']:<11}{row['rate']:>6.0%}{row['up']:>9.1%}{row['down']:>10.1%}"
            f"{row['goal']:>7.0%}   {word:<6}{SMOLTCP[row['rate']]:>8.1%}"
        )
    return "\n".join(lines)
