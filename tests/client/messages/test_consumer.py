"""A consumer that several threads share: each message is fetched once, and closing the channels ends a wait."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AbstractContextManager, asynccontextmanager
from pathlib import Path

import pytest

from tests.client.messages.rig import serving, table
from tests.client.sockets_rig import beside
from tunnel.messages import (
    BrokerSettings,
    ChannelClosedError,
    ConsumedMessage,
    Log,
    LogConfig,
    OffsetOutOfRangeError,
    StoredPartition,
    serve_calls,
)
from tunnel_client import Runtime
from tunnel_client.messages import BlockingConsumer


@asynccontextmanager
async def stored(place: Path) -> AsyncIterator[tuple[Log, str]]:
    """Serve a log at the yielded address."""
    async with StoredPartition(place, BrokerSettings(log=LogConfig(flush_s=0.0))) as partition:
        server = await asyncio.start_server(serve_calls(partition.handlers), "127.0.0.1", 0)
        yield partition.log, "{}:{}".format(*server.sockets[0].getsockname())
        server.close()


def broker(place: Path) -> AbstractContextManager[tuple[Log, str]]:
    return serving(stored(place))


def test_threads_take_turns_and_fetch_every_message_once(tmp_path: Path, runtime: Runtime) -> None:
    lags: list[int] = []
    got: list[list[ConsumedMessage]] = []
    with broker(tmp_path) as (log, address), table(runtime) as channels:
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
    with broker(tmp_path) as (log, address), table(runtime) as channels:
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


def test_what_is_shown_of_a_consumer_cannot_be_set() -> None:
    shown = BlockingConsumer.__dict__["offset"]
    with pytest.raises(AttributeError, match="can only be read"):
        shown.__set__(None, 9)
