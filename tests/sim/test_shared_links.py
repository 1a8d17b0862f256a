"""Several links that share the load, on a path that limits each TCP connection (PROTOCOL 8.7)."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import pytest

from tests.sim import road_connection
from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import FaultPlan
from tests.sim.node import LadderSpec, NodeSpec
from tests.sim.path import PathShape
from tests.sim.road_connection import RoadConnection
from tests.sim.roads import Mode
from tests.sim.scenario import Scenario
from tests.sim.streams import Ending, Flow, StreamSpec
from tests.sim.world import World

_NEAR = PathShape(MILLISECOND, MILLISECOND, 0, 100_000_000)
_RATE = 64 * 1024  # bytes/s of each TCP connection, each way
_BULK = Flow(size=1_000_000)


def _stay(random: Random, *, is_last: bool) -> None:
    """Let a road keep its behaviour."""


class Transfer:
    """One bulk transfer between two endpoints, of which one has so many links; and an echo beside it, if it is wanted.
    All bytes arrive, or `run` raises: the simulator compares them, and checks the relay's accounts after each step."""

    def __init__(
        self,
        links: int,
        *,
        upload: bool,
        echo: bool = False,
        roads: tuple[str, ...] = ("link",),
        rate: int = _RATE,
        bulk: Flow = _BULK,
        eager: bool = True,
    ) -> None:
        up, down = (bulk, Flow()) if upload else (Flow(), bulk)
        streams = [StreamSpec(0, 0, 1, up, down, Ending.FINISH, SECOND, label="bulk")]
        if echo:
            asks = Flow(size=600, write_bytes=20, write_pause_us=SECOND)
            streams.append(StreamSpec(1, 0, 1, asks, Flow(600), Ending.FINISH, 3 * SECOND, echo=True, label="echo"))
        shape = PathShape(40 * MILLISECOND, 40 * MILLISECOND, 5 * MILLISECOND, rate)
        scenario = Scenario(
            seed=1,
            nodes=(
                NodeSpec("client", shape=shape, ladder=LadderSpec(roads=roads, eager=eager, links=links)),
                NodeSpec("service", shape=_NEAR, services=("service",)),
            ),
            streams=tuple(streams),
            plan=FaultPlan(),
        )
        self.world = World(scenario)
        (self.node,) = self.world.ladder_nodes
        for road in self.node.roads.roads.values():
            road.mode = Mode.WORKS
            road.change = _stay  # type: ignore[method-assign]

    def at(self, at_us: int, action: Callable[[Transfer], None]) -> Transfer:
        """Let this happen at this time."""
        self.world.clock.at(at_us, lambda: action(self))
        return self

    def run(self) -> Transfer:
        self.world.run()
        return self

    @property
    def lines(self) -> list[RoadConnection]:
        """The open connections, the oldest first."""
        return self.node.roads.connections

    def took_us(self, number: int = 0) -> int:
        """The time from the start of a stream until both its ends have ended."""
        stream = self.world.streams[number]
        return max(party.ended_us for party in stream.parties) - stream.spec.start_us


def test_one_link_carries_what_its_path_gives() -> None:
    found = Transfer(1, upload=True).run()
    assert found.took_us() < 1.05 * SECOND * _BULK.size / _RATE


@pytest.mark.parametrize("road", ["link", "websocket"])
@pytest.mark.parametrize("upload", [True, False])
def test_four_links_carry_more_than_three_times_what_one_does(upload: bool, road: str) -> None:
    one, four = (Transfer(links, upload=upload, roads=(road,)).run() for links in (1, 4))
    assert one.took_us() > 3 * four.took_us()


@pytest.mark.parametrize("upload", [True, False])
def test_two_slow_links_carry_although_both_stall_at_first(upload: bool) -> None:
    """Their windows take longer than the patience. So each is sent twice, but no more."""
    found = Transfer(2, upload=upload, rate=6 * 1024, bulk=Flow(size=400_000)).run()
    assert found.took_us() < 2 * SECOND * 400_000 // (2 * 6 * 1024)


def test_several_links_are_not_left_for_a_trial_of_requests() -> None:
    """One link would be: it carries so little for 6 s."""
    found = Transfer(4, upload=True, bulk=Flow(size=4_000_000), eager=False).run()
    assert found.took_us() > 12 * SECOND
    assert found.node.accounts[-1].left == 0
    assert len(found.node.roads.roads["link"].tries) == 4


@pytest.mark.parametrize("upload", [True, False])
def test_an_echo_beside_bulk_waits_no_longer_than_on_one_link(upload: bool) -> None:
    one, four = (Transfer(links, upload=upload, echo=True).run() for links in (1, 4))
    assert four.took_us(1) < 1.01 * one.took_us(1)
    assert one.took_us() > 3 * four.took_us()


def _cut(transfer: Transfer) -> None:
    transfer.lines[1]._die()


def _cut_first(transfer: Transfer) -> None:
    transfer.lines[0]._die()


def _stall(transfer: Transfer) -> None:
    transfer.lines[1]._stalled_until_us = transfer.world.clock.now_us + 60 * SECOND


def _stall_first(transfer: Transfer) -> None:
    transfer.lines[0]._stalled_until_us = transfer.world.clock.now_us + 60 * SECOND


def _restart(transfer: Transfer) -> None:
    transfer.world.relay.restart(SECOND)


@pytest.mark.parametrize("fault", [_cut, _cut_first, _stall, _stall_first, _restart])
@pytest.mark.parametrize("upload", [True, False])
def test_a_fault_of_one_link_costs_the_others_little(upload: bool, fault: Callable[[Transfer], None]) -> None:
    one = Transfer(1, upload=upload).run()
    counts: list[int] = []
    found = Transfer(4, upload=upload, echo=True).at(3 * SECOND, fault)
    found.at(30 * SECOND, lambda transfer: counts.append(len(transfer.node.carrier._links.carrying))).run()
    assert one.took_us() > 1.9 * found.took_us()
    assert counts == [4]  # another one was opened in place of the one that was lost
    assert found.took_us(1) < 35 * SECOND


def test_links_to_a_relay_that_does_not_share_the_load_are_spares(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(road_connection, "SHARES", -1)  # an earlier relay answers 0, whatever it is asked
    used: list[int] = []
    found = Transfer(2, upload=True, rate=1_000_000)

    def note(transfer: Transfer) -> None:
        used.append(sum(line.up.written_bytes > 10_000 for line in transfer.lines))

    found.at(2 * SECOND, note).run()
    assert found.node.carrier.description.endswith("and 1 spare")
    assert found.node.carrier.relay == "the simulated relay"  # by this name, reports gather what is known of a relay
    assert used == [1]


def test_when_all_links_are_silent_requests_carry_until_they_are_heard_again() -> None:
    doubted: list[bool] = []

    def stall(transfer: Transfer) -> None:
        for line in transfer.lines:
            line._stalled_until_us = transfer.world.clock.now_us + 6 * SECOND

    found = Transfer(4, upload=True, echo=True).at(3 * SECOND, stall)
    for at_us in (6 * SECOND, 30 * SECOND):
        found.at(at_us, lambda transfer: doubted.append(transfer.node.carrier._ladder.is_doubted))
    found.run()
    assert doubted == [True, False]
    assert len(found.node.roads.roads["link"].tries) == 4  # none was closed
    assert found.took_us(1) < 35 * SECOND


def test_a_renewal_replaces_one_of_four_links() -> None:
    counts: list[tuple[int, int]] = []

    def renew(transfer: Transfer) -> None:
        with transfer.node._loop.running():
            transfer.node.carrier.secrets_renewed()

    def count(transfer: Transfer) -> None:
        links = transfer.node.carrier._links
        counts.append((len(links.carrying), len(links.all)))

    found = Transfer(4, upload=False, echo=True).at(3 * SECOND, renew).at(20 * SECOND, count).run()
    assert counts == [(4, 4)]
    assert len(found.node.roads.roads["link"].tries) == 5


@pytest.mark.parametrize("road", ["link", "websocket"])
def test_a_replaced_link_gets_no_new_packets_of_the_relay(road: str) -> None:
    """It is closed a second later. What had come until then would have to be sent again."""
    left: list[list[bool]] = []

    def renew(transfer: Transfer) -> None:
        with transfer.node._loop.running():
            transfer.node.carrier.secrets_renewed()

    def note(transfer: Transfer) -> None:
        assert len(transfer.node.carrier._links.draining) == 1
        left.append([served.is_left for _, served in transfer.world.relay.switch._links.values()])

    at_us = 3 * SECOND
    Transfer(4, upload=False, roads=(road,)).at(at_us, renew).at(at_us + 500 * MILLISECOND, note).run()
    assert [sorted(found) for found in left] == [[False] * 4 + [True]]
