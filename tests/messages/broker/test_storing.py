"""Produce requests: everything is checked before anything is stored, and one client cannot use up the topics and
partitions that all clients together may create."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.support.loops import HANGING_S, in_loop_within
from tunnel.messages import BrokerSettings, RemoteCallError, TopicSpec
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.partition import ProduceOptions
from tunnel.messages.broker.protocol import CONFLICT, CORRUPT, LIMIT, NOT_MASTER, STORAGE, UNKNOWN
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.broker.storing import Stored, Storing, check_set
from tunnel.messages.broker.topics import Topics
from tunnel.messages.broker.users import User
from tunnel.messages.sets.codec import Codec
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.sets.sets import ByteBufferMessageSet
from tunnel.messages.topics.requests import ProduceRequest

PLAIN = ProduceOptions()
MEMORY = TopicSpec(storage="memory", partitions=2, bytes_max=100)


class Rig:
    """A broker's topics, without a broker."""

    def __init__(self, directory: Path, settings: BrokerSettings | None = None) -> None:
        self.settings = settings or BrokerSettings(new_topic=MEMORY)
        self.topics = Topics(directory, self.settings, DiskRoom(directory, 0))
        self.storing = Storing(self.topics, self.settings)
        self.user = User("user eve")

    async def store(self, *requests: ProduceRequest, options: ProduceOptions = PLAIN) -> list[Stored]:
        return await self.storing.store(list(requests), options, self.user)

    def ends(self, topic: str = "t") -> list[int]:
        return [partition.end_offset for partition in self.topics.get(topic).partitions]


def request(payloads: Sequence[bytes], partition: int = 0, topic: str = "t") -> ProduceRequest:
    return ProduceRequest(topic, partition, ByteBufferMessageSet.of(payloads))


@in_loop_within(HANGING_S)
async def test_a_set_is_counted_and_damage_is_named() -> None:
    data = encode_payloads([b"a", b"b"])
    assert await check_set(b"") == 0
    assert await check_set(data) == 2
    assert await check_set(data + ByteBufferMessageSet.of([b"a", b"b"], codec=Codec.GZIP).data) == 3
    for broken, text in (
        (data[:-1], "the set ends within a message (at 11)"),
        (data[:-1] + b"x", "the payload does not match its CRC-32 (at 11)"),
    ):
        with pytest.raises(RemoteCallError) as caught:
            await check_set(broken)
        assert caught.value.code == CORRUPT
        assert str(caught.value) == f"the message set is damaged: {text}; nothing was stored"


@in_loop_within(HANGING_S)
async def test_other_clients_are_served_while_a_large_set_is_checked() -> None:
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    waiting = asyncio.ensure_future(others())
    assert await check_set(encode_payloads([bytes(1014)] * 300)) == 300
    assert turns == 8  # the check pauses after each 32 KiB of 300 KiB; in the first pause, the other task only begins
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)


@in_loop_within(HANGING_S)
async def test_each_set_is_stored_where_its_request_says(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    first, second = await rig.store(request([b"a", b"b"], 1), request([b"c"], 1))
    partition = rig.topics.get("t").partition(1)
    assert (first, second) == (Stored(partition, 1, 0, 2), Stored(partition, 1, 2, 3))
    (found,) = await rig.store(request([b"d"], 0))
    assert (found.number, found.offset, found.end) == (0, 0, 1)
    chosen = [(await rig.store(request([b"e"], -1)))[0].number for _ in range(4)]
    assert sorted(chosen) == [0, 0, 1, 1]
    assert rig.ends() == [3, 5]


@in_loop_within(HANGING_S)
async def test_nothing_is_stored_if_any_set_is_refused(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.store(request([b"a"]))
    good = request([b"b"])
    damaged = ProduceRequest("t", 0, ByteBufferMessageSet(good.messages.data[:-1]))
    for bad, code in (
        (damaged, CORRUPT),
        (request([b"c"], 2), UNKNOWN),
        (request([b"c"], -2), UNKNOWN),
        (request([bytes(200)]), LIMIT),  # larger than its topic
    ):
        for requests in ((good, bad), (bad, good), (bad,)):
            with pytest.raises(RemoteCallError) as caught:
                await rig.store(*requests)
            assert caught.value.code == code
            assert rig.ends() == [1, 0]


@in_loop_within(HANGING_S)
async def test_a_set_that_names_its_offset_comes_alone_and_gets_it(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    with pytest.raises(
        RemoteCallError, match=r"^a request that names its offset must have one set: send one for each$"
    ) as caught:
        await rig.store(request([b"a"]), request([b"b"]), options=ProduceOptions(at=0))
    assert caught.value.code == LIMIT
    assert not rig.topics.found
    (found,) = await rig.store(request([b"a"]), options=ProduceOptions(at=0))
    assert found.offset == 0
    with pytest.raises(RemoteCallError) as caught:
        await rig.store(request([b"a"]), options=ProduceOptions(at=0))
    assert caught.value.code == CONFLICT
    assert rig.ends() == [1, 0]


@in_loop_within(HANGING_S)
async def test_a_replica_names_its_master(tmp_path: Path) -> None:
    rig = Rig(tmp_path, BrokerSettings(master="master:1", new_topic=MEMORY))
    with pytest.raises(RemoteCallError, match=r"^this broker is a replica: send to the broker at master:1$") as caught:
        await rig.store(request([b"a"]))
    assert caught.value.code == NOT_MASTER
    with pytest.raises(RemoteCallError, match="ask the operator") as caught:
        await rig.storing.create("t", MEMORY, rig.user.name)
    assert caught.value.code == LIMIT


@in_loop_within(HANGING_S)
async def test_topics_are_created_only_where_clients_may(tmp_path: Path) -> None:
    rig = Rig(tmp_path, BrokerSettings(creates_topics=False))
    with pytest.raises(RemoteCallError, match="there is no topic t") as caught:
        await rig.store(request([b"a"]))
    assert caught.value.code == UNKNOWN
    text = "^clients may not create topics here: ask the operator of the broker for it$"
    with pytest.raises(RemoteCallError, match=text) as caught:
        await rig.storing.create("t", MEMORY, rig.user.name)
    assert caught.value.code == LIMIT
    await rig.topics.create("t", MEMORY)
    assert await rig.storing.create("t", MEMORY, rig.user.name) is rig.topics.get("t")
    assert (await rig.store(request([b"a"])))[0].end == 1


@in_loop_within(HANGING_S)
async def test_a_user_creates_no_more_partitions_than_remain_free(tmp_path: Path) -> None:
    rig = Rig(tmp_path, BrokerSettings(new_topic=MEMORY, partitions_max=8))
    with capture_logs() as lines:
        for name in ("a", "b"):
            assert (await rig.storing.create(name, MEMORY, rig.user.name)).name == name
    wanted = {"event": "topic_created", "partitions": 2, "storage": "memory"}
    assert [{**wanted, "topic": name} for name in ("a", "b")] == [
        {key: line[key] for key in ("event", "partitions", "storage", "topic")} for line in lines
    ]
    text = "^the broker has 4 partitions and may have 8, 2 more are too many; user eve has 4, and may have"
    with pytest.raises(RemoteCallError, match=text) as caught:
        await rig.store(request([b"a"], topic="c"))
    assert caught.value.code == LIMIT
    assert set(rig.topics.found) == {"a", "b"}
    assert (await rig.store(request([b"a"], topic="a")))[0].end == 1
    with pytest.raises(RemoteCallError, match=r"^'no/name' is no name for a topic:"):
        await rig.storing.create("no/name", MEMORY, rig.user.name)
    with pytest.raises(RemoteCallError, match="exists with 2 partitions"):
        await rig.storing.create("a", TopicSpec(storage="memory"), rig.user.name)


@in_loop_within(HANGING_S)
async def test_a_partition_on_disk_is_opened_for_the_first_message(tmp_path: Path) -> None:
    rig = Rig(tmp_path, BrokerSettings())
    for end in (1, 2):
        (found,) = await rig.store(request([b"a"]))
        assert found.end == end
    partition = rig.topics.get("t").partition(0)
    assert isinstance(partition, StoredPartition)
    await partition.flush_before(2)
    assert partition.end_offset == 2
    await partition.close()


@in_loop_within(HANGING_S)
async def test_a_topic_that_could_not_be_created_does_not_count_as_created(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that tries until the disk has room again would otherwise be refused for good."""
    rig = Rig(tmp_path, BrokerSettings(new_topic=MEMORY, partitions_max=4))

    def fail(path: Path, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("tunnel.messages.broker.topics.write_atomically", fail)
        for _ in range(10):
            with pytest.raises(RemoteCallError) as caught:
                await rig.store(request([b"a"]))
            assert caught.value.code == STORAGE
    with pytest.raises(RemoteCallError, match="is no name for a topic"):
        await rig.store(request([b"a"], topic="no/name"))
    assert (await rig.store(request([b"a"])))[0].end == 1


@in_loop_within(HANGING_S)
async def test_messages_are_stored_in_an_existing_topic_whose_spec_is_not_the_default(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    await rig.topics.create("t", TopicSpec(storage="memory", partitions=3))
    assert (await rig.store(request([b"a"], 2)))[0].number == 2


@in_loop_within(HANGING_S)
async def test_damage_far_inside_a_large_set_is_named_by_its_place() -> None:
    data = encode_payloads([bytes(1014)] * 100)
    for broken, text in (
        (data[:-1], "the set ends within a message (at 101376)"),
        (data + b"cut", "the set ends within a message (at 102400)"),
        (data[:-1] + b"x", "the payload does not match its CRC-32 (at 101376)"),
    ):
        with pytest.raises(RemoteCallError) as caught:
            await check_set(broken)
        assert str(caught.value) == f"the message set is damaged: {text}; nothing was stored"
