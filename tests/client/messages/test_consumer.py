"""A consumer that several threads share: each message is fetched once, and closing the channels ends a wait."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.client.messages.rig import DEADLINE_S, runtime
from tests.client.sockets_rig import beside
from tunnel.messages import (
    ChannelClosedError,
    ConsumedMessage,
    Log,
    LogBroker,
    LogConfig,
    OffsetOutOfRangeError,
    serve_calls,
)
from tunnel_client import Runtime, create_connection
from tunnel_client.messages import BlockingConsumer, BlockingTable

__all__ = ["runtime"]


@contextmanager
def broker(log: Log) -> Iterator[str]:
    """Serve a log at the yielded address, in a loop of another thread."""
    ready, done = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        server = await asyncio.start_server(serve_calls(LogBroker(log).handlers), "127.0.0.1", 0)
        address.append("{}:{}".format(*server.sockets[0].getsockname()))
        ready.set()
        await asyncio.to_thread(done.wait, DEADLINE_S)
        server.close()

    with beside(lambda: asyncio.run(serve())):
        assert ready.wait(DEADLINE_S)
        try:
            yield address[0]
        finally:
            done.set()


@contextmanager
def table(runtime: Runtime) -> Iterator[BlockingTable]:
    def connect(address: str) -> socket.socket:
        host, _, port = address.partition(":")
        return create_connection((host, int(port)), DEADLINE_S, runtime=runtime)

    with BlockingTable(connect, connect_timeout=DEADLINE_S) as found:
        yield found


def test_threads_take_turns_and_fetch_every_message_once(tmp_path: Path, runtime: Runtime) -> None:
    lags: list[int] = []
    got: list[list[ConsumedMessage]] = []
    with (
        Log.open(tmp_path, LogConfig(flush_s=0.0)) as log,
        broker(log) as address,
        table(runtime) as channels,
    ):
        log.append([str(number).encode() for number in range(500)])
        log.flush()
        consumer = BlockingConsumer(channels, address, 100, fetch_bytes=1000, lag_max=50, on_lag=lags.append)

        def fetch() -> None:
            while messages := consumer.fetch(wait_ms=0):
                got.append(messages)

        with beside(fetch), beside(fetch), beside(fetch):
            pass
        assert (consumer.offset, consumer.lag, consumer.address) == (500, 0, address)
    every = sorted((message.offset, message.payload) for messages in got for message in messages)
    assert every == [(number, str(number).encode()) for number in range(100, 500)]
    assert all(lag > 50 for lag in lags)
    assert lags


def test_a_fetch_waits_for_messages_and_closing_the_table_ends_the_wait(tmp_path: Path, runtime: Runtime) -> None:
    with Log.open(tmp_path, LogConfig(flush_s=0.0)) as log, broker(log) as address, table(runtime) as channels:
        consumer = BlockingConsumer(channels, address)
        log.append([b"first"])
        assert [message.payload for message in consumer.fetch(wait_ms=30_000)] == [b"first"]
        with pytest.raises(OffsetOutOfRangeError):
            BlockingConsumer(channels, address, 9).fetch(wait_ms=0)

        def wait() -> None:
            with pytest.raises(ChannelClosedError):
                consumer.fetch(wait_ms=30_000)

        with beside(wait):
            channels.close()
