"""What one user takes of a broker's topics, positions and connections: there is always some left for another."""

from __future__ import annotations

import asyncio
from pathlib import Path

import msgspec
import pytest

from tests.messages.broker.clocks import sleep
from tests.messages.broker.rig import brokered, from_address, until
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel.messages import (
    Broker,
    BrokerClient,
    BrokerSettings,
    ChannelTable,
    RemoteCallError,
    TopicSpec,
    split_address,
)
from tunnel.messages.broker.protocol import JOIN, LEAVE, LIMIT
from tunnel.messages.broker.users import Holdings, payer_of


async def create_until_refused(
    client: BrokerClient, source: str, spec: TopicSpec | None = None, prefix: str = "a"
) -> int:
    """Create topics on new connections until the broker refuses. Return their number."""
    for number in range(100):
        async with from_address(client, source) as each:
            try:
                await each.create_topic(f"{prefix}-{source}-{number}", spec)
            except RemoteCallError as error:
                return number if error.code == LIMIT else -1
    raise AssertionError("the broker never refused")


@in_loop
async def test_two_users_one_takes_half_of_the_partitions_on_any_number_of_connections(tmp_path: Path) -> None:
    settings = BrokerSettings(partitions_max=12)
    async with brokered(tmp_path, settings=settings) as (_, client):
        assert await create_until_refused(client, "127.0.0.2") == 6
        assert await create_until_refused(client, "127.0.0.3") == 3
    async with brokered(tmp_path, settings=settings) as (_, client):  # the broker knows who created them
        assert await create_until_refused(client, "127.0.0.2", prefix="b") == 0
        assert await create_until_refused(client, "127.0.0.4") == 1


@in_loop
async def test_two_users_one_takes_half_of_the_memory_of_topics_in_memory(tmp_path: Path) -> None:
    settings = BrokerSettings(memory_topics_bytes_max=12 * (1000 + 256))
    spec = TopicSpec(storage="memory", bytes_max=1000, messages_max=1)
    async with brokered(tmp_path, settings=settings) as (_, client):
        assert await create_until_refused(client, "127.0.0.2", spec) == 6
        assert await create_until_refused(client, "127.0.0.3", spec) == 3


@in_loop
async def test_two_users_one_takes_half_of_the_positions(tmp_path: Path) -> None:
    async def commit_until_refused(client: BrokerClient, source: str) -> int:
        for number in range(100):
            async with from_address(client, source) as each:
                try:
                    await each.commit(f"{source}-{number}", "t", 0, 0)
                except RemoteCallError as error:
                    return number if error.code == LIMIT else -1
        raise AssertionError("the broker never refused")

    settings = BrokerSettings(positions_max=12)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (_, client):
        assert await commit_until_refused(client, "127.0.0.2") == 6
        assert await commit_until_refused(client, "127.0.0.3") == 3
        async with from_address(client, "127.0.0.2") as each:  # a known position moves on
            assert await each.commit("127.0.0.2-0", "t", 0, 0, force=True) == 0
    async with brokered(tmp_path, settings=settings) as (_, client):
        assert await commit_until_refused(client, "127.0.0.2") == 6  # those that it has
        assert await commit_until_refused(client, "127.0.0.4") == 1


@in_loop
async def test_two_users_one_takes_half_of_what_groups_hold_in_memory(tmp_path: Path) -> None:
    """A group counts in each partition from its first member on, before it has a position there."""

    async def join_until_refused(client: BrokerClient, topic: str = "t") -> int:
        for number in range(100):
            fields = {"group": f"{id(client)}-{number}", "topic": topic, "member": "a"}
            try:
                await client.table.call(client.address, JOIN, b"", fields)
            except RemoteCallError as error:
                return number if error.code == LIMIT else -1
        raise AssertionError("the broker never refused")

    settings = BrokerSettings(positions_max=12)
    topics = {"t": TopicSpec(partitions=2, storage="memory", bytes_max=1000, messages_max=1)}
    async with brokered(tmp_path, settings=settings, topics=topics) as (broker, client):
        async with from_address(client, "127.0.0.2") as eve, from_address(client, "127.0.0.3") as ann:
            assert await join_until_refused(eve) == 3
            assert await join_until_refused(ann) == 1
            groups = [{"group": f"{id(eve)}-{number}", "topic": "t", "member": "a"} for number in range(2)]
            for each in groups:
                await eve.table.call(eve.address, LEAVE, b"", each)
            await eve.table.call(eve.address, JOIN, b"", groups[0])  # what it has left is free again
        await until(lambda: not broker.groups.members)
        async with from_address(client, "127.0.0.2") as eve:
            spec = TopicSpec(partitions=1, storage="memory", bytes_max=1000, messages_max=1)
            await eve.create_topic("u", spec)
            assert await join_until_refused(eve, "u") == 6
            await eve.delete_topic("u")
            await eve.create_topic("u", msgspec.structs.replace(spec, partitions=100))
            assert await join_until_refused(eve, "u") == 0  # its members do not get the new partitions for nothing


@in_loop
async def test_two_users_topics_of_the_operator_are_limited_in_all_alone(tmp_path: Path) -> None:
    topics = {f"t{number}": TopicSpec() for number in range(12)}
    async with brokered(tmp_path, settings=BrokerSettings(partitions_max=12), topics=topics) as (_, client):
        with pytest.raises(RemoteCallError):
            await client.create_topic("more")


@in_loop
async def test_two_users_of_a_relay_are_told_apart_by_their_names(tmp_path: Path) -> None:
    """Although all their connections come from the relay."""
    async with (
        MemoryTestRelay() as relay,
        relay.attach("ann") as service,
        relay.attach("eve") as eve,
        relay.attach("bob") as bob,
        Broker(tmp_path, BrokerSettings(partitions_max=12)) as broker,
    ):
        await service.start_server(broker.serve, "broker")
        for user, most in ((eve, 6), (bob, 3)):
            for number in range(most + 1):
                async with ChannelTable(user.open_connection) as table:
                    client = BrokerClient(table, "broker")
                    if number < most:
                        await client.producer().send(f"t{most}-{number}", b"a")
                    else:
                        with pytest.raises(RemoteCallError, match=r"user .* has \d, and may have no more"):
                            await client.producer().send(f"t{most}-{number}", b"a")


@in_loop
async def test_two_users_one_takes_half_of_the_connections(tmp_path: Path) -> None:
    async with brokered(tmp_path, settings=BrokerSettings(connections_max=12)) as (broker, client):
        held: list[asyncio.StreamWriter] = []
        for source, most in (("127.0.0.2", 6), ("127.0.0.3", 3)):
            for number in range(most + 1):
                reader, writer = await asyncio.open_connection(*split_address(client.address), local_addr=(source, 0))
                held.append(writer)
                if number == most:
                    with pytest.raises(ConnectionError):
                        await reader.readexactly(1)
        assert broker.counters.connections_refused == 2
        await client.topics()
        for writer in held:
            writer.close()


def test_two_users_what_is_given_back_is_free_for_both() -> None:
    holdings = Holdings(10)
    assert holdings.may_add("eve", 5)
    assert not holdings.may_add("eve", 6)
    holdings.add("eve", 5)
    assert not holdings.may_add("eve", 1)
    assert holdings.may_add("ann", 2)
    assert not holdings.may_add("ann", 3)
    assert holdings.may_add("", 5)  # the operator
    assert not holdings.may_add("", 6)
    holdings.add("eve", -5)
    assert holdings.may_add("ann", 5)
    assert holdings.total == 0
    assert not holdings.of_user


@pytest.mark.parametrize(
    ("peer", "name"),
    [
        (("192.0.2.1", 1), "address 192.0.2.1"),
        (("2001:db8:1:2:3:4:5:6", 1, 0, 0), "address 2001:db8:1:2::/64"),
        (("::ffff:192.0.2.1", 1, 0, 0), "address 192.0.2.1"),
        (("fe80::1%eth0", 1, 0, 2), "address fe80::/64"),
        ("", "address local"),
        (None, "address local"),
    ],
)
def test_two_users_one_with_many_addresses_of_ipv6_is_one(peer: object, name: str) -> None:
    assert payer_of(peer, is_tunnel=False) == name


def test_two_users_a_name_of_the_relay_is_no_address() -> None:
    assert payer_of(("192.0.2.1", 0), is_tunnel=True) == "user 192.0.2.1"


@pytest.mark.interpreted  # it replaces a function of the clock, which calls it
@in_loop
async def test_two_users_positions_without_use_expire_and_those_of_a_member_do_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The positions that one user has left behind are free for others again. A group that waits for messages keeps
    its position."""
    topics = {"t": TopicSpec(), "m": TopicSpec(storage="memory")}
    settings = BrokerSettings(positions_max=4, position_s=100_000.0)
    async with brokered(tmp_path, settings=settings, topics=topics) as (broker, client):
        await client.producer().send("m", b"a")
        await client.commit("left", "t", 0, 0)
        await client.commit("left", "m", 0, 0)
        async with from_address(client, "127.0.0.2") as other, from_address(client, "127.0.0.3") as member:
            await other.commit("more", "t", 0, 0)
            with pytest.raises(RemoteCallError):
                await other.commit("more", "m", 0, 0)
            joining = {"group": "more", "topic": "t", "member": "one"}
            await member.table.call(client.address, JOIN, b"", joining)
            sleep(monkeypatch, 101_000)
            await broker.expire_positions()
            assert [each.group for each in await client.positions()] == ["more"]
            assert [broker.topics.memory("m", 0)._readers.position(group) for group in ("left", "more")] == [None, None]  # type: ignore[union-attr]
            await member.table.call(client.address, LEAVE, b"", joining)
            sleep(monkeypatch, 50_000)
            await broker.expire_positions()
            assert [each.group for each in await client.positions()] == ["more"]
            sleep(monkeypatch, 51_000)
    async with Broker(tmp_path, settings) as broker:
        await broker.expire_positions()
        assert len(broker.positions) == 0
    async with Broker(tmp_path, settings) as broker:
        assert len(broker.positions) == 0
        assert broker.positions._holdings.may_add("address 127.0.0.1", 2)
