"""Listeners for threads: the handler is called for each message in one of several threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeAlias

from tunnel.messages import DeliveredMessage, GroupConsumer, ListenerConfig, MessageListener, RetryLater
from tunnel.messages.life import Closeable
from tunnel_client.messages.calls import BlockingTable

__all__ = ["BlockingGroupConsumer", "BlockingListener", "BlockingMessageHandler"]

_ORDERED_THREADS = 8  # a listener that keeps the order handles messages of this many partitions at the same time

BlockingMessageHandler: TypeAlias = Callable[[DeliveredMessage], RetryLater | None]
"""Handles a message, in a thread. None means success. RetryLater, and any error, mean another attempt later."""


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
        return BlockingListener(self._table, self.consumer, handler, concurrency)


class BlockingListener(Closeable):
    """A listener that runs. Close it, or use it in `with`; any thread may close it."""

    def __init__(
        self, table: BlockingTable, consumer: GroupConsumer, handler: BlockingMessageHandler, concurrency: int
    ) -> None:
        self._runner = table.runner
        self._pool = ThreadPoolExecutor(concurrency if concurrency > 1 else _ORDERED_THREADS, "tunnel-listener")
        loop = self._runner.loop

        async def start() -> MessageListener:
            listener = consumer.register_message_listener(
                lambda message: loop.run_in_executor(self._pool, handler, message), concurrency=concurrency
            )
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
