"""Listeners: a broker gives a group's members the partitions of its topics, and a handler is called for each message.

A listener asks before there is a message: the broker holds the fetch, and answers it when one comes. A message thus
arrives at once, and those that a slow listener has not fetched yet cost the broker no memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
import structlog

from tunnel.errors import TunnelError
from tunnel.messages.broker.client import BrokerClient
from tunnel.messages.broker.events import note
from tunnel.messages.broker.progress import Progress
from tunnel.messages.broker.protocol import JOIN, LEAVE, NOT_OWNER, UNKNOWN, numbers
from tunnel.messages.channels import ChannelTable
from tunnel.messages.consumer import ConsumedMessage, Consumer
from tunnel.messages.errors import CorruptMessageError, DecompressError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.life import Startable

__all__ = ["DeliveredMessage", "GroupConsumer", "ListenerConfig", "MessageHandler", "MessageListener", "RetryLater"]

_TROUBLE_S = 0.2  # pause after a call that failed; it doubles up to _TROUBLE_MAX_S
_TROUBLE_MAX_S = 5.0
_CALL_S = 10.0
_CLOSE_S = 5.0
_logger = structlog.get_logger("tunnel.broker")


class DeliveredMessage(msgspec.Struct, frozen=True, gc=False):
    """A message as a handler receives it. `attempt` counts from 1 on."""

    topic: str
    partition: int
    offset: int
    max_offset: int
    """The offset after the partition's newest message when this one was fetched."""
    payload: bytes
    attempt: int = 1

    @property
    def lag(self) -> int:
        """The number of messages from this one to the end of the partition: a large one means a backlog."""
        return self.max_offset - self.offset


class RetryLater(msgspec.Struct, frozen=True):
    """The answer of a handler that cannot handle a message yet. Without `delay_s`, the configured delay holds."""

    delay_s: float | None = None


MessageHandler: TypeAlias = Callable[[DeliveredMessage], Awaitable[RetryLater | None] | RetryLater | None]
"""Handles a message. None means success. RetryLater, and any error, mean another attempt later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """When messages are tried again, and how much a listener fetches."""

    retry_s: float = 1.0
    """The delay before the second attempt. It doubles with each further attempt."""
    retry_max_s: float = 60.0
    """The longest of these delays."""
    attempts_max: int = 16
    """After this number of attempts, a message goes to `dead_letter_topic`; without one, attempts go on forever."""
    dead_letter_topic: str = ""
    commit_s: float = 0.2
    """How long a listener collects progress before it stores it at the broker."""
    fetch_bytes: int = 256 * 1024
    ahead_max: int = 1_000
    """Messages of a partition are fetched while fewer than this number of them are fetched and not yet settled."""
    wait_ms: int = 20_000
    """How long the broker holds a fetch when there is no message."""

    def __post_init__(self) -> None:
        if min(self.retry_s, self.retry_max_s, self.commit_s) < 0 or min(self.attempts_max, self.ahead_max) < 1:
            raise ValueError("a listener's times must not be negative, attempts_max and ahead_max must be positive")

    def delay(self, attempt: int) -> float:
        """Return how many seconds after this attempt the next one follows."""
        return min(self.retry_max_s, self.retry_s * 2.0 ** min(attempt - 1, 30))


class GroupConsumer:
    """A member of a group that reads topics of the broker at `address`. Register a listener, and start it.

    The members of a group share the partitions of a topic; each group gets every message. When a member joins or
    leaves, partitions move, and messages whose handling was not confirmed are handled again by the new owner.
    """

    def __init__(
        self,
        table: ChannelTable,
        address: str,
        group: str,
        topics: str | Sequence[str],
        *,
        member: str = "",
        config: ListenerConfig | None = None,
    ) -> None:
        self.client = BrokerClient(table, address)
        self.group = group
        self.topics = [topics] if isinstance(topics, str) else list(topics)
        self.member = member or secrets.token_hex(8)
        self.config = config or ListenerConfig()

    def register_message_listener(self, handler: MessageHandler, *, concurrency: int = 1) -> MessageListener:
        """Return a listener that calls `handler` for each message. Use it in `async with`, or start and close it.

        concurrency=1 keeps the order: the messages of a partition are handled one after the other, and one that is
        tried again later holds back those after it. With more, up to that number of messages are handled at once, in
        any order. Either way the group's position advances only over messages that succeeded, were moved to the
        dead-letter topic, cannot be unpacked, or were removed at the broker before they were fetched.
        """
        return MessageListener(self, handler, concurrency)


class MessageListener(Startable):
    """Handles the messages of a member's partitions until it is closed. `failures` counts attempts that failed."""

    def __init__(self, consumer: GroupConsumer, handler: MessageHandler, concurrency: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: it must be at least 1, which keeps the order")
        self.handled = 0
        self.failures = 0
        self.dead_letters = 0
        self.unreadable = 0  # compressed sets that could not be unpacked
        self.consumer = consumer
        self._handler = handler
        self._is_ordered = concurrency == 1
        self._slots = asyncio.Semaphore(concurrency)
        self._producer = consumer.client.producer()
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._progressed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    # life

    def start(self) -> None:
        """Join the group, and begin to handle messages."""
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(self._belong(topic)) for topic in self.consumer.topics]
        self._tasks.append(loop.create_task(self._commit_now_and_then()))

    async def close(self) -> None:
        """Cancel the handlers that run, store the progress, and leave the group."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for worker in self._workers.values():
            await worker.close()
        with suppress(OSError, TunnelError, TimeoutError):  # the next member then handles some messages again
            async with asyncio.timeout(_CLOSE_S):
                await self._commit()
                for topic in self.consumer.topics:
                    await self.consumer.client.table.call(
                        self.consumer.client.address, LEAVE, b"", self._fields(topic), timeout=_CLOSE_S
                    )

    @property
    def partitions(self) -> list[tuple[str, int]]:
        """The topics and partitions that this member has now."""
        return sorted(self._workers)

    def _fields(self, topic: str) -> dict[str, str]:
        return {"group": self.consumer.group, "topic": topic, "member": self.consumer.member}

    # membership

    async def _belong(self, topic: str) -> None:
        """Be a member of the group for one topic, and follow the changes of who has which partition."""
        client, trouble = self.consumer.client, _TROUBLE_S
        generation, wait_ms = 0, 0
        while True:
            fields = self._fields(topic) | {"generation": str(generation), "wait_ms": str(wait_ms)}
            try:
                response = await client.table.call(client.address, JOIN, b"", fields, timeout=_CALL_S)
            except (OSError, TunnelError) as error:
                if not (isinstance(error, RemoteCallError) and error.code == UNKNOWN):
                    note("listener_waits", topic=topic, group=self.consumer.group, text=str(error))
                generation, wait_ms = 0, 0
                await asyncio.sleep(trouble)
                trouble = min(_TROUBLE_MAX_S, 2 * trouble)
                continue
            trouble, wait_ms = _TROUBLE_S, 3_000
            found = response.fields or {}
            if int(found["generation"]) != generation:
                generation = int(found["generation"])
                await self._assign(
                    topic, dict(zip(numbers(found["partitions"]), numbers(found["offsets"]), strict=True))
                )

    async def _assign(self, topic: str, offsets: dict[int, int]) -> None:
        for place, worker in list(self._workers.items()):
            if place[0] != topic:
                continue
            offset = offsets.get(place[1])
            if offset is None or worker.was_moved(offset):
                del self._workers[place]
                await worker.close()
        for number, offset in offsets.items():
            if (topic, number) not in self._workers:
                self._workers[topic, number] = _Worker(self, topic, number, offset)

    # progress

    def progressed(self) -> None:
        """Note that there is progress to store."""
        self._progressed.set()

    async def _commit_now_and_then(self) -> None:
        while True:
            await self._progressed.wait()
            self._progressed.clear()
            await asyncio.sleep(self.consumer.config.commit_s)
            try:
                await self._commit()
            except (OSError, TunnelError) as error:
                note("position_not_stored", group=self.consumer.group, text=str(error))
                self._progressed.set()
                await asyncio.sleep(_TROUBLE_S)

    async def _commit(self) -> None:
        consumer = self.consumer
        for (topic, number), worker in list(self._workers.items()):
            position = worker.progress.position
            if position <= worker.stored:
                continue
            try:
                await consumer.client.commit(consumer.group, topic, number, position, member=consumer.member)
            except RemoteCallError as error:
                if error.code != NOT_OWNER:
                    raise
                self._progressed.set()  # the broker has started again, or the partition is about to be taken away
                continue
            worker.stored = max(worker.stored, position)

    # handling

    def begin(self, message: DeliveredMessage) -> Awaitable[RetryLater | None] | RetryLater | None:
        """Call the handler, and return None if it has succeeded at once. Pass any other outcome to `settle`."""
        try:
            outcome = self._handler(message)
        except Exception as error:
            return self._failed(message, error)
        if outcome is None:
            self.handled += 1
        return outcome

    async def settle(
        self, message: DeliveredMessage, begun: Awaitable[RetryLater | None] | RetryLater | None = None
    ) -> None:
        """Handle a message until the handler has succeeded, or the message is in the dead-letter topic.

        `begun` is the result of `begin` for the first attempt; without it, this method makes the first attempt, too.
        """
        config = self.consumer.config
        while True:
            delay = await self._attempt(message, begun)
            if delay is None:
                return
            begun = None
            self.failures += 1
            if message.attempt >= config.attempts_max and config.dead_letter_topic and await self._bury(message):
                return
            await asyncio.sleep(delay)
            message = msgspec.structs.replace(message, attempt=message.attempt + 1)

    async def _attempt(
        self, message: DeliveredMessage, begun: Awaitable[RetryLater | None] | RetryLater | None
    ) -> float | None:
        """Make an attempt, or finish the one in `begun`. Return None on success, else the delay before the next."""
        if not self._is_ordered:
            await self._slots.acquire()
        try:
            outcome = self.begin(message) if begun is None else begun
            if outcome is None:
                return None
            if not isinstance(outcome, RetryLater):
                outcome = await outcome
                if outcome is None:
                    self.handled += 1
                    return None
        except Exception as error:
            outcome = self._failed(message, error)
        finally:
            if not self._is_ordered:
                self._slots.release()
        return self.consumer.config.delay(message.attempt) if outcome.delay_s is None else outcome.delay_s

    def _failed(self, message: DeliveredMessage, error: Exception) -> RetryLater:
        _logger.warning(
            "handler_failed",
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            attempt=message.attempt,
            text=f"{type(error).__name__}: {error}",
        )
        return RetryLater()

    async def _bury(self, message: DeliveredMessage) -> bool:
        topic = self.consumer.config.dead_letter_topic
        try:
            await self._producer.send(topic, message.payload)
        except (OSError, TunnelError) as error:
            _logger.warning("not_moved", dead_letter_topic=topic, offset=message.offset, text=str(error))
            return False
        self.dead_letters += 1
        _logger.warning(
            "moved",
            dead_letter_topic=topic,
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            attempts=message.attempt,
        )
        return True

    def start_fetching(self, topic: str, number: int, offset: int) -> Consumer:
        """Return a consumer that fetches a partition of this member from `offset` on."""
        return self.consumer.client.consumer(topic, number, offset, fetch_bytes=self.consumer.config.fetch_bytes)

    @property
    def is_ordered(self) -> bool:
        """Whether the messages of a partition are handled one after the other."""
        return self._is_ordered


class _Worker:
    """Fetches one partition from an offset on, and has its messages handled."""

    def __init__(self, listener: MessageListener, topic: str, number: int, offset: int) -> None:
        self.progress = Progress(offset)
        self.stored = offset  # the position at the broker, as far as is known
        self._listener = listener
        self._config = listener.consumer.config
        self._topic = topic
        self._number = number
        self._consumer = listener.start_fetching(topic, number, offset)
        self._handling: set[asyncio.Task[None]] = set()
        self._task = asyncio.get_running_loop().create_task(self._run())

    def was_moved(self, offset: int) -> bool:
        """Whether the group's position, which is `offset`, was set by a caller and not by this worker's progress."""
        return not self.stored <= offset <= self.progress.position

    async def close(self) -> None:
        """Stop, and cancel the handlers that run."""
        tasks = [self._task, *self._handling]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _run(self) -> None:
        trouble = _TROUBLE_S
        while True:
            while len(self.progress) >= self._config.ahead_max and self._handling:
                await asyncio.wait(self._handling, return_when=asyncio.FIRST_COMPLETED)
            try:
                messages = await self._consumer.fetch(self._config.wait_ms)
            except OffsetOutOfRangeError as error:
                await self._resume(error)
                continue
            except DecompressError as error:
                # The broker does not unpack sets. One that cannot be unpacked must not stop the whole group.
                _logger.error(
                    "unreadable",
                    topic=self._topic,
                    partition=self._number,
                    offset=self._consumer.offset,
                    text=f"{error}; the group goes on after it",
                )
                self._listener.unreadable += 1
                self._consumer.offset += 1
                self.progress.fetched([], self._consumer.offset)
                self._listener.progressed()
                continue
            except CorruptMessageError as error:
                _logger.error("damaged", topic=self._topic, partition=self._number, text=str(error))
                await asyncio.sleep(_TROUBLE_MAX_S)
                continue
            except (OSError, TunnelError) as error:
                note("fetch_failed", topic=self._topic, partition=self._number, text=str(error))
                await asyncio.sleep(trouble)
                trouble = min(_TROUBLE_MAX_S, 2 * trouble)
                continue
            trouble = _TROUBLE_S
            self.progress.fetched(messages, self._consumer.offset)
            await self._handle(messages)
            self._listener.progressed()

    async def _resume(self, error: OffsetOutOfRangeError) -> None:
        """Go on with the oldest message, if retention has removed the next one."""
        _logger.error("messages_missed", topic=self._topic, partition=self._number, text=str(error))
        if error.offset > error.end:
            await asyncio.sleep(_TROUBLE_MAX_S)  # the broker has lost messages; perhaps it is restored from a replica
            return
        self._consumer.offset = error.first
        self.progress.fetched([], error.first)

    async def _handle(self, messages: list[ConsumedMessage]) -> None:
        listener = self._listener
        end = self._consumer.end_offset
        for message in messages:
            delivered = DeliveredMessage(self._topic, self._number, message.offset, end, message.payload)
            if listener.is_ordered:
                begun = listener.begin(delivered)
                if begun is not None:
                    await listener.settle(delivered, begun)
                self.progress.settled(message.offset)
                if message.offset & 0xFF == 0:
                    listener.progressed()  # a long batch is stored in parts
                    await asyncio.sleep(0)  # a handler that never waits would let no other task run
                continue
            while len(self._handling) >= self._config.ahead_max:
                await asyncio.wait(self._handling, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._settle(delivered))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _settle(self, message: DeliveredMessage) -> None:
        await self._listener.settle(message)
        self.progress.settled(message.offset)
        self._listener.progressed()
