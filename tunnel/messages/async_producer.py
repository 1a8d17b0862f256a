"""A producer that queues: callers pay for putting an item into a queue, one task encodes and sends in batches.

What cannot be sent is never lost in silence: the callback handler gets the items with the error, and `flush` and
`close` raise it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from tunnel.messages.errors import MessageError, ProducerClosedError
from tunnel.messages.life import Startable
from tunnel.messages.message import check_size
from tunnel.messages.producers import SyncProducer

__all__ = [
    "AsyncProducer",
    "AsyncProducerConfig",
    "CallbackHandler",
    "DefaultEventHandler",
    "EventHandler",
    "QueueItem",
]


class QueueItem(msgspec.Struct, gc=False):
    """One value on its way."""

    topic: str
    value: Any
    partition: int = 0


class AsyncProducerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """When items leave, and what happens when the queue is full. The sizes are those of Kafka 0.7."""

    queue_max: int = 10_000
    """Items that wait at most."""
    batch_max: int = 200
    """Items of one batch."""
    linger_s: float = 0.1
    """How long the first item of a batch waits for company."""
    enqueue_timeout_ms: int = 0
    """When the queue is full: 0 refuses at once, less than 0 waits, more waits that many milliseconds, then refuses."""

    def __post_init__(self) -> None:
        if not 0 < self.batch_max <= self.queue_max or self.linger_s < 0:
            raise ValueError("0 < batch_max <= queue_max and linger_s >= 0 must hold")


class EventHandler(Protocol):
    """What becomes of a batch. Runs in the sender's task: the next batch waits for it."""

    async def handle(self, items: Sequence[QueueItem], producer: SyncProducer) -> Sequence[tuple[QueueItem, Exception]]:
        """Send them; return those that cannot be sent by themselves. Raise if none could be sent."""


class CallbackHandler:
    """Is told what happens to items; does nothing. Override what you need, keep it short, and do not raise."""

    def enqueue(self, item: QueueItem, *, added: bool) -> None:
        """`send` or `offer` has put it into the queue, or refused it."""

    def dequeue(self, items: Sequence[QueueItem]) -> None:
        """A batch was taken out of the queue."""

    def send(self, items: Sequence[QueueItem]) -> Sequence[QueueItem]:
        """It is about to be sent: these are sent instead."""
        return items

    def result(self, items: Sequence[QueueItem], error: Exception | None) -> None:
        """These were sent, or were not, with this error."""

    def close(self) -> None:
        """Nothing follows."""


class DefaultEventHandler:
    """Encodes, groups by topic and partition, and sends each batch as one request, or one multi-request."""

    async def handle(self, items: Sequence[QueueItem], producer: SyncProducer) -> Sequence[tuple[QueueItem, Exception]]:
        groups: dict[tuple[str, int], list[bytes]] = {}
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
            key = (item.topic, item.partition)
            group = groups.get(key)
            if group is None:
                groups[key] = [payload]
            else:
                group.append(payload)
        requests = [producer.request(topic, partition, payloads) for (topic, partition), payloads in groups.items()]
        await producer.send_requests(requests)
        return failed


class AsyncProducer(Startable):
    """A bounded queue and one sender task. Use it as an async context manager, or `start` and `close` it."""

    def __init__(
        self,
        producer: SyncProducer,
        config: AsyncProducerConfig | None = None,
        *,
        event_handler: EventHandler | None = None,
        callback_handler: CallbackHandler | None = None,
    ) -> None:
        self.failed = 0  # items
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

    # life

    def start(self) -> None:
        """Begin to send."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def close(self) -> None:
        """Take nothing more, send everything that was taken, and raise if any of it could not be sent."""
        if not self._closing:
            self._closing = True
            self._wake.set()
            self._let_in()
            await (self._task or self._run())
            if self._callbacks is not None:
                self._callbacks.close()
        self._raise_error()

    @property
    def queued(self) -> int:
        """Items that wait."""
        return len(self._queue)

    # taking items

    def offer(self, topic: str, value: Any, partition: int = 0) -> bool:
        """Put it into the queue, or refuse it with False when that is full. Never waits."""
        if self._closing:
            raise ProducerClosedError("the producer is closed")
        item = QueueItem(topic, value, partition)
        if len(self._queue) >= self._queue_max:
            if self._callbacks is not None:
                self._callbacks.enqueue(item, added=False)
            return False
        self._put(item)
        return True

    async def send(self, topic: str, value: Any, partition: int = 0) -> bool:
        """As `offer`, but a full queue is waited for as `enqueue_timeout_ms` says. What gets True is sent."""
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
                        self._let_in()  # the place that was given to it, if it was
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
        """Wake as many as there is room for."""
        places = len(self._room) if self._closing else self._queue_max - len(self._queue)
        while self._room and places > 0:
            waiter = self._room.popleft()
            if not waiter.done():
                waiter.set_result(None)
                places -= 1

    # sending

    async def flush(self) -> None:
        """Return when everything taken so far was sent; raise if any of it could not be."""
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
            raise MessageError(f"{self.failed} messages so far could not be sent: {error}") from error

    async def _run(self) -> None:
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
            await asyncio.sleep(0)  # a stream with room never lets others run

    async def _woken(self, seconds: float | None) -> None:
        self._wake.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass

    async def _linger(self) -> None:
        """Until the batch is full, or its first item has waited long enough, or somebody flushes."""
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
