"""The members of groups, and the partitions of each."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered
from tests.support.loops import in_loop
from tunnel.messages import ConsumedMessage, RemoteCallError
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.progress import Progress
from tunnel.messages.broker.protocol import JOIN, MALFORMED, check_name, number_field
from tunnel.messages.calls import Request


@in_loop
async def test_members_share_the_partitions_in_the_order_of_joining() -> None:
    now = [0.0]
    groups = Groups(10.0, clock=lambda: now[0])
    one, two = object(), object()
    group = groups.join("g", "t", "a", one)
    first = group.generation
    assert group.partitions_of("a", 3) == [0, 1, 2]
    assert groups.join("g", "t", "a", one).generation == first
    waiting = asyncio.ensure_future(group.changed(first, 60.0))
    await asyncio.sleep(0)
    groups.join("g", "t", "b", two)
    await waiting
    assert (group.partitions_of("a", 3), group.partitions_of("b", 3)) == ([0, 2], [1])
    groups.check_owner("g", "t", "b", 1, 3)
    for member, partition in (("a", 1), ("c", 0)):
        with pytest.raises(RemoteCallError, match="no longer belongs"):
            groups.check_owner("g", "t", member, partition, 3)
    assert groups.members == 2
    groups.leave("g", "t", "a", two)  # it has no effect: `two` is not the connection of `a`
    assert groups.members == 2
    now[0] = 5.0
    groups.join("g", "t", "b", two)
    now[0] = 12.0
    groups.expire()
    assert group.partitions_of("b", 3) == [0, 1, 2]
    groups.leave("g", "t", "b", two)
    assert groups.members == 0
    assert groups.join("g", "t", "a", one).generation > group.generation
    await group.changed(group.generation, 0.0)


@in_loop
async def test_memberships_of_one_connection_are_limited(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (broker, client):
        await client.producer().send("t", b"a")
        for number in range(1000):
            await client.table.call(client.address, JOIN, b"", {"group": f"g{number}", "topic": "t", "member": "m"})
        with pytest.raises(RemoteCallError, match="1000 memberships"):
            await client.table.call(client.address, JOIN, b"", {"group": "one-more", "topic": "t", "member": "m"})
        assert broker.metrics()["group_members"] == 1000


def test_progress_counts_settled_messages_up_to_the_first_gap() -> None:
    progress = Progress(5)
    assert (progress.position, len(progress)) == (5, 0)
    progress.fetched([ConsumedMessage(offset, b"") for offset in (5, 6, 6, 7)], 8)
    progress.settled(6)
    progress.settled(7)
    assert (progress.position, len(progress)) == (5, 2)
    progress.settled(5)
    assert progress.position == 6
    progress.settled(6)
    assert (progress.position, len(progress)) == (8, 0)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "-a", "a b", "a\n", "\xe9", "a" * 201, ".new", "a\0"])
def test_names_that_are_unsafe_as_file_names_are_refused(name: str) -> None:
    with pytest.raises(RemoteCallError) as caught:
        check_name("topic", name)
    assert caught.value.code == MALFORMED
    assert check_name("topic", "a" * 200) == "a" * 200


@pytest.mark.parametrize("text", ["", "x", "-1", "1" * 30, "11", "1.0", "٣٣"])
def test_numbers_out_of_bounds_are_refused(text: str) -> None:
    with pytest.raises(RemoteCallError, match="must be a number from 0 to 10"):
        number_field(Request(1, b"", {"n": text}), "n", high=10)
    with pytest.raises(RemoteCallError, match="not nothing"):
        number_field(Request(1, b""), "n")
    assert number_field(Request(1, b"", {"n": "7"}), "n") == 7
