"""A partition of a topic, and the kind that is a backlog in memory."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tunnel.ground.printable import counted
from tunnel.messages.broker.protocol import CONFLICT, DISCARDED, LIMIT, PartitionReport, number_field
from tunnel.messages.broker.readers import Readers
from tunnel.messages.broker.settings import TopicSpec
from tunnel.messages.calls.calls import Request, Response
from tunnel.messages.errors import RemoteCallError
from tunnel.messages.kept.backlog import DiscardPolicy, MemoryBacklog
from tunnel.messages.payers import FREE, Payer
from tunnel.messages.sets.message import LENGTH_BYTES

__all__ = ["MemoryPartition", "Partition", "ProduceOptions", "fetch_fields"]

_FETCH_BYTES = 64 * 1024  # if a fetch does not say how much it wants; the largest answer from a partition in memory
_WAIT_MS_MAX = 60_000
_SET_MESSAGES_MAX = 2_000  # of a set for a partition in memory: it is stored as a whole, while other clients wait
_REMOVED_MAX = 1_000  # messages removed from memory at once, while other clients wait: about 1 ms


@dataclass(frozen=True, slots=True)
class ProduceOptions:
    """The wishes in the fields of a produce request."""

    at: int | None = None
    """The offset that the first message must get; with any other, nothing is stored."""
    priority: int = 0
    ttl_s: float | None = None


def fetch_fields(request: Request, bytes_max: int) -> tuple[int, int, float]:
    """Return what a FETCH asks for: an offset, how many bytes, and how many seconds it waits for a message."""
    size = min(bytes_max, number_field(request, "bytes", _FETCH_BYTES, 1))
    return number_field(request, "offset"), size, min(_WAIT_MS_MAX, number_field(request, "wait_ms", 0)) / 1000


class Partition:
    """The common part of both kinds of partitions. `appended` counts messages, `fetches` counts requests."""

    def __init__(self) -> None:
        self.appended = 0
        self.appended_bytes = 0
        self.fetches = 0

    async def ready(self) -> None:
        """Wait until the partition can be used. RemoteCallError STORAGE if it cannot."""

    @property
    def is_ready(self) -> bool:
        """Whether `ready` would return at once."""
        return True

    async def readable(self) -> None:
        """Wait until the partition can be read. It may refuse new messages all the same."""

    @property
    def is_failed(self) -> bool:
        """Whether messages are refused for now."""
        return False

    @property
    def first_offset(self) -> int:
        raise NotImplementedError

    @property
    def end_offset(self) -> int:
        """The offset after the newest message that readers may see."""
        raise NotImplementedError

    def check(self, data: bytes, count: int) -> None:
        """Raise RemoteCallError if this set of `count` messages can never be appended, whatever the partition has."""

    def append(self, data: bytes, count: int, options: ProduceOptions) -> int:
        """Append a checked set of `count` messages, and return the offset of the first."""
        raise NotImplementedError

    async def room(self) -> None:
        """Wait until there is room for more messages."""

    async def flush_before(self, end: int) -> None:
        """Have the messages before this offset stored at once, and wait until they are."""

    async def fetch(self, request: Request, payer: Payer = FREE) -> Response:
        """Answer a FETCH. One that has waited for messages goes on when it is the turn of `payer`."""
        raise NotImplementedError

    def report(self, number: int) -> PartitionReport:
        raise NotImplementedError

    def retain(self) -> None:
        """Remove messages that are too old. May block."""

    async def sweep(self) -> None:
        """Remove messages from memory that are no longer needed."""

    async def close(self) -> None:
        """Store everything, and accept nothing more."""


class MemoryPartition(Partition):
    """A backlog in memory, from which messages are removed that all groups have read.

    Messages that are discarded after they were stored keep their offsets, so that a reader sees from a jump how many it
    missed. `first` is the offset of the first message.
    """

    def __init__(self, spec: TopicSpec, *, name: str = "the topic", first: int = 0) -> None:
        super().__init__()
        self._spec = spec
        self._name = name
        self._readers = Readers()
        self._backlog = MemoryBacklog(
            DiscardPolicy(spec.policy), messages_max=spec.messages_max, bytes_max=spec.bytes_max, first=first
        )
        self._waiters: set[asyncio.Future[None]] = set()

    @property
    def messages(self) -> int:
        """The number of messages that are kept."""
        return len(self._backlog)

    @property
    def size_bytes(self) -> int:
        return self._backlog.size_bytes

    @property
    def messages_discarded(self) -> int:
        """The number of messages that were discarded."""
        return self._backlog.discarded_count

    @property
    def first_offset(self) -> int:
        return self._backlog.first_number

    @property
    def end_offset(self) -> int:
        return self._backlog.next_number

    # the groups that read it

    def on_joined(self, group: str) -> int:
        """Return the position of a group that has stored none: the oldest message when it joined first.

        From now on, messages are kept for the group.
        """
        position = self._readers.position(group)
        if position is None:
            position = self.first_offset
            self._readers.put(group, position)
        return position

    def has_read(self, group: str, position: int) -> None:
        """Note the stored position of a group. Messages that all groups have read may be removed from now on."""
        self._backlog.begin_at(position)  # only after a restart with a clock that is wrong is it after the end
        self._readers.put(group, position)
        self._free()

    def on_left(self, group: str) -> None:
        """Forget a group that has no stored position."""
        self._readers.remove(group)
        self._free()

    def _free(self) -> None:
        last = self._readers.last
        if last is not None:
            self._backlog.free(last[0])

    async def sweep(self) -> None:
        """Remove messages that all groups have read, and expired ones. Lets other clients in now and then."""
        while self._backlog.sweep(_REMOVED_MAX):  # noqa: ASYNC110 - it waits for nothing, it lets others run
            await asyncio.sleep(0)

    # messages

    def check(self, data: bytes, count: int) -> None:
        spec = self._spec
        most = min(spec.messages_max, _SET_MESSAGES_MAX)
        if count > most or len(data) > spec.bytes_max:
            raise RemoteCallError(
                LIMIT,
                f"the set has {counted(count, 'message')} of {len(data)} bytes, and {self._name} takes sets of up to "
                f"{counted(most, 'message')} and {spec.bytes_max} bytes: send smaller sets",
            )

    def append(self, data: bytes, count: int, options: ProduceOptions) -> int:
        offset = self._backlog.next_number
        if options.at is not None and options.at != offset:
            raise RemoteCallError(CONFLICT, f"the next offset is {offset}, not {options.at}: nothing was stored")
        self.check(data, count)
        if not self._backlog.put_all(_split(data), priority=options.priority, ttl=options.ttl_s):
            raise RemoteCallError(DISCARDED, self._why_discarded(count))
        self.appended += count
        self.appended_bytes += len(data)
        waiters, self._waiters = self._waiters, set()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)
        return offset

    async def fetch(self, request: Request, payer: Payer = FREE) -> Response:
        """Answer with messages from an offset on. The field `offset` says where they begin: others were discarded."""
        self.fetches += 1
        wanted, size_max, wait_s = fetch_fields(request, _FETCH_BYTES)
        found: list[bytes] = []
        first = end = self.end_offset
        if wanted < end:
            first, found = self._backlog.peek(wanted, size_max)
        if not found and wait_s and wanted <= end:
            await self._wait(wait_s)
            await payer.turn()  # a set wakes all fetches that wait
            first, found = self._backlog.peek(wanted, size_max)
        fields = {"max": str(self.end_offset), "first": str(self.first_offset)}
        if wanted <= self.end_offset:
            # The reader may go on from `wanted`, even if the messages from there to `offset` are discarded.
            fields |= {"offset": str(first), "first": str(min(wanted, self.first_offset))}
        return Response(b"".join(found), fields)

    def _why_discarded(self, count: int) -> str:
        last = self._readers.last
        if last is not None and last[0] < self.end_offset:
            holder = f"it keeps messages for the group {last[1]}, whose position is {last[0]}"
        else:
            holder = "no group has read them"
        return (
            f"{self._name} is full ({counted(len(self._backlog), 'message')}, {self._backlog.size_bytes} bytes; "
            f"{holder}), and by its policy, {self._spec.policy}, it discards the {counted(count, 'message')} of this "
            "set: nothing of it was stored; send it again when there is room, or choose another policy"
        )

    async def _wait(self, seconds: float) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.add(waiter)
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            pass
        finally:
            self._waiters.discard(waiter)

    def report(self, number: int) -> PartitionReport:
        problem = f"{self.messages_discarded} discarded" if self.messages_discarded else ""
        return PartitionReport(number, self.first_offset, self.end_offset, self._backlog.size_bytes, problem)


def _split(data: bytes) -> list[bytes]:
    """Return the messages of a checked set, each with its header."""
    messages: list[bytes] = []
    position = 0
    while position < len(data):
        end = position + LENGTH_BYTES + int.from_bytes(data[position : position + LENGTH_BYTES], "big")
        messages.append(data[position:end])
        position = end
    return messages
