"""A producer with a queue: callers only put items into it, and one task encodes and sends them in batches.

Items that cannot be sent are always reported: the callback handler gets them with the error, and `flush` and `close`
raise a MessageError.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tunnel.ground.printable import counted
from tunnel.messages.errors import DiscardedError, MessageError, ProducerClosedError
from tunnel.messages.life import Startable
from tunnel.messages.sets.message import check_size
from tunnel.messages.topics.producers import Producer

__all__ = [
    "AsyncProducer",
    "AsyncProducerConfig",
    "CallbackHandler",
    "DefaultEventHandler",
    "EventHandler",
    "QueueItem",
]


_YIELD_ITEMS = 1_000  # about 2 ms


class QueueItem(msgspec.Struct, gc=False):
    """A value that waits to be sent."""

    topic: str
    value: Any
    partition: int = 0


class AsyncProducerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When items are sent, and what happens when the queue is full. The default sizes are those of Kafka 0.7."""

    queue_max: int = 10_000
    """The largest number of items in the queue."""
    batch_max: int = 200
    """The largest number of items in a batch."""
    linger_s: float = 0.1
    """How long the sender waits for more items if they do not fill a batch yet."""
    enqueue_timeout_ms: int = 0
    """When the queue is full: 0 refuses at once, a negative value waits, a positive one waits that time at most."""

    def __post_init__(self) -> None:
        if not 0 < self.batch_max <= self.queue_max or self.linger_s < 0:
            raise ValueError(
                f"batch_max {self.batch_max}, queue_max {self.queue_max}, linger_s {self.linger_s}: "
                "0 < batch_max <= queue_max and linger_s >= 0 must hold"
            )


class EventHandler(Protocol):
    """Sends the batches. It runs in the sender's task, so the next batch waits until `handle` returns."""

    async def handle(self, items: Sequence[QueueItem], producer: Producer) -> Sequence[tuple[QueueItem, Exception]]:
        """Send these items. Return those that cannot be sent, each with its error; raise if none could be sent."""


class CallbackHandler:
    """Callbacks for the life of an item; these do nothing. An override must be short and must not raise."""

    def enqueue(self, item: QueueItem, *, added: bool) -> None:
        """Called after `send` or `offer` has put the item into the queue, or refused it."""

    def dequeue(self, items: Sequence[QueueItem]) -> None:
        """Called after a batch was taken out of the queue."""

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """Called before a batch is sent. Return the items to send in its place."""
        return items

    def result(self, items: Sequence[QueueItem], error: Exception | None) -> None:
        """Called after items were sent, or could not be sent because of `error`."""

    def close(self) -> None:
        """Called last, when the producer has closed."""


class DefaultEventHandler:
    """Encodes the items, groups them by topic and partition, and sends each batch as one request or multi-request."""

    async def handle(self, items: Sequence[QueueItem], producer: Producer) -> Sequence[tuple[QueueItem, Exception]]:
        groups: dict[tuple[str, int], list[bytes]] = {}
        group: list[bytes] = []
        topic, partition = None, 0  # of the group: most items belong to the same one as the previous item
        failed: list[tuple[QueueItem, Exception]] = []
        encode = producer.encoder.encode
        size_max = producer.message_bytes_max
        for item in items:
            try:
                payload = encode(item.value)
                if len(payload) > size_max:
                    check_size(payload, size_max)
            except Exception as error:
                failed.append((item, error))
                continue
            if item.topic != topic or item.partition != partition:
                topic, partition = item.topic, item.partition
                group = groups.setdefault((topic, partition), [])
            group.append(payload)
        requests = [producer.request(*place, payloads) for place, payloads in groups.items()]
        try:
            await producer.send_requests(requests)
        except DiscardedError as error:
            lost = {place for place, offset in zip(groups, error.offsets, strict=True) if offset is None}
            sent_not = {id(item) for item, _ in failed}
            for item in items:
                if (item.topic, item.partition) in lost and id(item) not in sent_not:
                    failed.append((item, error))
        return failed


class AsyncProducer(Startable):
    """A bounded queue and one sender task. Use it as an async context manager, or `start` and `close` it."""

    def __init__(
        self,
        producer: Producer,
        config: AsyncProducerConfig | None = None,
        *,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
    ) -> None:
        self.failed = 0  # number of items that could not be sent
        self._producer = producer
        self._config = config or AsyncProducerConfig()
        self._event_handler = event_handler or DefaultEventHandler()
        self._callbacks = callback_handler
        self._queue_max = self._config.queue_max
        self._batch_max = self._config.batch_max
        self._queue: deque[QueueItem] = deque()
        self._wake = asyncio.Event()
        self._room: deque[asyncio.Future[None]] = deque()
        self._enqueued = self._done = self._flush_to = 0
        self._flushes: deque[tuple[int, asyncio.Future[None]]] = deque()
        self._error: Exception | None = None
        self._closing = False
        self._task: asyncio.Task[None] | None = None
        self._expect_use()

    # life

    def start(self) -> None:
        """Start the task that sends."""
        self._mark_used()
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Accept no more items, send those in the queue, and raise MessageError if any item could not be sent."""
        self._mark_used()
        if not self._closing:
            self._closing = True
            self._wake.set()
            self._let_in()
            await (self._task or self._run())
            if self._callbacks is not None:
                self._callbacks.close()
        self._raise_error()

    @property
    def items_queued(self) -> int:
        """The number of items in the queue."""
        return len(self._queue)

    # taking items

    def offer(self, topic: str, value: Any, partition: int = 0) -> bool:
        """Put a value into the queue; return False if the queue is full. Never waits."""
        if self._closing:
            raise ProducerClosedError("the producer is closed: create a new one to send more")
        item = QueueItem(topic, value, partition)
        if len(self._queue) >= self._queue_max:
            if self._callbacks is not None:
                self._callbacks.enqueue(item, added=False)
            return False
        self._put(item)
        return True

    async def send(self, topic: str, value: Any, partition: int = 0) -> bool:
        """Put a value into the queue; if it is full, wait for room as `enqueue_timeout_ms` says.

        Return False if there was no room in time. An accepted value is sent, or its failure is reported.
        """
        timeout_ms = self._config.enqueue_timeout_ms
        if timeout_ms == 0 or len(self._queue) < self._queue_max:
            return self.offer(topic, value, partition)
        try:
            async with asyncio.timeout(None if timeout_ms < 0 else timeout_ms / 1000):
                while len(self._queue) >= self._queue_max and not self._closing:
                    waiter = asyncio.get_running_loop().create_future()
                    self._room.append(waiter)
                    try:
                        await waiter
                    except asyncio.CancelledError:
                        self._let_in()  # pass on the place in the queue, if this waiter had been given one
                        raise
        except TimeoutError:
            pass
        return self.offer(topic, value, partition)

    def _put(self, item: QueueItem) -> None:
        queue = self._queue
        queue.append(item)
        self._enqueued += 1
        if len(queue) == 1 or len(queue) == self._batch_max:
            self._wake.set()
        if self._callbacks is not None:
            self._callbacks.enqueue(item, added=True)

    def _let_in(self) -> None:
        """Wake as many waiting senders as the queue has room for, or all of them when closing."""
        places = len(self._room) if self._closing else self._queue_max - len(self._queue)
        while self._room and places > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                places -= 1

    # sending

    async def flush(self) -> None:
        """Wait until every item queued so far was sent or has failed. Raise MessageError if any has failed."""
        if self._done < self._enqueued:
            self._flush_to = self._enqueued
            waiter = asyncio.get_running_loop().create_future()
            self._flushes.append((self._enqueued, waiter))
            self._wake.set()
            await waiter
        self._raise_error()

    def _raise_error(self) -> None:
        error, self._error = self._error, None
        if error is not None:
            raise MessageError(f"{counted(self.failed, 'message')} so far could not be sent: {error}") from error

    async def _run(self) -> None:
        passed = 0  # items sent since other tasks could last run
        while True:
            if not self._queue:
                if self._closing:
                    return
                await self._woken(None)
                continue
            if len(self._queue) < self._batch_max and not self._closing and self._done >= self._flush_to:
                await self._linger()
            items: Sequence[QueueItem] = self._take()
            count = len(items)
            if self._callbacks is not None:
                self._callbacks.dequeue(items)
                items = self._callbacks.send(items)
            await self._send(items)
            self._done += count
            while self._flushes and self._flushes[0][0] <= self._done:
                waiter = self._flushes.popleft()[1]
                if not waiter.done():
                    waiter.set_result(None)
            passed += count
            if passed >= _YIELD_ITEMS:
                # While the stream has room, nothing above yields to other tasks. This does not yield after each batch,
                # because batches without a turn of the event loop between them share the packets of a tunnel.
                passed = 0
                await asyncio.sleep(0)

    async def _woken(self, seconds: float | None) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _linger(self) -> None:
        """Wait until the batch is full, `linger_s` has passed, or `flush` or `close` is called."""
        if self._config.linger_s:
            await self._woken(self._config.linger_s)

    def _take(self) -> list[QueueItem]:
        queue = self._queue
        if len(queue) <= self._batch_max:
            items = list(queue)
            queue.clear()
        else:
            popleft = queue.popleft
            items = [popleft() for _ in range(self._batch_max)]
        if self._room:
            self._let_in()
        return items

    async def _send(self, items: Sequence[QueueItem]) -> None:
        try:
            failed = await self._event_handler.handle(items, self._producer)
        except Exception as error:
            self._failed(items, error)
            return
        for item, its_error in failed:
            self._failed([item], its_error)
        if self._callbacks is not None:
            lost = {id(item) for item, _ in failed}
            self._callbacks.result([item for item in items if id(item) not in lost], None)

    def _failed(self, items: Sequence[QueueItem], error: Exception) -> None:
        self.failed += len(items)
        if self._error is None:
            self._error = error
        if self._callbacks is not None:
            self._callbacks.result(items, error)
