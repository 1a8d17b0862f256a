"""Topics and groups are deleted by those who made them, and by the machine of the broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.messages.broker.rig import brokered, drain_fetches, until
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel.messages import (
    Broker,
    BrokerClient,
    BrokerSettings,
    ChannelTable,
    GroupConsumer,
    Log,
    RemoteCallError,
    TopicSpec,
)
from tunnel.messages.broker.protocol import JOIN, NOT_ALLOWED, NOT_MASTER, UNKNOWN
from tunnel.messages.broker.users import is_local

MEMORY = TopicSpec(storage="memory")


async def refused(work: object, code: int) -> str:
    with pytest.raises(RemoteCallError) as caught:
        await work  # type: ignore[misc]
    assert caught.value.code == code
    return str(caught.value)


@asynccontextmanager
async def two_users(place: Path) -> AsyncIterator[tuple[Broker, BrokerClient, BrokerClient]]:
    """A broker as a service at a relay, and clients of eve and ann."""
    async with (
        MemoryTestRelay() as relay,
        relay.attach("svc") as service,
        relay.attach("eve") as eve,
        relay.attach("ann") as ann,
        Broker(place, topics={"operators": TopicSpec()}) as broker,
        ChannelTable(eve.open_connection) as of_eve,
        ChannelTable(ann.open_connection) as of_ann,
    ):
        await service.start_server(broker.serve, "broker")
        yield broker, BrokerClient(of_eve, "broker"), BrokerClient(of_ann, "broker")


@in_loop
async def test_two_users_a_topic_is_deleted_by_the_one_who_made_it_alone(tmp_path: Path) -> None:
    async with two_users(tmp_path) as (broker, eve, ann):
        await ann.producer().send("anns", b"a")
        assert "belongs to user ann" in await refused(eve.delete_topic("anns"), NOT_ALLOWED)
        assert "belongs to the operator" in await refused(eve.delete_topic("operators"), NOT_ALLOWED)
        await refused(eve.delete_topic("missing"), UNKNOWN)
        assert await drain_fetches(ann, "anns", 1) == [b"a"]
        assert await ann.delete_topic("anns") == 1
        assert sorted(broker.topics.found) == ["operators"]


@in_loop
async def test_two_users_a_group_is_deleted_by_the_one_who_made_it_alone(tmp_path: Path) -> None:
    async with two_users(tmp_path) as (_, eve, ann):
        await ann.commit("anns", "operators", 0, 0)
        await refused(eve.delete_group("anns"), NOT_ALLOWED)
        await refused(eve.delete_group("missing"), UNKNOWN)
        assert [each.group for each in await ann.positions()] == ["anns"]
        assert await ann.delete_group("anns") == 1
        assert await ann.positions() == []


@in_loop
async def test_two_users_a_group_with_members_is_not_deleted(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec()}) as (_, client):
        await client.commit("g", "t", 0, 0)
        await client.table.call(client.address, JOIN, b"", {"group": "g", "topic": "t", "member": "m"})
        assert "has members" in await refused(client.delete_group("g"), NOT_ALLOWED)


@pytest.mark.parametrize("spec", [TopicSpec(partitions=2), MEMORY])
def test_a_deleted_topic_leaves_nothing_and_can_be_made_again(spec: TopicSpec, tmp_path: Path) -> None:
    @in_loop
    async def check() -> None:
        got: list[bytes] = []
        settings = BrokerSettings(partitions_max=4)
        async with brokered(tmp_path, settings=settings) as (broker, client):
            await client.create_topic("t", spec)
            await client.producer().send("t", b"a", b"b", partition=0)
            await client.commit("g", "t", 0, 0)
            await client.commit("other", "t", 0, 0)
            waiting = asyncio.ensure_future(client.consumer("t", offset=2).fetch(wait_ms=500))
            group = GroupConsumer(client.table, client.address, "listening", "t")
            async with group.register_message_listener(lambda each: got.append(each.payload)):
                await until(lambda: got == [b"a", b"b"])
                assert await client.delete_topic("t") == spec.partitions
                await asyncio.gather(waiting, return_exceptions=True)
                assert len(broker.positions) == 0
                assert not broker.topics.found
                assert [each.name for each in (tmp_path / "topics").iterdir()] == []
                assert broker.topics._partitions.total == broker.topics._memory_bytes.total == 0
                await client.create_topic("t", spec)
                await client.producer().send("t", b"c", partition=0)
                await until(lambda: got == [b"a", b"b", b"c"])
        async with Broker(tmp_path) as broker:
            assert list(broker.topics.found) == ["t"]

    check()


@in_loop
async def test_a_topic_whose_deletion_a_crash_interrupted_is_gone(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client):
        await client.producer().send("t", b"a")
    (tmp_path / "topics" / "t").rename(tmp_path / "topics" / ".t")
    async with Broker(tmp_path) as broker:
        assert not broker.topics.found
        assert list((tmp_path / "topics").iterdir()) == []


@in_loop
async def test_two_users_a_topic_that_is_opened_while_it_is_deleted_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder came back without a description: no topic of this name could be made, and the broker did not start."""
    begun, may_open = threading.Event(), threading.Event()
    open_log = Log.open

    def slow_open(*arguments: Any) -> Log:
        begun.set()
        may_open.wait(10)
        return open_log(*arguments)

    folder = tmp_path / "topics" / "t"
    async with brokered(tmp_path, topics={"u": TopicSpec()}) as (broker, client):
        await client.create_topic("t")
        monkeypatch.setattr(Log, "open", slow_open)
        opening = asyncio.ensure_future(broker.topics.get("t").partition(0).ready())
        await asyncio.to_thread(begun.wait, 10)
        deleting = asyncio.ensure_future(broker.topics.delete(broker.topics.get("t")))
        for _ in range(100):  # if it does not wait for the opening, it hides the folder meanwhile
            await asyncio.sleep(0.001)
        may_open.set()
        await asyncio.gather(opening, deleting)
        assert not folder.exists()
        await client.producer().send("t", b"new")
    async with brokered(tmp_path) as (_, client):
        assert await drain_fetches(client, "t", 1) == [b"new"]


@in_loop
async def test_a_topic_that_cannot_be_deleted_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise OSError(30, "Read-only file system")

    async with brokered(tmp_path) as (broker, client):
        await client.producer().send("t", b"a")
        with monkeypatch.context() as patched:
            patched.setattr("tunnel.messages.broker.topics.os.rename", fail)
            with pytest.raises(RemoteCallError, match="Read-only"):
                await client.delete_topic("t")
        await client.producer().send("t", b"b")
        assert broker.topics._partitions.total == 1
        assert await drain_fetches(client, "t", 2) == [b"a", b"b"]


@in_loop
async def test_the_machine_of_the_broker_deletes_topics_and_groups_of_all(tmp_path: Path) -> None:
    topics = {"t": TopicSpec(), "m": MEMORY}
    async with brokered(tmp_path, topics=topics) as (broker, client):
        await broker.positions.set(("g", "t", 0), 0, user="user eve")
        await broker.positions.set(("g", "m", 0), 0, user="user ann")
        memory = broker.topics.memory("m", 0)
        assert memory is not None
        memory.has_read("g", 0)
        assert await client.delete_group("g") == 2
        assert memory._readers.position("g") is None
        assert await client.delete_topic("t") == 1


@in_loop
async def test_a_replica_deletes_nothing(tmp_path: Path) -> None:
    settings = BrokerSettings(master="127.0.0.1:1")
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (_, client):
        await refused(client.delete_topic("t"), NOT_MASTER)
        await refused(client.delete_group("g"), NOT_MASTER)


@pytest.mark.parametrize(
    ("user", "is_of_the_machine"),
    [
        ("address 127.0.0.1", True),
        ("address ::1", True),
        ("address local", True),
        ("address 192.0.2.1", False),
        ("address 2001:db8::/64", False),
        ("user 127.0.0.1", False),
        ("user local", False),
        ("", False),
    ],
)
def test_two_users_only_an_address_of_the_machine_is_its_own(user: str, is_of_the_machine: bool) -> None:
    assert is_local(user) is is_of_the_machine
