"""Listeners for threads: the handler is called for each message in one of several threads."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias

from tunnel.messages import (
    DeliveredMessage,
    GroupConsumer,
    ListenerConfig,
    MessageListener,
    RetryLater,
)
from tunnel.messages.life import Closeable
from tunnel_client.messages.blocking import Blocking, Shown
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingGroupConsumer", "BlockingListHandler", "BlockingListener", "BlockingMessageHandler"]

_ORDERED_THREADS = 8  # a listener that keeps the order handles messages of this many partitions at the same time

BlockingMessageHandler: TypeAlias = Callable[[DeliveredMessage], RetryLater | None]
"""Handles a message, in a thread. None means success. RetryLater, and any error, mean another attempt later."""

BlockingListHandler: TypeAlias = Callable[[Sequence[DeliveredMessage]], RetryLater | None]
"""Handles several messages of a partition, in their order. Its answer holds for all of them."""

_InThread: TypeAlias = Callable[..., Awaitable[RetryLater | None]]
"""Calls a function with arguments, in a thread."""


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
        self.consumer = GroupConsumer(table.inner, address, group, topics, member=member, config=config)

    def register_message_listener(self, handler: BlockingMessageHandler, *, concurrency: int = 1) -> BlockingListener:
        """Join the group, and call `handler` for each message until the listener is closed, as GroupConsumer does.

        With concurrency=1, messages of a partition are handled in order, those of up to 8 partitions at once.
        """

        def make(in_thread: _InThread) -> MessageListener:
            return self.consumer.register_message_listener(partial(in_thread, handler), concurrency=concurrency)

        return BlockingListener(self._table, concurrency, make)

    def register_list_listener(
        self, handler: BlockingListHandler, *, concurrency: int = 1, list_max: int = 32
    ) -> BlockingListener:
        """Join the group, and call `handler` with lists of up to `list_max` messages, as GroupConsumer does."""

        def make(in_thread: _InThread) -> MessageListener:
            handle = partial(in_thread, handler)
            return self.consumer.register_list_listener(handle, concurrency=concurrency, list_max=list_max)

        return BlockingListener(self._table, concurrency, make)


class BlockingListener(Closeable, Blocking[MessageListener]):
    """A listener that runs. Close it, or use it in `with`; any thread may close it.

    `handled` counts the messages that were handled, and `failures` the attempts that failed; `partitions` are the
    topics and partitions that this member has now. `make` returns the listener; its argument runs a handler in a
    thread.
    """

    handled = Shown[MessageListener, int](lambda listener: listener.handled)
    failures = Shown[MessageListener, int](lambda listener: listener.failures)
    partitions = Shown[MessageListener, list[tuple[str, int]]](lambda listener: listener.partitions)

    def __init__(self, table: BlockingTable, concurrency: int, make: Callable[[_InThread], MessageListener]) -> None:
        self.runner = table.runner
        self._pool = ThreadPoolExecutor(concurrency if concurrency > 1 else _ORDERED_THREADS, "tunnel-listener")

        async def start() -> MessageListener:
            listener = make(partial(self.runner.loop.run_in_executor, self._pool))
            listener.start()
            return listener

        try:
            self.inner = self.runner.run(start())
        except BaseException:
            self._pool.shutdown(wait=False)
            raise

    def close(self) -> None:
        """Start no more handlers, store the progress, leave the group, and wait for the handlers that run.

        A handler cannot be stopped. If one succeeds only after the group was left, the next member handles its message
        again.
        """
        self.runner.run(self.inner.close())
        self._pool.shutdown(wait=True, cancel_futures=True)
