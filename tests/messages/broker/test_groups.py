"""The members of groups, and the partitions of each."""

from __future__ import annotations

import asyncio
import time

import pytest
from structlog.testing import capture_logs

from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages import ConsumedMessage, RemoteCallError
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.progress import Progress
from tunnel.messages.broker.protocol import LIMIT, NOT_OWNER


@in_loop
async def test_members_share_the_partitions_in_the_order_of_joining() -> None:
    now = [0.0]
    groups = Groups(10.0, clock=lambda: now[0])
    one, two = object(), object()
    group = groups.join("g", "t", "a", one)
    first = group.generation
    assert group.partitions_of("a", 3) == [0, 1, 2]
    assert groups.join("g", "t", "a", one).generation == first
    waiting = asyncio.ensure_future(group.until_changed(first, 60.0))
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
    list(groups.expire())
    assert group.partitions_of("b", 3) == [0, 1, 2]
    groups.leave("g", "t", "b", two)
    assert groups.members == 0
    assert groups.join("g", "t", "a", one).generation > group.generation
    await group.until_changed(group.generation, 0.0)


def test_a_group_gives_partitions_only_to_its_members() -> None:
    groups = Groups(10.0)
    connection = object()
    group = groups.join("g", "t", "a", connection)
    groups.join("g", "t", "b", connection)
    assert group.partitions_of("c", 3) == []
    assert group.partitions_of("b", 1) == []  # there are more members than partitions
    groups.check_owner("g", "t", "a", 2, 3)
    text = "^partition 1 of t no longer belongs to a in the group g$"
    with pytest.raises(RemoteCallError, match=text) as caught:
        groups.check_owner("g", "t", "a", 1, 3)
    assert caught.value.code == NOT_OWNER
    for name, topic in (("other", "t"), ("g", "other")):
        with pytest.raises(RemoteCallError) as caught:
            groups.check_owner(name, topic, "a", 0, 3)
        assert caught.value.code == NOT_OWNER


@in_loop_within(HANGING_S)
async def test_each_change_begins_a_later_generation_and_wakes_all_who_wait_for_it() -> None:
    groups = Groups(10.0)
    connection = object()
    group = groups.join("g", "t", "a", connection)

    async def woken_by(*change: object) -> None:
        before = group.generation
        waiting = [asyncio.ensure_future(group.until_changed(before, HANGING_S)) for _ in range(2)]
        await asyncio.sleep(0)
        assert not any(each.done() for each in waiting)
        name, *arguments = change
        getattr(groups, str(name))("g", "t", *arguments)
        await asyncio.gather(*waiting)
        assert group.generation > before
        await group.until_changed(before, HANGING_S)  # at once

    await woken_by("join", "b", connection)
    await woken_by("rewound")
    await woken_by("leave", "b", connection)
    groups.rewound("other", "t")  # nothing to do: it has no members


@in_loop_within(HANGING_S)
async def test_waiting_for_a_generation_ends_with_its_time_and_leaves_nothing_behind() -> None:
    groups = Groups(10.0)
    group = groups.join("g", "t", "a", object())
    await group.until_changed(group.generation, 0.0)
    assert group._waiters == set()
    waiting = asyncio.ensure_future(group.until_changed(group.generation, HANGING_S))
    await asyncio.sleep(0)
    waiting.cancel()
    groups.join("g", "t", "b", object())  # before the cancelled task has run
    await asyncio.gather(waiting, return_exceptions=True)
    assert group._waiters == set()


def test_generations_never_come_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member names the generation that it knows, and is notified of a newer one.

    If a number came twice, the member would not notice the change.
    """
    now_ns = 0
    monkeypatch.setattr(time, "time_ns", lambda: now_ns)
    groups = Groups(10.0)
    connection = object()
    groups.join("short", "t", "a", connection)
    long = groups.join("long", "t", "a", connection)
    for _ in range(5):
        groups.rewound("long", "t")
    groups.leave("long", "t", "a", connection)
    groups.leave("short", "t", "a", connection)
    assert groups.join("long", "t", "a", connection).generation > long.generation
    first = Groups(10.0).join("g", "t", "a", connection)
    # A restart takes more than a millisecond, and so does each change, so the clock is never behind the generations.
    now_ns = 1_000_000
    assert Groups(10.0).join("g", "t", "a", connection).generation > first.generation


def test_a_session_ends_when_its_member_was_silent_for_longer_than_the_limit() -> None:
    now = 0.0
    groups = Groups(10.0, clock=lambda: now)
    one, two = object(), object()

    def members_at(seconds: float) -> int:
        nonlocal now
        now = seconds
        list(groups.expire())
        return groups.members

    groups.join("g", "t", "a", one)
    groups.join("h", "t", "a", one)
    now = 4.0
    group = groups.join("g", "t", "b", two)
    assert [members_at(seconds) for seconds in (10.0, 10.1, 14.0)] == [3, 1, 1]
    assert group.partitions_of("b", 2) == [0, 1]
    groups.check_owner("g", "t", "b", 1, 2)
    groups.join("g", "t", "b", two)  # prolongs the session
    assert [members_at(seconds) for seconds in (24.0, 24.1)] == [1, 0]


def test_a_member_that_connects_again_stays_when_its_old_connection_ends() -> None:
    groups = Groups(10.0)
    old, new = object(), object()
    group = groups.join("g", "t", "a", old)
    before = group.generation
    assert groups.join("g", "t", "a", new) is group
    groups.leave("g", "t", "a", old)
    assert (groups.members, group.generation) == (1, before)
    for name, topic, member in (("other", "t", "a"), ("g", "other", "a"), ("g", "t", "other")):
        groups.leave(name, topic, member, new)  # nothing to do
    assert groups.members == 1
    groups.leave("g", "t", "a", new)
    assert groups.members == 0


def test_a_full_group_refuses_only_new_members(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.messages.broker.groups._MEMBERS_MAX", 2)
    groups = Groups(10.0)
    connection = object()
    for member in ("a", "b", "a"):
        groups.join("g", "t", member, connection)
    text = "^the group g has 2 members, and the operator may have no more of them: use another group$"
    with pytest.raises(RemoteCallError, match=text) as caught:
        groups.join("g", "t", "c", connection)
    assert caught.value.code == LIMIT
    groups.join("h", "t", "c", connection)
    assert groups.members == 3


def test_the_log_of_a_broker_names_the_members_that_come_and_go() -> None:
    groups = Groups(10.0)
    connection = object()
    with capture_logs() as lines:
        for member in ("a", "b", "b"):
            groups.join("g", "t", member, connection)
        groups.leave("g", "t", "a", connection)
    told = {"group": "g", "topic": "t", "log_level": "info"}
    assert lines == [
        {"event": "member_joined", "member": "a", "members": 1, **told},
        {"event": "member_joined", "member": "b", "members": 2, **told},
        {"event": "member_left", "member": "a", "members": 1, **told},
    ]


def test_progress_counts_settled_messages_up_to_the_first_gap() -> None:
    progress = Progress(5)
    assert (progress.position, len(progress)) == (5, 0)
    progress.on_fetched([ConsumedMessage(offset, b"") for offset in (5, 6, 6, 7)], 8)
    progress.on_settled(6)
    progress.on_settled(7)
    assert (progress.position, len(progress)) == (5, 2)
    progress.on_settled(5)
    assert progress.position == 6
    progress.on_settled(6)
    assert (progress.position, len(progress)) == (8, 0)
