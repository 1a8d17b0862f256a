"""Members that come and go: a group's other members are not stopped by it, and there is room for them."""

from __future__ import annotations

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, from_address, until
from tests.support.loops import in_loop
from tunnel.messages import BrokerSettings, RemoteCallError, TopicSpec
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.protocol import JOIN, LIMIT

ANN = object()
EVE = object()


def test_two_users_joins_and_leaves_of_one_rebalance_a_group_once_a_second() -> None:
    now = [0.0]
    groups = Groups(1e6, clock=lambda: now[0])
    group = groups.join("g", "t", "ann", ANN)
    before = group.generation
    for number in range(10_000):
        groups.join("g", "t", f"eve{number}", EVE)
        groups.leave("g", "t", f"eve{number}", EVE)
        groups.rewound("g", "t")
    assert group.generation - before <= 10
    for second in range(1, 6):
        now[0] = float(second)
        list(groups.expire())
        list(groups.expire())
        groups.join("g", "t", "eve", EVE)
        groups.leave("g", "t", "eve", EVE)
    assert group.generation - before <= 16
    now[0] = 60.0
    list(groups.expire())
    assert group.partitions_of("ann", 4) == [0, 1, 2, 3]
    groups.check_owner("g", "t", "ann", 3, 4)


def test_two_users_a_member_that_came_during_a_storm_gets_its_partitions_soon() -> None:
    now = [0.0]
    groups = Groups(1e6, clock=lambda: now[0])
    group = groups.join("g", "t", "ann", ANN)
    for number in range(20):
        groups.join("g", "t", f"eve{number}", EVE)
        groups.leave("g", "t", f"eve{number}", EVE)
    groups.join("g", "t", "bob", ANN)
    assert group.partitions_of("bob", 2) == []
    generation = group.generation
    now[0] = 1.0
    list(groups.expire())
    assert group.generation > generation
    assert (group.partitions_of("ann", 2), group.partitions_of("bob", 2)) == ([0], [1])


def test_two_users_one_takes_half_of_the_places_in_a_group() -> None:
    groups = Groups(1e6)
    for number in range(500):
        groups.join("g", "t", f"eve{number}", EVE, "eve")
    with pytest.raises(RemoteCallError) as caught:
        groups.join("g", "t", "one more", EVE, "eve")
    assert caught.value.code == LIMIT
    groups.join("g", "t", "ann", ANN, "ann")
    groups.join("g", "t", "eve0", EVE, "eve")  # known members stay
    for name in ("eve0", "eve1"):
        groups.leave("g", "t", name, EVE)
    groups.join("g", "t", "another", EVE, "eve")
    assert groups.members == 500


def test_two_users_members_that_end_together_are_removed_in_parts() -> None:
    now = [0.0]
    groups = Groups(10.0, clock=lambda: now[0])
    for number in range(100):
        groups.join("g", "t", f"eve{number}", EVE)
    now[0] = 11.0
    left = []
    for _ in groups.expire():
        left.append(groups.members)
        if len(left) == 1:
            groups.join("g", "t", "eve99", EVE)  # it was due, and has joined again meanwhile
    assert left == list(range(90, 0, -10))
    assert groups.members == 1


@in_loop
async def test_two_users_a_connection_leaves_its_groups_in_parts(tmp_path: Path) -> None:
    """With 500 partitions in memory, 5,000 groups took 5 s, in which the broker served nobody else."""
    topics = {"t": TopicSpec(partitions=2, storage="memory", bytes_max=1000, messages_max=1)}
    async with brokered(tmp_path, topics=topics) as (broker, client):
        async with from_address(client, "127.0.0.2") as eve:
            for number in range(50):
                fields = {"group": f"g{number}", "topic": "t", "member": "eve"}
                await eve.table.call(eve.address, JOIN, b"", fields)
        seen = [50]
        while seen[-1]:
            await asyncio.sleep(0)
            seen.append(broker.groups.members)
        assert max(before - after for before, after in pairwise(seen)) == 10


@in_loop
async def test_two_users_one_takes_half_of_all_memberships(tmp_path: Path) -> None:
    settings = BrokerSettings(members_max=12)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        counts = []
        for source in ("127.0.0.2", "127.0.0.3"):
            async with from_address(client, source) as each:
                for number in range(20):
                    fields = {"group": f"{source}-{number}", "topic": "t", "member": "m"}
                    try:
                        await each.table.call(client.address, JOIN, b"", fields)
                    except RemoteCallError:
                        break
                counts.append(number)
            await until(lambda: broker.users.members.total == 0)
        assert counts == [6, 6]  # those of the first went with its connection
