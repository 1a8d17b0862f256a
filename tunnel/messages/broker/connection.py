"""One connection to a broker: a stream of produce requests without answers, or calls."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import msgspec
import structlog

from tunnel.messages.broker.deleting import Deleting
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.intake import MeteredReader
from tunnel.messages.broker.memory_groups import MemoryGroups
from tunnel.messages.broker.partition import MemoryPartition, Partition, ProduceOptions
from tunnel.messages.broker.positions import PositionKey, Positions
from tunnel.messages.broker.protocol import (
    COMMIT,
    CREATE,
    DELETE_GROUP,
    DELETE_TOPIC,
    FETCH,
    JOIN,
    LEAVE,
    LIMIT,
    MALFORMED,
    METRICS,
    NOT_MASTER,
    OUT_OF_RANGE,
    POSITIONS,
    PRODUCE,
    REASONS,
    TOPICS,
    UNKNOWN,
    PositionReport,
    check_name,
    join_numbers,
    number_field,
    text_field,
)
from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
from tunnel.messages.broker.storing import Outcome, Pace, Storing, free
from tunnel.messages.broker.topics import Topics
from tunnel.messages.broker.users import Holdings, User
from tunnel.messages.calls.calls import CallChannel, CallHandler, Request, Response
from tunnel.messages.errors import MalformedFrameError, RemoteCallError
from tunnel.messages.resets import reset_stream
from tunnel.messages.topics.requests import ProduceDecoder, ProduceRequest

__all__ = ["CallConnection", "Counters", "Shared", "serve_producer"]

_READ_BYTES = 32 * 1024  # at once, while other clients wait: of the smallest produce requests, this is 4 ms of work
_REQUEST_BYTES = 2048  # a produce request takes as long as a set of this size, whatever it contains
_HANDLED_MAX = 256  # calls at once on a connection: a listener waits with one for each of its partitions
_HANDLED_BYTES_MAX = 20 * 1024 * 1024  # bytes of their bodies: one of the largest frames, and some small ones
_UNREAD_BYTES_MAX = 256 * 1024  # of answers that wait for a client to read; further answers are made after it has read
_UNANSWERED_BYTES_MAX = 16 * 1024 * 1024  # of answers, refusals included; then a client that goes on asking is cut off
_WAIT_MS_MAX = 60_000
_LEFT_AT_ONCE = 10  # groups; each may take 1 ms
_PLAIN = ProduceOptions()
_logger = structlog.get_logger("tunnel.broker")


class Counters(msgspec.Struct):
    """The counts of a broker since its start."""

    connections: int = 0
    """Open now."""
    connections_total: int = 0
    connections_refused: int = 0
    produce_requests: int = 0
    fetch_requests: int = 0
    commits: int = 0
    refused_requests: int = 0
    malformed_connections: int = 0


@dataclass(frozen=True, slots=True)
class Shared:
    """The parts of a broker that its connections use."""

    settings: BrokerSettings
    topics: Topics
    positions: Positions
    groups: Groups
    memory_groups: MemoryGroups
    storing: Storing
    deleting: Deleting
    members: Holdings
    """Memberships of groups, by user."""
    counters: Counters
    metrics: Callable[[], dict[str, float]]
    listing: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Only one list of positions is made at a time, since each takes memory and time."""


async def serve_producer(shared: Shared, reader: MeteredReader, writer: asyncio.StreamWriter, user: User) -> None:
    """Store the produce requests of a connection until it ends. Then close it, which confirms that all are stored.

    These requests have no answers. A connection with a refused request is reset, so that the producer gets an error.
    """
    decoder = ProduceDecoder(shared.settings.request_bytes_max)
    reader.held = lambda: decoder.held_bytes
    ends: dict[Partition, int] = {}
    pace = Pace(user)
    try:
        while data := await reader.read(_READ_BYTES):
            for requests in decoder.feed(data):
                shared.counters.produce_requests += 1
                alone = len(requests[0].messages.data) if len(requests) == 1 else 0  # many sets are paced one by one
                outcome = await Outcome.of(await shared.storing.store(requests, _PLAIN, user), user)
                for partition in outcome.ends:
                    await partition.room()
                ends |= outcome.ends
                outcome.check_discarded()
                await pace.on_worked(_REQUEST_BYTES + alone)
            await pace.on_worked(len(data))
        if not decoder.is_between_requests:
            raise MalformedFrameError("it has ended within a request")
        for partition, end in ends.items():
            await partition.flush_before(end)
    except RemoteCallError as error:
        shared.counters.refused_requests += 1
        _logger.warning("refused", user=user.name, reason=REASONS.get(error.code, "failed"), text=str(error))
        reset_stream(writer)
    except MalformedFrameError as error:
        shared.counters.malformed_connections += 1
        _logger.warning("malformed", user=user.name, text=str(error))
        reset_stream(writer)
    else:
        writer.close()
    finally:
        await free(decoder.abandon())


def _end(partition: Partition) -> int | None:
    """Return the offset after the partition's newest message, or None if it could not be opened."""
    try:
        return partition.end_offset
    except RemoteCallError:
        return None


def _next(partition: Partition, offset: int) -> int:
    """Return the offset of the next message that a group with this position will read."""
    return max(offset, partition.first_offset) if isinstance(partition, MemoryPartition) else offset


class CallConnection:
    """Answers the calls of one connection."""

    def __init__(self, shared: Shared, reader: MeteredReader, writer: asyncio.StreamWriter, user: User) -> None:
        self._shared = shared
        self._user = user
        self._joined: set[tuple[str, str, str]] = set()
        self._storing = asyncio.Lock()  # requests of one connection are stored in their order
        self._listing = asyncio.Lock()  # one call of a connection at a time waits for room and for the others
        self._channel = CallChannel(
            reader,
            writer,
            self._handlers(),
            handled_max=_HANDLED_MAX,
            handled_bytes_max=_HANDLED_BYTES_MAX,
            unread_bytes_max=_UNANSWERED_BYTES_MAX,
            payer=user,
        )
        reader.held = lambda: self._channel.held_bytes

    async def serve(self) -> Exception | None:
        """Answer until the connection has ended; return why, or None after a clean end."""
        try:
            async with self._channel:
                await self._channel.wait_closed()
                await self._channel.wait_handled()
        finally:
            await self._leave_all()
        return self._channel.error

    async def _leave_all(self) -> None:
        """Leave all groups. Let other clients in now and then: 5,000 groups with many partitions take long."""
        while self._joined:
            for _ in range(min(_LEFT_AT_ONCE, len(self._joined))):
                group, topic, member = self._joined.pop()
                self._shared.groups.leave(group, topic, member, self)
                self._shared.members.add(self._user.name, -1)
            await asyncio.sleep(0)

    def _handlers(self) -> Mapping[int, CallHandler]:
        handlers: dict[int, Callable[[Request], Awaitable[Response]]] = {
            PRODUCE: self._produce,
            FETCH: self._fetch,
            COMMIT: self._commit,
            POSITIONS: self._positions,
            JOIN: self._join,
            LEAVE: self._leave,
            TOPICS: self._topics,
            CREATE: self._create,
            DELETE_TOPIC: self._delete_topic,
            DELETE_GROUP: self._delete_group,
            METRICS: self._metrics,
        }
        return {code: self._counted(handler) for code, handler in handlers.items()}

    def _counted(self, handler: Callable[[Request], Awaitable[Response]]) -> CallHandler:
        async def handle(request: Request) -> Response:
            await self._user.turn()
            try:
                return await handler(request)
            except RemoteCallError:
                self._shared.counters.refused_requests += 1
                raise

        return handle

    # messages

    async def _produce(self, request: Request) -> Response:
        shared = self._shared
        shared.counters.produce_requests += 1
        at = number_field(request, "at", -1, -1)
        ttl_ms = number_field(request, "ttl_ms", 0)
        priority = number_field(request, "priority", 0, -1_000_000, 1_000_000)
        options = ProduceOptions(None if at < 0 else at, priority, ttl_ms / 1000 if ttl_ms else None)
        async with self._storing:
            await self._user.turn()  # others of the user may have used it up while this request waited
            places = await shared.storing.store(await self._decoded(request), options, self._user)
        outcome = await Outcome.of(places, self._user)
        await self._acknowledge(outcome.ends, durable=(request.fields or {}).get("durable", "1") == "1")
        outcome.check_discarded()
        return Response(b"", outcome.fields)

    async def _decoded(self, request: Request) -> list[ProduceRequest]:
        """Return the sets in the body, which is freed."""
        decoder, pace = ProduceDecoder(self._shared.settings.request_bytes_max), Pace(self._user)
        found: list[list[ProduceRequest]] = []
        data, request.body = request.body, b""
        try:
            for start in range(0, len(data), _READ_BYTES):
                part = data[start : start + _READ_BYTES]
                found += decoder.feed(part)
                if len(found) > 1:
                    break
                await pace.on_worked(len(part))
            if len(found) == 1 and decoder.is_between_requests:
                return found.pop()
            raise RemoteCallError(MALFORMED, "the body must be one whole produce request and nothing else")
        except MalformedFrameError as error:
            raise RemoteCallError(MALFORMED, str(error)) from None
        finally:
            left = decoder.abandon()
            while found:
                left += found.pop()
            await free(left)

    async def _acknowledge(self, ends: dict[Partition, int], *, durable: bool) -> None:
        for partition, end in ends.items():
            if durable:
                await partition.flush_before(end)
            else:
                await partition.room()

    async def _fetch(self, request: Request) -> Response:
        shared = self._shared
        shared.counters.fetch_requests += 1
        topic = shared.topics.get(text_field(request, "topic"))
        partition = topic.partition(number_field(request, "partition", 0))
        await partition.readable()
        await self._channel.room(_UNREAD_BYTES_MAX)
        await self._user.turn()
        return await partition.fetch(request, self._user)

    # positions and groups

    async def _commit(self, request: Request) -> Response:
        shared = self._shared
        if shared.settings.master:
            raise RemoteCallError(NOT_MASTER, f"positions are kept by the broker at {shared.settings.master}")
        shared.counters.commits += 1
        group = text_field(request, "group")
        name = text_field(request, "topic")
        topic = shared.topics.get(name)
        number = number_field(request, "partition", 0)
        partition = topic.partition(number)
        offset = number_field(request, "offset")
        await partition.readable()
        if offset > partition.end_offset:
            raise RemoteCallError(
                OUT_OF_RANGE, f"the position {offset} is after the end {partition.end_offset} of {name}/{number}"
            )
        if "member" in (request.fields or {}):
            member = text_field(request, "member")
            shared.groups.check_owner(group, name, member, number, len(topic.partitions))
        force = (request.fields or {}).get("force") == "1"
        holds = await shared.positions.set((group, name, number), offset, force=force, user=self._user.name)
        memory = shared.topics.memory(name, number)
        if memory is not None:
            memory.has_read(group, holds)
            await memory.sweep()
        if force:
            shared.groups.rewound(group, name)
        return Response(b"", {"offset": str(holds)})

    async def _positions(self, request: Request) -> Response:
        group = (request.fields or {}).get("group", "")
        if group:
            check_name("group", group)
        async with self._listing:
            await self._channel.room(_UNREAD_BYTES_MAX)
            await self._readable()
            async with self._user.listing, self._shared.listing:
                parts = [self._encode(part) async for part in self._shared.positions.of_group(group)]
        return Response(b"[" + b",".join(part for part in parts if part) + b"]")

    def _encode(self, positions: list[tuple[PositionKey, int]]) -> bytes:
        """Return the reports on these positions as JSON, without the brackets of the list."""
        found: list[PositionReport] = []
        for (name, topic_name, number), offset in positions:
            topic = self._shared.topics.found.get(topic_name)
            if topic is not None and number < len(topic.partitions):
                partition = topic.partitions[number]
                found.append(PositionReport(name, topic_name, number, _next(partition, offset), _end(partition)))
        return msgspec.json.encode(found)[1:-1]

    async def _join(self, request: Request) -> Response:
        shared = self._shared
        if shared.settings.master:
            raise RemoteCallError(NOT_MASTER, f"groups are kept by the broker at {shared.settings.master}")
        group, name, member = (text_field(request, field) for field in ("group", "topic", "member"))
        topic = shared.topics.get(name)
        generation = number_field(request, "generation", 0)
        wait_ms = min(_WAIT_MS_MAX, int(shared.settings.session_s * 500), number_field(request, "wait_ms", 0))
        self._check_memberships(group, name, member)
        shared.memory_groups.on_joining(group, topic, self._user.name)
        found = shared.groups.join(group, name, member, self, self._user.name)
        if (group, name, member) not in self._joined:
            self._joined.add((group, name, member))
            shared.members.add(self._user.name)
        if wait_ms:
            await found.until_changed(generation, wait_ms / 1000)
            await self._user.turn()  # the members of the group go on together
            if shared.topics.found.get(name) is not topic:  # a new one has other messages
                raise RemoteCallError(UNKNOWN, f"the topic {name} was deleted")
        partitions = found.partitions_of(member, len(topic.partitions))
        offsets = [self._start(group, name, number) for number in range(len(topic.partitions))]
        ends = [_end(topic.partitions[number]) for number in partitions]
        return Response(
            b"",
            {
                "generation": str(found.generation),
                "partitions": join_numbers(partitions),
                "offsets": join_numbers([offsets[number] for number in partitions]),
                "ends": join_numbers([-1 if end is None else end for end in ends]),
            },
        )

    def _check_memberships(self, *membership: str) -> None:
        if membership not in self._joined:
            problem = self._shared.members.why_not(self._user.name, 1, "members of groups")
            if problem:
                raise RemoteCallError(LIMIT, f"{problem}: leave a group first")

    def _start(self, group: str, topic: str, number: int) -> int:
        """Return the offset from which a group reads a partition on."""
        key = group, topic, number
        memory = self._shared.topics.memory(topic, number)
        if memory is not None and not self._shared.positions.knows(key):
            return memory.on_joined(group)
        return self._shared.positions.get(key)

    async def _leave(self, request: Request) -> Response:
        group, name, member = (text_field(request, field) for field in ("group", "topic", "member"))
        self._shared.groups.leave(group, name, member, self)
        if (group, name, member) in self._joined:
            self._joined.discard((group, name, member))
            self._shared.members.add(self._user.name, -1)
        return Response()

    # topics

    async def _topics(self, request: Request) -> Response:
        await self._channel.room(_UNREAD_BYTES_MAX)
        await self._readable()
        return Response(msgspec.json.encode(await asyncio.to_thread(self._shared.topics.reports)))

    async def _readable(self) -> None:
        for partition in self._shared.topics.partitions():
            with suppress(RemoteCallError):  # the reports of topics say why
                await partition.readable()

    async def _create(self, request: Request) -> Response:
        name = text_field(request, "topic")
        try:
            spec = msgspec.json.decode(request.body, type=TopicSpec)
        except (msgspec.DecodeError, ValueError) as error:
            raise RemoteCallError(MALFORMED, f"the body must describe the topic as JSON: {error}") from None
        await self._shared.storing.create(name, spec, self._user.name)
        return Response()

    async def _delete_topic(self, request: Request) -> Response:
        count = await self._shared.deleting.topic(text_field(request, "topic"), self._user.name)
        return Response(b"", {"partitions": str(count)})

    async def _delete_group(self, request: Request) -> Response:
        count = await self._shared.deleting.group(text_field(request, "group"), self._user.name)
        return Response(b"", {"positions": str(count)})

    async def _metrics(self, request: Request) -> Response:
        return Response(msgspec.json.encode(self._shared.metrics()))
