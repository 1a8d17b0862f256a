"""Endpoints of the simulator that move between roads: what the carrier promises, and that a breach is found."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.sim.clock import SECOND
from tests.sim.faults import FaultPlan
from tests.sim.ladder_node import LadderNode
from tests.sim.node import LadderSpec, NodeSpec
from tests.sim.rig import trace_of
from tests.sim.road_connection import RoadConnection
from tests.sim.roads import Mode
from tests.sim.runner import run_seed
from tests.sim.scenario import Scenario, draw_scenario
from tests.sim.websocket_frames import FrameReader, GuardedFrameReader, framed
from tests.sim.world import World
from tunnel.carriers.links.open_link import OpenLink
from tunnel.carriers.roads import RoadCarrier
from tunnel.exchange import Decision, Step


def climbing(**ladder: Any) -> tuple[World, LadderNode]:
    """One endpoint without streams, whose roads work."""
    node = NodeSpec("client", ladder=LadderSpec(**ladder))
    world = World(Scenario(1, (node,), (), FaultPlan()))
    world.begin()
    world._settle(1)
    (found,) = world.ladder_nodes
    for road in found.roads.roads.values():
        road.mode = Mode.WORKS
    return world, found


def until(world: World, reached: Callable[[], bool]) -> int:
    """Let time pass until something is so; return how many seconds that took."""
    for second in range(700):
        if reached():
            return second
        world._settle(SECOND)
    raise AssertionError("it was never reached")


def mute(connection: RoadConnection) -> None:
    """Let the path pass nothing more of a connection, and say nothing of that."""
    connection._is_swallowed = True


def test_roads_are_tried_used_and_left_and_the_best_one_carries_at_the_end() -> None:
    outcomes = [run_seed(seed, ladder=True) for seed in range(900_000, 900_004)]
    assert not [outcome.report() for outcome in outcomes if outcome.failure]
    assert all(outcome.ladder for outcome in outcomes)
    tried, used, left = (sum(getattr(each, f"roads_{name}") for each in outcomes) for name in ("tried", "used", "left"))
    assert tried > used > left > 0


def test_only_some_seeds_have_ladders_and_older_draw_versions_have_none() -> None:
    drawn = [any(node.ladder for node in draw_scenario(seed).nodes) for seed in range(60)]
    assert 5 <= sum(drawn) <= 40
    assert not any(node.ladder for seed in range(60) for node in draw_scenario(seed, 7).nodes)


def test_the_same_seed_gives_the_same_trace_under_another_hash_seed(tmp_path: Path) -> None:
    first = trace_of(900_002, "1", tmp_path / "one", "--ladder")
    assert first == trace_of(900_002, "2", tmp_path / "two", "--ladder")
    assert b'"carrier":"websocket"' in first


def test_an_idle_endpoint_leaves_a_road_that_passes_nothing_more() -> None:
    world, node = climbing()
    until(world, lambda: node.carrier._ladder.used_road == "link")
    (silent,) = node.roads.connections
    world._settle(5 * SECOND)
    mute(silent)
    assert (
        until(world, lambda: node.carrier._ladder.is_doubted) <= 17
    )  # a probe each 15 s, and a second without a receipt
    until(world, lambda: node.accounts[-1].has_climbed)
    assert silent not in node.roads.connections


def test_an_idle_endpoint_notices_soon_that_a_road_passes_a_first_message_only() -> None:
    world, node = climbing()
    for road in node.roads.roads.values():
        road.mode = Mode.LIES
    until(world, lambda: node.carrier._ladder.used_road == "link")
    assert until(world, lambda: node.carrier._ladder.is_doubted) <= 3


def test_a_spare_link_opened_while_the_link_is_silent_takes_over_before_the_silent_one_is_closed() -> None:
    world, node = climbing(links=2)
    carrier, road = node.carrier, node.roads.roads["link"]
    until(world, lambda: len(carrier._links.spares) == 1)
    line, spare = node.roads.connections
    road.mode = Mode.REFUSES
    spare._die()
    mute(line)
    until(world, lambda: carrier._ladder.is_doubted)
    road.mode = Mode.WORKS
    assert until(world, lambda: node.accounts[-1].has_climbed) < 9  # the silent link would be closed after that
    assert carrier._links.in_use is not None
    assert carrier._links.in_use.link._transport is not line.transport


# Each mutant breaks one promise of the carrier, and the simulator finds it.


def gives_up_nothing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(OpenLink, "give_up", lambda self: [])


def closes_no_replaced_link(patch: pytest.MonkeyPatch) -> None:
    def replace(self: RoadCarrier, line: OpenLink, now: int) -> None:
        self._links.in_use = line
        self._use_lanes(False, now)

    patch.setattr(RoadCarrier, "_replace", replace)


def renews_without_overlap(patch: pytest.MonkeyPatch) -> None:
    do: Callable[..., None] = RoadCarrier._do

    def closing_first(self: RoadCarrier, decision: Decision, now: int) -> None:
        line = self._links.in_use
        if decision.step is Step.RENEW and line is not None:
            self._links.in_use = None
            self._links.shut(line)
            self._use_lanes(True, now)
        do(self, decision, now)

    patch.setattr(RoadCarrier, "_do", closing_first)


def gives_receipts_to_batches_that_were_given_up(patch: pytest.MonkeyPatch) -> None:
    receipted: Callable[..., Any] = OpenLink.take_receipts

    def forgetful(self: OpenLink, tokens: list[int], now: int) -> Any:
        self._given_up.clear()
        self.pace._sent.extend([(0, False)] * len(tokens))
        return receipted(self, tokens, now)

    patch.setattr(OpenLink, "take_receipts", forgetful)


@pytest.mark.interpreted
@pytest.mark.parametrize(
    ("mutant", "seed", "found"),
    [
        (gives_up_nothing, 1, "is not given up"),
        (closes_no_replaced_link, 8, "have no purpose"),
        (renews_without_overlap, 29, "left a"),
        (gives_receipts_to_batches_that_were_given_up, 0, "ended twice"),
    ],
)
def test_a_carrier_that_breaks_a_promise_is_found(
    mutant: Callable[[pytest.MonkeyPatch], None], seed: int, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    mutant(monkeypatch)
    assert found in run_seed(seed, ladder=True).failure


# The frames of websockets


@pytest.mark.parametrize("size", [0, 1, 125, 126, 70_000])
def test_frames_are_read_in_portions(size: int) -> None:
    data = bytes(index % 251 for index in range(size))
    for masked, reader in ((False, FrameReader()), (True, GuardedFrameReader(climbing()[1]._loop, lambda: None))):
        sent = framed(data, masked=masked)
        assert reader.feed(sent[:1]) == []
        assert reader.feed(sent[1:] + sent) == [data, data]
        assert not reader.wrong


def test_frames_that_break_the_rules_are_refused() -> None:
    closed: list[int] = []
    reader = GuardedFrameReader(climbing()[1]._loop, lambda: closed.append(1))
    assert reader.feed(framed(b"data", masked=False)) == []
    assert (closed, reader.wrong) == ([1], "1002: a frame without a mask")
    endpoint = FrameReader()
    assert endpoint.feed(b"\x81\x02hi") == []
    assert endpoint.wrong == "a message of type TEXT"
    broken = FrameReader()
    assert broken.feed(b"\xf2\x02hi") == []
    assert "the websocket failed" in broken.wrong
