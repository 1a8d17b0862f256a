"""A consumer for threads, which reads a broker's log by offset."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from tunnel.messages import ConsumedMessage, Consumer
from tunnel.messages.broker.settings import BEHIND_MESSAGES
from tunnel_client.messages.blocking import Blocking, Shown
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingConsumer"]


class BlockingConsumer(Blocking[Consumer]):
    """Reads the log of the broker at `address`, or of a replica while that broker redirects the consumer to one.

    Threads that share a consumer take turns, and no two get the same message. Store `offset` together with your own
    data: a consumer that starts from it then processes every message exactly once. `topic` and `partition` are for a
    broker with topics. `on_lag(lag)` is called in the fetching thread, after each fetch that leaves more than `lag_max`
    messages before the end of the log. `offset` is that of the next message; `lag`, the number of messages from there
    to the end of the log at the last fetch; and `address`, where the next fetch goes. `options` are those of Consumer.
    """

    offset = Shown[Consumer, int](lambda consumer: consumer.offset)
    lag = Shown[Consumer, int](lambda consumer: consumer.lag)
    address = Shown[Consumer, str](lambda consumer: consumer.address)

    def __init__(
        self,
        table: BlockingTable,
        address: str,
        offset: int = 0,
        *,
        lag_max: int = BEHIND_MESSAGES,
        on_lag: Callable[[int], None] | None = None,
        **options: Any,
    ) -> None:
        self.runner = table.runner
        self.inner = Consumer(table.inner, address, offset, lag_max=lag_max, **options)
        self._lag_max = lag_max
        self._on_lag = on_lag
        self._fetching = threading.Lock()

    def fetch(self, wait_ms: int = 1000) -> list[ConsumedMessage]:
        """Return the next messages; none if none came within `wait_ms` milliseconds.

        Raises OffsetOutOfRangeError if the log no longer has the next message, and ChannelClosedError if another
        thread closes the table. A fetch that fails does not move `offset`: call again.
        """
        with self._fetching:
            messages = self.runner.run(self.inner.fetch(wait_ms))
            lag = self.lag
        if self._on_lag is not None and lag > self._lag_max:
            self._on_lag(lag)
        return messages
