"""A listener and a producer for threads, with a broker in another thread."""

from __future__ import annotations

import socket
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.client.messages.rig import DEADLINE_S, serving, table
from tests.client.sockets_rig import beside
from tunnel.messages import (
    Broker,
    DeliveredMessage,
    DiscardedError,
    ListenerConfig,
    ProducerData,
    RemoteCallError,
    RetryLater,
    TopicSpec,
)
from tunnel_client import Runtime
from tunnel_client.messages import (
    BlockingBrokerProducer,
    BlockingConsumer,
    BlockingGroupConsumer,
    BlockingProducer,
)

QUICK = ListenerConfig(retry_s=0.0, commit_s=0.0)


@asynccontextmanager
async def listening(place: Path) -> AsyncIterator[str]:
    """A broker at the yielded address, with a topic `t` of two partitions."""
    full = TopicSpec(storage="memory", policy="newest", messages_max=1)
    async with Broker(place, topics={"t": TopicSpec(partitions=2), "full": full}) as found:
        yield await found.listen("127.0.0.1", 0)


def broker(place: Path) -> AbstractContextManager[str]:
    return serving(listening(place))


def test_a_handler_runs_in_threads_and_the_position_follows(runtime: Runtime, tmp_path: Path) -> None:
    with broker(tmp_path) as address, table(runtime) as near:
        producer = BlockingBrokerProducer(near, address)
        assert producer.send("t", b"a", b"b", partition=1).offset == 0
        assert len(producer.send_data(ProducerData("t", [b"c"], 0), ProducerData("t", [b"d"], 1))) == 2
        with pytest.raises(RemoteCallError):
            producer.send("t", b"x", partition=2)
        assert [each.payload for each in BlockingConsumer(near, address, topic="t", partition=1).fetch()][:2] == [
            b"a",
            b"b",
        ]
        done, found, threads = threading.Event(), list[DeliveredMessage](), set[int]()

        def handle(message: DeliveredMessage) -> RetryLater | None:
            threads.add(threading.get_ident())
            if message.payload == b"b" and message.attempt == 1:
                return RetryLater(0.0)
            found.append(message)
            if len(found) == 4:
                done.set()
            return None

        consumer = BlockingGroupConsumer(near, address, "billing", "t", config=QUICK)
        with consumer.register_message_listener(handle) as listener:
            assert done.wait(DEADLINE_S)
            assert listener.partitions == [("t", 0), ("t", 1)]
        assert (listener.handled, listener.failures) == (4, 1)
        assert threading.get_ident() not in threads
        assert [each.payload for each in found if each.partition == 1] == [b"a", b"b", b"d"]
        assert [each.offset for each in near.runner.run(consumer.consumer.client.positions())] == [1, 3]


def test_as_many_handlers_run_at_once_as_the_concurrency_says_and_closing_waits_for_them(
    runtime: Runtime, tmp_path: Path
) -> None:
    with broker(tmp_path) as address, table(runtime) as near:
        BlockingBrokerProducer(near, address).send("t", *(b"%d" % number for number in range(3)), partition=0)
        meeting = threading.Barrier(3 + 1)  # the handlers, and this thread
        may_end = threading.Event()
        met: list[int] = []

        def handle(message: DeliveredMessage) -> None:
            meeting.wait(DEADLINE_S)
            assert may_end.wait(DEADLINE_S)
            met.append(message.offset)

        consumer = BlockingGroupConsumer(near, address, "billing", "t", config=QUICK)
        listener = consumer.register_message_listener(handle, concurrency=3)
        meeting.wait(DEADLINE_S)
        at_end: list[int] = []

        def close() -> None:
            listener.close()
            at_end.extend(met)

        with beside(close):
            while not listener._pool._shutdown:  # closing has left the group, and waits for the handlers now
                threading.Event().wait(0.01)
            assert met == []
            may_end.set()
        assert sorted(at_end) == [0, 1, 2]
        with pytest.raises(ValueError, match="concurrency"):
            consumer.register_message_listener(handle, concurrency=0)


def test_a_handler_gets_lists_in_threads(runtime: Runtime, tmp_path: Path) -> None:
    found: list[list[bytes]] = []
    all_came = threading.Event()

    def handle(messages: Sequence[DeliveredMessage]) -> None:
        found.append([each.payload for each in messages])
        if sum(map(len, found)) == 5:
            all_came.set()

    with broker(tmp_path) as address, table(runtime) as near:
        BlockingBrokerProducer(near, address).send("t", *(b"%d" % number for number in range(5)), partition=0)
        consumer = BlockingGroupConsumer(near, address, "billing", "t", config=QUICK)
        with consumer.register_list_listener(handle, list_max=3) as listener:
            assert all_came.wait(DEADLINE_S)
        assert listener.handled == 5
    assert found == [[b"0", b"1", b"2"], [b"3", b"4"]]


def test_producers_for_threads_learn_that_a_send_was_discarded(runtime: Runtime, tmp_path: Path) -> None:
    with broker(tmp_path) as address, table(runtime) as near:
        producer = BlockingBrokerProducer(near, address)
        producer.send("full", b"a")
        with pytest.raises(DiscardedError, match="full is full"):
            producer.send("full", b"b")
        with pytest.raises(DiscardedError) as caught:
            producer.send_data(ProducerData("full", [b"b"]), ProducerData("t", [b"c"]))
        assert caught.value.offsets == [None, 0]
        host, _, port = address.partition(":")
        sock = socket.create_connection((host, int(port)), DEADLINE_S)
        with BlockingProducer(sock) as plain:
            plain.send("full", b"b")
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
