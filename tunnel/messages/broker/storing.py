"""How produce requests get into the topics of a broker: all checks first, then every set, in order."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

import msgspec

from tunnel.messages.broker.events import note
from tunnel.messages.broker.long_work import unbroken
from tunnel.messages.broker.partition import Partition, ProduceOptions
from tunnel.messages.broker.protocol import CORRUPT, DISCARDED, LIMIT, NOT_MASTER
from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
from tunnel.messages.broker.topics import Topic, Topics
from tunnel.messages.broker.users import User
from tunnel.messages.errors import CorruptMessageError, RemoteCallError
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.sets.message import count_whole
from tunnel.messages.topics.requests import ProduceRequest

__all__ = ["Outcome", "Pace", "Stored", "Storing", "check_set", "free"]

_MEMORY_MESSAGES_MAX = 100_000  # that a client may ask for in a partition: a backlog stops the loop when it grows
_SLICE_BYTES = 32 * 1024  # bytes checked at once, while other clients wait: about 2 ms if the messages are the smallest
_FREED = 1_000  # sets freed at once, while other clients wait

_SET_BYTES = 256  # a set takes as long as this number of bytes of the smallest messages, whatever it contains


class Pace:
    """Lets other clients in after some work on sets, and goes on when it is the payer's turn."""

    def __init__(self, payer: Payer) -> None:
        self._payer = payer
        self._left = _SLICE_BYTES

    async def on_worked(self, size: int) -> None:
        """Count work on a set of this size."""
        self._left -= size + _SET_BYTES
        if self._left <= 0:
            self._left = _SLICE_BYTES
            await asyncio.sleep(0)
            await self._payer.turn()


class Stored(msgspec.Struct, frozen=True, gc=False):
    """Where a set was stored: the offset of its first message, and the offset after its last.

    If the set was discarded, `discarded` says why.
    """

    partition: Partition
    number: int
    offset: int
    end: int
    discarded: str = ""


class Outcome:
    """What became of all sets of a request: the offsets after what was stored, and why sets were discarded."""

    def __init__(self) -> None:
        self.ends: dict[Partition, int] = {}
        self._lost = 0
        self._why_lost = ""  # of the first set that was discarded
        self._count = 0
        self._numbers = bytearray()  # text, each with a comma: 65,535 strings would take as long to free as to make
        self._offsets = bytearray()

    @classmethod
    async def of(cls, places: list[Stored], payer: Payer) -> Outcome:
        """Return the outcome. `places` is emptied bit by bit: a request may have 65,535 sets."""
        found, pace = cls(), Pace(payer)
        places.reverse()
        try:
            while places:
                found._add(places.pop())
                await pace.on_worked(0)
            return found
        finally:
            await free(places)

    def _add(self, place: Stored) -> None:
        self._numbers += b"%d," % place.number
        self._offsets += b"%d," % place.offset
        self._count += 1
        if place.discarded:
            self._lost += 1
            self._why_lost = self._why_lost or place.discarded
        else:
            self.ends[place.partition] = place.end

    @property
    def fields(self) -> dict[str, str]:
        """The fields of the answer."""
        return {"partitions": self._numbers[:-1].decode(), "offsets": self._offsets[:-1].decode()}

    def check_discarded(self) -> None:
        """Raise RemoteCallError DISCARDED if a set was discarded."""
        if self._lost:
            text = self._why_lost
            if self._count > 1:
                text = f"{self._lost} of {self._count} sets were discarded: {text}"
            raise RemoteCallError(DISCARDED, text, self.fields)


async def check_set(data: bytes, payer: Payer = FREE) -> int:
    """Return the number of messages in a set; a compressed message counts as one. Lets other clients in now and then.

    RemoteCallError CORRUPT if a message is damaged, or the last one is cut.
    """
    count, position, size = 0, 0, len(data)
    try:
        while True:
            found, position = count_whole(data, position, position + _SLICE_BYTES)
            count += found
            if position >= size:
                return count
            if not found:
                raise CorruptMessageError("the set ends within a message", position)
            await asyncio.sleep(0)
            await payer.turn()
    except CorruptMessageError as error:
        raise RemoteCallError(CORRUPT, f"the message set is damaged: {error}; nothing was stored") from None


class Storing:
    """Checks produce requests, and appends their sets to the partitions."""

    def __init__(self, topics: Topics, settings: BrokerSettings) -> None:
        self._topics = topics
        self._settings = settings

    async def store(self, requests: list[ProduceRequest], options: ProduceOptions, user: User) -> list[Stored]:
        """Append the sets of one request of a user. RemoteCallError if any of them is refused; then none is stored.

        There are two exceptions. If a later set of a multi-produce request cannot be appended because the disk is full
        or fails, the sets before it are stored. A set that its topic in memory discards is no error here: the others
        are stored.

        `requests` is emptied: to free 60,000 sets at once would take as long as two turns.
        """
        pace, has_many = Pace(user), len(requests) > 1
        checked: deque[tuple[ProduceRequest, Topic, int]] = deque()
        places: deque[tuple[bytes, int, Partition, int]] = deque()
        try:
            if self._settings.master:
                raise RemoteCallError(
                    NOT_MASTER, f"this broker is a replica: send to the broker at {self._settings.master}"
                )
            if options.at is not None and len(requests) != 1:
                raise RemoteCallError(LIMIT, "a request that names its offset must have one set: send one for each")
            requests.reverse()
            while requests:
                request = requests.pop()
                topic = await self._topic(request.topic, user.name)
                checked.append((request, topic, await check_set(request.messages.data, user)))
                if has_many:
                    await pace.on_worked(len(request.messages.data))
            await self._choose(checked, places, pace)
            if has_many:  # a single set is checked when it is appended
                for data, count, partition, _ in places:
                    partition.check(data, count)
                    await pace.on_worked(0)
            return await self._append(places, options, pace)
        finally:
            await free(requests, checked, places)

    async def _choose(
        self,
        checked: deque[tuple[ProduceRequest, Topic, int]],
        places: deque[tuple[bytes, int, Partition, int]],
        pace: Pace,
    ) -> None:
        """Move sets to `places`, with the partitions that take them."""
        while checked:
            request, topic, count = checked.popleft()
            number = topic.choose() if request.partition == -1 else request.partition
            partition = topic.partition(number)
            if not partition.is_ready:
                await partition.ready()
            places.append((request.messages.data, count, partition, number))
            await pace.on_worked(0)

    async def _append(
        self, places: deque[tuple[bytes, int, Partition, int]], options: ProduceOptions, pace: Pace
    ) -> list[Stored]:
        found: list[Stored] = []
        has_many = len(places) > 1
        try:
            while places:
                data, count, partition, number = places.popleft()
                found.append(_appended(partition, number, data, count, options))
                if has_many:
                    await pace.on_worked(len(data))
        except BaseException:
            await free(found)
            raise
        return found

    async def _topic(self, name: str, user: str) -> Topic:
        topic = self._topics.found.get(name)
        if topic is not None:
            return topic
        if not self._settings.creates_topics:
            return self._topics.get(name)
        return await self.create(name, self._settings.new_topic, user)

    async def create(self, name: str, spec: TopicSpec, user: str) -> Topic:
        """Create a topic for a user, or return the one that exists. RemoteCallError if a limit is reached."""
        if name in self._topics.found:
            return await self._topics.create(name, spec)
        if not self._settings.creates_topics or self._settings.master:
            raise RemoteCallError(LIMIT, "clients may not create topics here: ask the operator of the broker for it")
        if spec.storage == "memory" and spec.messages_max > _MEMORY_MESSAGES_MAX:
            raise RemoteCallError(
                LIMIT, f"messages_max is {spec.messages_max}: at most {_MEMORY_MESSAGES_MAX} are allowed"
            )
        topic = await self._topics.create(name, spec, user)
        note("topic_created", topic=name, partitions=topic.spec.partitions, storage=topic.spec.storage, user=user)
        return topic


def _appended(partition: Partition, number: int, data: bytes, count: int, options: ProduceOptions) -> Stored:
    """Append a set, and return where it was stored, or why its topic has discarded it."""
    try:
        offset = partition.append(data, count, options)
    except RemoteCallError as error:
        if error.code != DISCARDED:
            raise
        return Stored(partition, number, -1, 0, str(error))
    return Stored(partition, number, offset, offset + count)


async def free(*left: list[Any] | deque[Any]) -> None:
    """Empty the lists that a refusal or the end of a call has left.

    It goes on if the caller is cancelled, and does not wait for a turn of the user: the connection may have ended.
    """
    if any(left):
        await unbroken(_emptied(left))


async def _emptied(left: tuple[list[Any] | deque[Any], ...]) -> None:
    for items in left:
        while items:
            for _ in range(min(_FREED, len(items))):
                items.pop()
            await asyncio.sleep(0)
