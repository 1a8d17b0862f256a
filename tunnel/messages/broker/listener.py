"""Listeners: a broker gives a group's members the partitions of its topics, and a handler is called for each message.

A listener asks before there is a message: the broker holds the fetch, and answers it when one comes. A message thus
arrives at once, and those that a slow listener has not fetched yet cost the broker no memory.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import suppress

import msgspec
import structlog

from tunnel.errors import TunnelError
from tunnel.ground.printable import counted
from tunnel.messages.broker.client import BrokerClient
from tunnel.messages.broker.delivery import DeliveredMessage, ListenerConfig, ListHandler, MessageHandler, RetryLater
from tunnel.messages.broker.events import note
from tunnel.messages.broker.progress import Progress
from tunnel.messages.broker.protocol import JOIN, LEAVE, NOT_OWNER, UNKNOWN, numbers
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import CorruptMessageError, DecompressError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.life import Startable
from tunnel.messages.topics.consumer import ConsumedMessage, Consumer

__all__ = ["GroupConsumer", "MessageListener"]

_TROUBLE_S = 0.2  # pause after a call that failed; it doubles up to _TROUBLE_MAX_S
_TROUBLE_MAX_S = 5.0
_CALL_S = 10.0
_CLOSE_S = 5.0
_HEARTBEAT_MS = 1_000  # the longest wait for a change in the group; each answer has the ends of the partitions, too
_LIST_MAX = 32
_PASSED_MAX = 256  # messages that an ordered listener handles before it lets other tasks run
_LARGE_SETS_MAX = 2  # partitions of a listener that hold a large unpacked set at once
_logger = structlog.get_logger("tunnel.broker")


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
        return MessageListener(self, lambda messages: handler(messages[0]), concurrency, 1)

    def register_list_listener(
        self, handler: ListHandler, *, concurrency: int = 1, list_max: int = _LIST_MAX
    ) -> MessageListener:
        """Return a listener that calls `handler` with lists of up to `list_max` messages, those that were fetched.

        The messages of a list are of one partition, in their order. If the handler fails or returns RetryLater, it gets
        the whole list again. Otherwise as `register_message_listener`; `concurrency` counts lists.
        """
        return MessageListener(self, handler, concurrency, list_max)


class MessageListener(Startable):
    """Handles the messages of a member's partitions until it is closed. `failures` counts attempts that failed."""

    def __init__(self, consumer: GroupConsumer, handler: ListHandler, concurrency: int, list_max: int) -> None:
        if concurrency < 1:
            raise ValueError(f"concurrency is {concurrency}: it must be at least 1, which keeps the order")
        if list_max < 1:
            raise ValueError(f"list_max is {list_max}: a list has at least 1 message")
        self.handled = 0
        self.failures = 0
        self.dead_letters = 0
        self.unreadable = 0  # compressed sets that could not be unpacked
        self.skipped = 0  # messages of topics in memory that the broker had discarded before they were fetched
        self.list_max = list_max
        self.consumer = consumer
        self._handler = handler
        self._is_ordered = concurrency == 1
        self._slots = asyncio.Semaphore(concurrency)
        self._large_sets = asyncio.Semaphore(_LARGE_SETS_MAX)
        self._producer = consumer.client.producer()
        self._workers: dict[tuple[str, int], _Worker] = {}
        self._progressed = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._expect_use()

    # life

    def start(self) -> None:
        """Join the group, and begin to handle messages."""
        self._mark_used()
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
                if isinstance(error, RemoteCallError) and error.code == UNKNOWN:
                    await self._assign(topic, {})  # a topic that is created later under this name has other messages
                else:
                    note("listener_waits", topic=topic, group=self.consumer.group, text=str(error))
                generation, wait_ms = 0, 0
                await asyncio.sleep(trouble)
                trouble = min(_TROUBLE_MAX_S, 2 * trouble)
                continue
            trouble, wait_ms = _TROUBLE_S, _HEARTBEAT_MS
            found = response.fields or {}
            if int(found["generation"]) != generation:
                generation = int(found["generation"])
                await self._assign(
                    topic, dict(zip(numbers(found["partitions"]), numbers(found["offsets"]), strict=True))
                )
            for number, end in zip(numbers(found["partitions"]), numbers(found.get("ends", "")), strict=False):
                worker = self._workers.get((topic, number))
                if worker is not None and end >= 0:
                    worker.end = end

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

    def on_progress(self) -> None:
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

    def begin(self, messages: Sequence[DeliveredMessage]) -> Awaitable[RetryLater | None] | RetryLater | None:
        """Call the handler, and return None if it has succeeded at once. Pass any other outcome to `settle`."""
        try:
            outcome = self._handler(messages)
        except Exception as error:
            return self._failed(messages, error)
        if outcome is None:
            self.handled += len(messages)
        return outcome

    async def settle(
        self,
        messages: Sequence[DeliveredMessage],
        end: Callable[[], int],
        begun: Awaitable[RetryLater | None] | RetryLater | None = None,
    ) -> None:
        """Handle messages until the handler has succeeded, or they are in the dead-letter topic.

        `end` returns the end of their partition. `begun` is the result of `begin` for the first attempt; without it,
        this method makes the first attempt, too.
        """
        config = self.consumer.config
        attempt = messages[0].attempt
        while True:
            delay = await self._attempt(messages, end, begun)
            if delay is None:
                return
            begun = None
            self.failures += 1
            if attempt >= config.attempts_max and config.dead_letter_topic:
                messages = await self._bury(messages)
                if not messages:
                    return
            await asyncio.sleep(delay)
            attempt += 1
            messages = [msgspec.structs.replace(message, attempt=attempt) for message in messages]

    async def _attempt(
        self,
        messages: Sequence[DeliveredMessage],
        end: Callable[[], int],
        begun: Awaitable[RetryLater | None] | RetryLater | None,
    ) -> float | None:
        """Make an attempt, or finish the one in `begun`. Return None on success, else the delay before the next."""
        if not self._is_ordered:
            await self._slots.acquire()
        try:
            if begun is None:
                messages = [msgspec.structs.replace(message, max_offset=end()) for message in messages]
            outcome = self.begin(messages) if begun is None else begun
            if outcome is None:
                return None
            if not isinstance(outcome, RetryLater):
                outcome = await outcome
                if outcome is None:
                    self.handled += len(messages)
                    return None
        except Exception as error:
            outcome = self._failed(messages, error)
        finally:
            if not self._is_ordered:
                self._slots.release()
        return self.consumer.config.delay(messages[0].attempt) if outcome.delay_s is None else outcome.delay_s

    def _failed(self, messages: Sequence[DeliveredMessage], error: Exception) -> RetryLater:
        message = messages[0]
        _logger.warning(
            "handler_failed",
            topic=message.topic,
            partition=message.partition,
            offset=message.offset,
            messages=len(messages),
            attempt=message.attempt,
            text=f"{type(error).__name__}: {error}",
        )
        return RetryLater()

    async def _bury(self, messages: Sequence[DeliveredMessage]) -> Sequence[DeliveredMessage]:
        """Move messages to the dead-letter topic. Return those for which that failed."""
        topic = self.consumer.config.dead_letter_topic
        for index, message in enumerate(messages):
            try:
                await self._producer.send(topic, message.payload)
            except (OSError, TunnelError) as error:
                _logger.warning("not_moved", dead_letter_topic=topic, offset=message.offset, text=str(error))
                return messages[index:]
            self.dead_letters += 1
            _logger.warning(
                "moved",
                dead_letter_topic=topic,
                topic=message.topic,
                partition=message.partition,
                offset=message.offset,
                attempts=message.attempt,
            )
        return []

    def start_fetching(self, topic: str, number: int, offset: int) -> Consumer:
        """Return a consumer that fetches a partition of this member from `offset` on."""
        config = self.consumer.config
        return self.consumer.client.consumer(
            topic, number, offset, fetch_bytes=config.fetch_bytes, large_sets=self._large_sets
        )

    @property
    def is_ordered(self) -> bool:
        """Whether the messages of a partition are handled one after the other."""
        return self._is_ordered


class _Worker:
    """Fetches one partition from an offset on, and has its messages handled."""

    def __init__(self, listener: MessageListener, topic: str, number: int, offset: int) -> None:
        self.progress = Progress(offset)
        self.stored = offset  # the position at the broker, as far as is known
        self.end = 0  # of the partition, as the broker has said last
        self._listener = listener
        self._config = listener.consumer.config
        self._topic = topic
        self._number = number
        self._passed = 0
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
        self._consumer.release()

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
                self.progress.on_fetched([], self._consumer.offset)
                self._listener.on_progress()
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
            self.end = max(self.end, self._consumer.end_offset)
            self._note_skipped()
            self.progress.on_fetched(messages, self._consumer.offset)
            await self._handle(messages)
            self._listener.on_progress()

    async def _resume(self, error: OffsetOutOfRangeError) -> None:
        """Go on with the oldest message, if retention has removed the next one."""
        _logger.error("messages_missed", topic=self._topic, partition=self._number, text=str(error))
        if error.offset > error.end:
            await asyncio.sleep(_TROUBLE_MAX_S)  # the broker has lost messages; perhaps it is restored from a replica
            return
        self._consumer.offset = error.first
        self.progress.on_fetched([], error.first)

    def _note_skipped(self) -> None:
        skipped, self._consumer.skipped = self._consumer.skipped, 0
        if skipped:
            text = f"the broker had discarded {counted(skipped, 'message')} before a fetch"
            _logger.warning("messages_missed", topic=self._topic, partition=self._number, text=text)
            self._listener.skipped += skipped

    def _lists(self, messages: list[ConsumedMessage]) -> Iterator[list[DeliveredMessage]]:
        """Yield the messages as the handler gets them. Each list is made when it is needed: `end` moves meanwhile."""
        size = self._listener.list_max
        if size == 1:
            for each in messages:
                yield [DeliveredMessage(self._topic, self._number, each.offset, self.end, each.payload)]
            return
        for start in range(0, len(messages), size):
            yield [
                DeliveredMessage(self._topic, self._number, each.offset, self.end, each.payload)
                for each in messages[start : start + size]
            ]

    async def _handle(self, messages: list[ConsumedMessage]) -> None:
        listener, is_ordered, settled = self._listener, self._listener.is_ordered, self.progress.on_settled
        for delivered in self._lists(messages):
            if is_ordered:
                begun = listener.begin(delivered)
                if begun is not None:
                    await listener.settle(delivered, lambda: self.end, begun)
                for message in delivered:
                    settled(message.offset)
                self._passed += len(delivered)
                if self._passed >= _PASSED_MAX:
                    self._passed = 0
                    listener.on_progress()  # a long batch is stored in parts
                    await asyncio.sleep(0)  # a handler that never waits would let no other task run
                continue
            while len(self._handling) >= self._config.ahead_max:
                await asyncio.wait(self._handling, return_when=asyncio.FIRST_COMPLETED)
            task = asyncio.get_running_loop().create_task(self._settle(delivered))
            self._handling.add(task)
            task.add_done_callback(self._handling.discard)

    async def _settle(self, messages: list[DeliveredMessage]) -> None:
        await self._listener.settle(messages, lambda: self.end)
        for message in messages:
            self.progress.on_settled(message.offset)
        self._listener.on_progress()
