"""A consumer for threads, which reads a broker's log by offset."""

from __future__ import annotations

import threading
from collections.abc import Callable

from tunnel.messages import ConsumedMessage, Consumer
from tunnel.messages.broker import BEHIND_MESSAGES
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingConsumer"]


class BlockingConsumer:
    """Reads the log of the broker at `address`, or of a replica while that broker redirects the consumer to one.

    Threads that share a consumer take turns, and no two get the same message. Store `offset` together with your own
    data: a consumer that starts from it then processes every message exactly once. `topic` and `partition` are for a
    broker with topics. `on_lag(lag)` is called in the fetching thread, after each fetch that leaves more than `lag_max`
    messages before the end of the log.
    """

    def __init__(
        self,
        table: BlockingTable,
        address: str,
        offset: int = 0,
        *,
        fetch_bytes: int = 1024 * 1024,
        lag_max: int = BEHIND_MESSAGES,
        on_lag: Callable[[int], None] | None = None,
        topic: str = "",
        partition: int = 0,
    ) -> None:
        self._table = table
        self._lag_max = lag_max
        self._on_lag = on_lag
        self._fetching = threading.Lock()
        self._consumer = Consumer(
            table.table,
            address,
            offset,
            fetch_bytes=fetch_bytes,
            lag_max=lag_max,
            topic=topic,
            partition=partition,
        )

    @property
    def offset(self) -> int:
        """The offset of the next message."""
        return self._consumer.offset

    @property
    def lag(self) -> int:
        """The number of messages between `offset` and the end of the log, at the last fetch."""
        return self._consumer.lag

    @property
    def address(self) -> str:
        """Where the next fetch goes: the broker, or its replica."""
        return self._consumer.address

    def fetch(self, wait_ms: int = 1000) -> list[ConsumedMessage]:
        """Return the next messages; none if none came within `wait_ms` milliseconds.

        Raises OffsetOutOfRangeError if the log no longer has the next message, and ChannelClosedError if another
        thread closes the table. A fetch that fails does not move `offset`: call again.
        """
        with self._fetching:
            messages = self._table.runner.run(self._consumer.fetch(wait_ms))
            lag = self._consumer.lag
        if self._on_lag is not None and lag > self._lag_max:
            self._on_lag(lag)
        return messages
