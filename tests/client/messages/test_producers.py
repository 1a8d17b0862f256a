"""Producers for threads: their messages arrive whole and in order, and closing wakes the threads that wait."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.client.messages.rig import DEADLINE_S, Pair, ends
from tests.client.sockets_rig import beside
from tunnel.messages import (
    AsyncProducerConfig,
    ChannelClosedError,
    Codec,
    MessageError,
    MessageTooLargeError,
    ProducerClosedError,
    ProducerData,
    StringEncoder,
)
from tunnel.messages.topics.requests import ProduceDecoder
from tunnel_client.messages import BlockingProducer, BlockingQueueProducer

__all__ = ["ends"]

Got = list[tuple[str, int, str]]


@contextmanager
def broker(sock: socket.socket) -> Iterator[Got]:
    """Take produce requests in another thread until the stream ends; then the list has all their messages."""
    got: Got = []

    def take() -> None:
        decoder = ProduceDecoder()
        while data := sock.recv(65536):
            for requests in decoder.feed(data):
                for request in requests:
                    got.extend(
                        (request.topic, request.partition, each.decode()) for each in request.messages.payloads()
                    )
        assert decoder.is_between_requests

    with beside(take):
        yield got


def send_for_ever(producer: BlockingProducer) -> None:
    while True:
        producer.send("topic", *[bytes(900_000)] * 10)


def offer_for_ever(producer: BlockingQueueProducer) -> None:
    while True:
        producer.offer("topic", b"message")
        producer.flush()


def test_threads_share_a_producer_and_every_message_arrives_whole_and_in_the_order_of_its_thread(ends: Pair) -> None:
    near, far = ends
    with broker(far) as got, BlockingProducer(near, encoder=StringEncoder(), codec=Codec.GZIP) as producer:

        def send(thread: int) -> None:
            for number in range(50):
                producer.send(f"topic {thread}", str(number), "x" * 2000, partition=thread)

        with ThreadPoolExecutor(8) as threads:
            list(threads.map(send, range(8)))
    for thread in range(8):
        mine = [text for topic, partition, text in got if (topic, partition) == (f"topic {thread}", thread)]
        assert mine == [text for number in range(50) for text in (str(number), "x" * 2000)]


def test_several_partitions_share_a_request_and_one_message_that_is_too_large_stops_all_of_it(ends: Pair) -> None:
    near, far = ends
    with broker(far) as got, BlockingProducer(near, encoder=StringEncoder(), message_bytes_max=10) as producer:
        producer.send_data(ProducerData("a", ["one"]), ProducerData("b", ["two"], 7))
        with pytest.raises(MessageTooLargeError):
            producer.send_data(ProducerData("a", ["fine"]), ProducerData("b", ["far too large"]))
        producer.send("a", "three")
    assert got == [("a", 0, "one"), ("b", 7, "two"), ("a", 0, "three")]


def test_a_send_that_times_out_closes_the_producer_because_a_part_of_it_may_have_left(ends: Pair) -> None:
    near, _ = ends
    near.settimeout(0.2)
    with BlockingProducer(near) as producer:
        with pytest.raises(TimeoutError):
            send_for_ever(producer)
        with pytest.raises(ChannelClosedError, match="a send has failed"):
            producer.send("topic", b"next")


def test_closing_wakes_a_thread_that_waits_for_a_peer_that_does_not_read(ends: Pair) -> None:
    near, _ = ends
    near.settimeout(None)
    producer = BlockingProducer(near)
    sending = threading.Event()

    def send() -> None:
        sending.set()
        with pytest.raises(ChannelClosedError):
            send_for_ever(producer)

    with beside(send):
        assert sending.wait(DEADLINE_S)
        producer.close()
    producer.close()
    with pytest.raises(ChannelClosedError, match="the producer is closed"):
        producer.send("topic", b"late")


def test_a_queue_sends_the_messages_of_many_threads_before_it_closes(ends: Pair) -> None:
    near, far = ends
    config = AsyncProducerConfig(queue_max=50, batch_max=20, linger_s=0.01, enqueue_timeout_ms=-1)
    with broker(far) as got:
        with BlockingQueueProducer(near, config, encoder=StringEncoder()) as producer:

            def put(thread: int) -> None:
                for number in range(100):
                    assert producer.send("topic", str(number), thread)

            with ThreadPoolExecutor(4) as threads:
                list(threads.map(put, range(4)))
            producer.flush()
            assert (producer.queued, producer.failed) == (0, 0)
        with pytest.raises(ProducerClosedError):
            producer.offer("topic", "late")
    for thread in range(4):
        assert [text for _, partition, text in got if partition == thread] == [str(number) for number in range(100)]


def test_a_message_that_could_not_be_sent_is_an_error_of_a_later_call() -> None:
    near, far = socket.socketpair()
    producer = BlockingQueueProducer(near, AsyncProducerConfig(queue_max=1, batch_max=1, linger_s=60.0))
    far.close()
    with pytest.raises(MessageError, match="could not be sent"):
        offer_for_ever(producer)
    assert producer.failed
    producer.close()
