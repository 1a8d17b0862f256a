"""Runs seeds, one after the other or in several processes; outcomes are plain data."""

from __future__ import annotations

import multiprocessing
import time
import traceback
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.sim.clock import SECOND
from tests.sim.scenario import Scenario, draw_scenario
from tests.sim.violation import Violation
from tests.sim.world import World
from tunnel.traces.jsonl import JsonLinesWriter

__all__ = ["Outcome", "run_scenario", "run_seed", "run_seeds"]


@dataclass(slots=True)
class Outcome:
    """The result of one seed."""

    seed: int
    failure: str = ""
    """Empty: every promise was kept."""
    options: list[str] = field(default_factory=list)
    virtual_us: int = 0
    cpu_ms: int = 0
    steps: int = 0
    exchanges: int = 0
    restarts: int = 0
    connections: int = 0
    delivered_bytes: int = 0
    cells: dict[str, dict[str, int]] = field(default_factory=dict)
    hostile: bool = False
    """The scenario has hostile users."""
    hostile_acts: int = 0
    encrypted: int = 0
    """The number of encrypted streams."""
    streamed: bool = False
    """All endpoints ask for streamed answers."""
    ladder: bool = False
    """All endpoints move between roads."""
    short_way: bool = True
    """Usual packets took the short way at the relay."""
    roads_tried: int = 0
    """Connections that were asked for."""
    roads_used: int = 0
    """Connections that carried the batches of an endpoint."""
    roads_left: int = 0
    """Connections whose place another one, or poll, has taken."""

    def report(self) -> str:
        """The failure, the scenario, and the command that repeats it if the scenario has the present DRAW_VERSION."""
        lines = [f"seed {self.seed} FAILED after {self.virtual_us / SECOND:.3f} s: {self.failure}"]
        lines += [f"    {line}" for line in self.options]
        option = " --hostile" if self.hostile else ""
        option += " --encrypted" if self.encrypted == self.connections else ""
        option += " --streamed" if self.streamed else ""
        option += " --ladder" if self.ladder else ""
        option += "" if self.short_way else " --general-way"
        lines.append(f"    repeat: python -m tests.sim --seed {self.seed}{option} --trace DIR")
        return "\n".join(lines)


def run_seed(seed: int, trace_directory: str = "", **additions: bool) -> Outcome:
    """Run the scenario of the seed; with a directory, write its trace there. `additions`: as in `draw_scenario`."""
    return run_scenario(draw_scenario(seed, **additions), trace_directory)


def run_scenario(scenario: Scenario, trace_directory: str = "") -> Outcome:
    """Run one scenario to its end or its first broken promise. An exception of the code under test counts as one."""
    writer = None
    if trace_directory:
        Path(trace_directory).mkdir(parents=True, exist_ok=True)
        writer = JsonLinesWriter(Path(trace_directory) / f"seed-{scenario.seed}.jsonl")
    started = time.process_time()
    outcome = Outcome(scenario.seed, options=scenario.describe(), hostile=bool(scenario.hostiles))
    world = World(scenario, writer)
    try:
        world.run()
    except Violation as violation:
        outcome.failure = str(violation)
    except Exception:
        outcome.failure = "exception\n" + traceback.format_exc(limit=-12)
    finally:
        for node in world.ladder_nodes:
            node.stop()
        if writer is not None:
            writer.close()
    outcome.virtual_us = world.clock.now_us
    outcome.cpu_ms = round((time.process_time() - started) * 1000)
    outcome.steps = world.clock.steps
    outcome.exchanges = sum(node.path.exchanges for node in world.nodes)
    outcome.restarts = world.relay.restarts
    outcome.connections = len(world.streams)
    outcome.delivered_bytes = world.delivered_bytes
    outcome.cells = world.cells.plain()
    outcome.streamed = all(node.streams for node in scenario.nodes)
    outcome.short_way = scenario.short_way
    outcome.ladder = all(node.ladder for node in scenario.nodes)
    lives = [accounts for node in world.ladder_nodes for accounts in node.accounts]
    outcome.roads_tried = sum(node.roads.tries for node in world.ladder_nodes)
    outcome.roads_used = sum(accounts.used for accounts in lives)
    outcome.roads_left = sum(accounts.left for accounts in lives)
    outcome.hostile_acts = world.guests.acts
    outcome.encrypted = sum(each.encrypted for each in scenario.streams)
    return outcome


def run_seeds(first: int, count: int, jobs: int, trace_directory: str = "", **additions: bool) -> Iterator[Outcome]:
    """The outcomes of `count` seeds, in order, from `jobs` processes."""
    work = [(seed, trace_directory, additions) for seed in range(first, first + count)]
    if jobs <= 1 or count <= 1:
        yield from map(_run, work)
        return
    # Fork: the children start at once, and need not import the parent's main module.
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        yield from pool.imap(_run, work, chunksize=4)


def _run(item: tuple[int, str, dict[str, bool]]) -> Outcome:
    seed, trace_directory, additions = item
    return run_seed(seed, trace_directory, **additions)
