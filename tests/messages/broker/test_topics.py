"""The topics of a broker: which partition gets a message, what a start finds on disk, and how many there may be."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.loops import HANGING_S, in_loop_within
from tunnel.messages import BrokerSettings, LogConfig, RemoteCallError, TopicSpec
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.partition import MemoryPartition, Partition, ProduceOptions
from tunnel.messages.broker.protocol import FETCH, LIMIT, MALFORMED, STORAGE, UNKNOWN
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.broker.topics import Topic, Topics
from tunnel.messages.calls.calls import Request
from tunnel.messages.errors import LogError
from tunnel.messages.sets.message import encode_payloads

MEMORY = TopicSpec(storage="memory", bytes_max=100)
PLAIN = ProduceOptions()


class Failing(Partition):
    """A partition that fails when the test says so."""

    failed = False

    @property
    def is_failed(self) -> bool:
        return self.failed


def loaded(directory: Path, free: int = 1 << 40, **settings: Any) -> Topics:
    topics = Topics(directory, BrokerSettings(**settings), DiskRoom(directory, 0, free=lambda _: free))
    topics.load()
    return topics


def specs(topics: Topics) -> dict[str, TopicSpec]:
    return {name: topic.spec for name, topic in topics.found.items()}


def chosen(topic: Topic, count: int) -> list[int]:
    return [topic.choose() for _ in range(count)]


def test_messages_that_name_no_partition_go_to_each_in_turn() -> None:
    topic = Topic("t", MEMORY, [Failing() for _ in range(3)])
    assert chosen(topic, 7) == [0, 1, 2, 0, 1, 2, 0]


def test_a_failed_partition_gets_no_messages_that_could_go_to_another() -> None:
    partitions = [Failing() for _ in range(3)]
    topic = Topic("t", MEMORY, partitions)  # type: ignore[arg-type]
    partitions[1].failed = True
    assert chosen(topic, 4) == [0, 2, 0, 2]
    for partition in partitions:
        partition.failed = True
    assert chosen(topic, 3) == [1, 2, 0]  # one of them may have recovered: each is tried in turn
    partitions[2].failed = False
    assert chosen(topic, 2) == [2, 2]


@pytest.mark.parametrize("number", [-1, 2])
def test_a_partition_that_the_topic_lacks_is_unknown(number: int) -> None:
    partitions: list[Partition] = [Failing(), Failing()]
    topic = Topic("orders", MEMORY, partitions)
    assert [topic.partition(each) for each in (0, 1)] == partitions
    with pytest.raises(RemoteCallError) as caught:
        topic.partition(number)
    assert caught.value.code == UNKNOWN
    assert str(caught.value) == f"the topic orders has 2 partitions, and no partition {number}"


@in_loop_within(HANGING_S)
async def test_a_start_finds_every_topic_as_it_was_created(tmp_path: Path) -> None:
    place = tmp_path / "made" / "topics"
    topics = loaded(place)
    assert specs(topics) == {}
    wanted = {"t": TopicSpec(partitions=2, retain_bytes=5, retain_s=0.5), "m": MEMORY, "last": TopicSpec()}
    for name, spec in wanted.items():
        topic = await topics.create(name, spec)
        assert (topic.name, topic.spec, len(topic.partitions)) == (name, spec, spec.partitions)
        assert topic is topics.get(name)
    again = loaded(place)
    assert specs(again) == wanted
    kinds = {name: [type(each) for each in topic.partitions] for name, topic in again.found.items()}
    assert kinds == {"t": [StoredPartition] * 2, "m": [MemoryPartition], "last": [StoredPartition]}
    assert sorted(map(str, again.partitions())) == sorted(
        str(each) for name in wanted for each in again.get(name).partitions
    )


@in_loop_within(HANGING_S)
async def test_a_creation_that_a_crash_interrupted_leaves_no_topic_and_can_be_repeated(tmp_path: Path) -> None:
    topics = loaded(tmp_path)
    await topics.create("t", MEMORY)
    for name in (".half", ".t"):
        (tmp_path / name / "0").mkdir(parents=True)
    (tmp_path / ".file").write_bytes(b"")  # a file of another program: it is ignored
    assert specs(loaded(tmp_path)) == {"t": MEMORY}
    assert sorted(os.listdir(tmp_path)) == [".file", "t"]
    (tmp_path / ".half" / "0").mkdir(parents=True)
    await topics.create("half", MEMORY)
    assert os.listdir(tmp_path / "half") == ["topic.json"]
    assert specs(loaded(tmp_path)) == {"t": MEMORY, "half": MEMORY}


@pytest.mark.parametrize("content", [None, b"{", b'{"storage": "tape"}', b'{"partitions": "2"}', b'{"new": 1}'])
def test_a_folder_that_is_no_topic_ends_the_start_with_advice(tmp_path: Path, content: bytes | None) -> None:
    """Without it, the broker would answer that the topic is unknown, although its messages are there."""
    place = tmp_path / "t"
    place.mkdir()
    if content is not None:
        (place / "topic.json").write_bytes(content)
    text = f"^{place} is not a topic: .*; restore {place}/topic.json, or move the folder away$"
    with pytest.raises(LogError, match=text):
        loaded(tmp_path)


def test_an_unknown_topic_and_an_invalid_name_are_different_errors(tmp_path: Path) -> None:
    topics = loaded(tmp_path)
    with pytest.raises(RemoteCallError) as caught:
        topics.get("t")
    assert caught.value.code == UNKNOWN
    assert str(caught.value) == "there is no topic t: create it, or send a message to it first"
    with pytest.raises(RemoteCallError, match=r"^'\.\./t' is no name for a topic:") as caught:
        topics.get("../t")
    assert caught.value.code == MALFORMED


@in_loop_within(HANGING_S)
async def test_an_existing_topic_is_returned_but_never_changed(tmp_path: Path) -> None:
    topics = loaded(tmp_path)
    spec = TopicSpec(partitions=2)
    topic = await topics.create("t", spec)
    assert await topics.create("t", TopicSpec(partitions=2, retain_s=1.0)) is topic
    for other in (TopicSpec(partitions=3), TopicSpec(partitions=2, storage="memory", bytes_max=1)):
        with pytest.raises(RemoteCallError) as caught:
            await topics.create("t", other)
        assert caught.value.code == LIMIT
        assert str(caught.value) == (
            "the topic t exists with 2 partitions in storage log, which cannot be changed: choose another name"
        )
    assert topics.get("t") is topic
    assert specs(loaded(tmp_path)) == {"t": spec}
    with pytest.raises(RemoteCallError, match=r"^'a/b' is no name for a topic:") as caught:
        await topics.create("a/b", spec)
    assert caught.value.code == MALFORMED


@in_loop_within(HANGING_S)
async def test_a_topic_that_two_clients_create_at_once_is_created_once(tmp_path: Path) -> None:
    topics = loaded(tmp_path)
    first, second = await asyncio.gather(topics.create("t", MEMORY), topics.create("t", MEMORY))
    assert first is second


@in_loop_within(HANGING_S)
async def test_a_new_topic_is_on_disk_before_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure, messages without their topic could not be found again."""
    synced: list[tuple[Path, list[str]]] = []
    monkeypatch.setattr(
        "tunnel.messages.broker.topics.sync_directory",
        lambda place: synced.append((place, sorted(path.name for path in place.iterdir()))),
    )
    await Topics(tmp_path, BrokerSettings(), DiskRoom(tmp_path, 0)).create("t", MEMORY)
    assert synced == [(tmp_path, ["t"])]


@in_loop_within(HANGING_S)
async def test_a_topic_that_cannot_be_written_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    topics = loaded(tmp_path)

    def fail(*paths: Path) -> None:
        raise OSError(30, "Read-only file system")

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", fail)
        text = r"^the topic t cannot be created: \[Errno 30\] Read-only file system$"
        with pytest.raises(RemoteCallError, match=text) as caught:
            await topics.create("t", MEMORY)
    assert caught.value.code == STORAGE
    assert specs(topics) == specs(loaded(tmp_path)) == {}
    full = loaded(tmp_path, free=2)
    with pytest.raises(RemoteCallError, match="the disk of the broker is full") as caught:
        await full.create("abc", MEMORY)
    assert caught.value.code == STORAGE
    await full.create("ab", MEMORY)


@in_loop_within(HANGING_S)
async def test_the_number_of_partitions_is_limited(tmp_path: Path) -> None:
    topics = loaded(tmp_path, partitions_max=5)
    await topics.create("a", TopicSpec(partitions=2))
    await topics.create("b", MEMORY)
    with pytest.raises(RemoteCallError) as caught:
        await topics.create("c", TopicSpec(partitions=3))
    assert caught.value.code == LIMIT
    assert str(caught.value) == (
        "the broker has 3 partitions and may have 5, 3 more are too many: use an existing topic, or delete one"
    )
    await topics.create("c", TopicSpec(partitions=2))
    assert sorted(topics.found) == ["a", "b", "c"]


@in_loop_within(HANGING_S)
async def test_the_memory_of_topics_in_memory_is_limited(tmp_path: Path) -> None:
    topics = loaded(tmp_path, memory_topics_bytes_max=1000 + 4 * 256)
    await topics.create("log", TopicSpec(bytes_max=1 << 40))  # it takes no memory
    await topics.create("a", TopicSpec(storage="memory", partitions=2, bytes_max=300, messages_max=1))
    with pytest.raises(RemoteCallError) as caught:
        await topics.create("b", TopicSpec(storage="memory", partitions=3, bytes_max=200, messages_max=1))
    assert caught.value.code == LIMIT
    assert str(caught.value) == (
        "the broker has 1112 bytes of topics in memory and may have 2024, 1368 more are too many: use an existing "
        "topic, or delete one"
    )
    await topics.create("b", TopicSpec(storage="memory", partitions=2, bytes_max=200, messages_max=1))
    await topics.create("log2", TopicSpec())
    assert sorted(topics.found) == ["a", "b", "log", "log2"]


@in_loop_within(HANGING_S)
async def test_reports_are_sorted_and_number_the_partitions(tmp_path: Path) -> None:
    topics = loaded(tmp_path)
    await topics.create("z", TopicSpec(storage="memory", partitions=2))
    await topics.create("a", TopicSpec())
    topics.get("z").partition(1).append(encode_payloads([b"x", b"y"]), 2, PLAIN)
    found = [
        (each.topic, each.storage, [(part.partition, part.end) for part in each.partitions])
        for each in topics.reports()
    ]
    assert found == [("a", "log", [(0, 0)]), ("z", "memory", [(0, 0), (1, 2)])]


async def kept(topics: Topics, name: str, spec: TopicSpec) -> Sequence[int]:
    """Append three messages of 60 bytes, each in a segment of its own; return the offsets that are left."""
    partition = (await topics.create(name, spec)).partition(0)
    await partition.ready()
    for number in range(3):
        partition.append(encode_payloads([bytes(50)]), 1, PLAIN)
        await partition.flush_before(number + 1)
    await partition.close()
    return range(partition.first_offset, partition.end_offset)


@in_loop_within(HANGING_S)
async def test_the_retention_of_a_topic_takes_precedence_over_the_brokers(tmp_path: Path) -> None:
    config = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=50, retain_bytes=120, retain_s=1000.0)
    topics = loaded(tmp_path, log=config)
    assert list(await kept(topics, "default", TopicSpec())) == [1, 2]
    assert list(await kept(topics, "bytes", TopicSpec(retain_bytes=60))) == [2]
    assert list(await kept(topics, "age", TopicSpec(retain_s=0.0))) == []


@in_loop_within(HANGING_S)
async def test_the_partitions_of_a_topic_have_folders_of_their_own_and_share_the_room(tmp_path: Path) -> None:
    topics = loaded(tmp_path, free=300)
    topic = await topics.create("t", TopicSpec(partitions=2))
    for number, partition in enumerate(topic.partitions):
        await partition.ready()
        assert (tmp_path / "t" / str(number) / f"{0:020d}.log").exists()
        with pytest.raises(RemoteCallError, match="the disk of the broker is full"):
            partition.append(encode_payloads([bytes(300)]), 1, PLAIN)
        await partition.close()


async def redirect(topics: Topics, offset: int) -> str | None:
    """Store three messages, and return the address to which a reader at this offset is sent."""
    partition = (await topics.create("t", TopicSpec())).partition(0)
    await partition.ready()
    partition.append(encode_payloads([b"a"] * 3), 3, PLAIN)
    await partition.flush_before(3)
    answer = await partition.fetch(Request(FETCH, b"", {"offset": str(offset)}))
    await partition.close()
    return (answer.fields or {}).get("redirect")


@in_loop_within(HANGING_S)
async def test_a_master_sends_far_readers_to_the_replica_and_a_replica_sends_near_ones_back(tmp_path: Path) -> None:
    assert BrokerSettings().behind_bytes == 64 << 20
    far, near = (
        loaded(tmp_path / name, replica="replica:1", behind_bytes=size) for name, size in (("far", 32), ("near", 33))
    )
    assert (await redirect(far, 0), await redirect(near, 0)) == ("replica:1", None)
    assert await redirect(loaded(tmp_path / "copy", master="master:1"), 3) == "master:1"
