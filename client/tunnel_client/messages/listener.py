"""Listeners for threads: the handler is called for each message in one of several threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from tunnel.messages import (
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    MessageListener,
    RetryLater,
)
from tunnel.messages.life import Closeable
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingGroupConsumer", "BlockingListHandler", "BlockingListener", "BlockingMessageHandler"]

_ORDERED_THREADS = 8  # a listener that keeps the order handles messages of this many partitions at the same time

BlockingMessageHandler: TypeAlias = Callable[[DeliveredMessage], RetryLater | None]
"""Handles a message, in a thread. None means success. RetryLater, and any error, mean another attempt later."""

BlockingListHandler: TypeAlias = Callable[[Sequence[DeliveredMessage]], RetryLater | None]
"""Handles several messages of a partition, in their order. Its answer holds for all of them."""

_InThread: TypeAlias = Callable[[Callable[[], RetryLater | None]], Awaitable[RetryLater | None]]


class BlockingGroupConsumer:
    """A member of a group that reads topics of the broker at `address`: a `GroupConsumer` for threads."""

    def __init__(
        self,
        table: BlockingTable,
        address: str,
        group: str,
        topics: str | Sequence[str],
        *,
        member: str = "",
        config: ListenerConfig | None = None,
    ) -> None:
        self._table = table
        self.consumer = GroupConsumer(table.table, address, group, topics, member=member, config=config)

    def register_message_listener(self, handler: BlockingMessageHandler, *, concurrency: int = 1) -> BlockingListener:
        """Join the group, and call `handler` for each message until the listener is closed, as GroupConsumer does.

        With concurrency=1, messages of a partition are handled in order, those of up to 8 partitions at once.
        """
        return BlockingListener(
            self._table,
            concurrency,
            lambda in_thread: self.consumer.register_message_listener(
                lambda message: in_thread(lambda: handler(message)), concurrency=concurrency
            ),
        )

    def register_list_listener(
        self, handler: BlockingListHandler, *, concurrency: int = 1, list_max: int = 32
    ) -> BlockingListener:
        """Join the group, and call `handler` with lists of up to `list_max` messages, as GroupConsumer does."""
        return BlockingListener(
            self._table,
            concurrency,
            lambda in_thread: self.consumer.register_list_listener(
                lambda messages: in_thread(lambda: handler(messages)), concurrency=concurrency, list_max=list_max
            ),
        )


class BlockingListener(Closeable):
    """A listener that runs. Close it, or use it in `with`; any thread may close it.

    `make` returns the listener; what it passes to its argument runs in a thread.
    """

    def __init__(self, table: BlockingTable, concurrency: int, make: Callable[[_InThread], MessageListener]) -> None:
        self._runner = table.runner
        self._pool = ThreadPoolExecutor(concurrency if concurrency > 1 else _ORDERED_THREADS, "tunnel-listener")
        loop = self._runner.loop

        async def start() -> MessageListener:
            listener = make(lambda work: loop.run_in_executor(self._pool, work))
            listener.start()
            return listener

        try:
            self._listener = self._runner.run(start())
        except BaseException:
            self._pool.shutdown(wait=False)
            raise

    @property
    def handled(self) -> int:
        """The number of messages that were handled."""
        return self._listener.handled

    @property
    def failures(self) -> int:
        """The number of attempts that failed."""
        return self._listener.failures

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The topics and partitions that this member has now."""
        return self._listener.partitions

    def close(self) -> None:
        """Start no more handlers, store the progress, leave the group, and wait for the handlers that run.

        A handler cannot be stopped. If one succeeds only after the group was left, the next member handles its message
        again.
        """
        self._runner.run(self._listener.close())
        self._pool.shutdown(wait=True, cancel_futures=True)
