"""The broker: topics on disk or in memory, producers, consumers and groups, over TCP or as a service at a relay."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import structlog

from tunnel.messages.broker.connection import CallConnection, Counters, Shared, serve_producer
from tunnel.messages.broker.deleting import Deleting
from tunnel.messages.broker.disk_room import DiskRoom, free_bytes
from tunnel.messages.broker.groups import Groups
from tunnel.messages.broker.intake import FIRST_BYTES, MeteredReader, is_call
from tunnel.messages.broker.memory_groups import MemoryGroups
from tunnel.messages.broker.partition import MemoryPartition, Partition
from tunnel.messages.broker.positions import Positions
from tunnel.messages.broker.replica import Replica
from tunnel.messages.broker.settings import BrokerSettings, TopicSpec
from tunnel.messages.broker.storing import Storing
from tunnel.messages.broker.topics import Topics
from tunnel.messages.broker.users import Slots, User, Users, user_of
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import LogError, MalformedFrameError
from tunnel.messages.resets import reset_stream
from tunnel.streams.asyncio_compat import start_server
from tunnel.system.durable_files import make_directory

__all__ = ["Broker"]

_SWEEP_S = 1.0
_EXPIRY_TURNS = 60  # positions are looked through once in this number of sweeps
_logger = structlog.get_logger("tunnel.broker")


class Broker:
    """A broker in a directory. Use it as an async context manager, and give it connections.

    `listen` accepts TCP connections. To serve through a relay, pass `serve` to `start_server` of an attachment. One
    process at a time may use a directory; another one gets a LogError.
    """

    def __init__(
        self,
        directory: Path | str,
        settings: BrokerSettings | None = None,
        *,
        topics: Mapping[str, TopicSpec] | None = None,
        make_table: Callable[[], ChannelTable] = ChannelTable,
        free: Callable[[Path], int] = free_bytes,
    ) -> None:
        """`topics` are created at the start. A replica reaches its master through a table from `make_table`."""
        self.directory = Path(directory)
        self.settings = settings = settings or BrokerSettings()
        self.counters = Counters()
        self._declared = dict(topics or {})
        self._make_table = make_table
        room = DiskRoom(self.directory, settings.disk_reserve_bytes, free=free)
        self.topics = Topics(self.directory / "topics", settings, room)
        # Positions may use the room that is reserved: consumers go on while producers are refused.
        self.positions = Positions(
            self.directory / "positions", settings.positions_max, DiskRoom(self.directory, 0, free=free)
        )
        memory_groups = MemoryGroups(self.topics, self.positions, settings.positions_max)
        self.groups = Groups(settings.session_s, emptied=memory_groups.on_emptied)
        self.users = Users(settings.connections_max, settings.requests_bytes_max, settings.members_max)
        self._deleting = Deleting(settings, self.topics, self.positions, self.groups)
        self._shared = Shared(
            settings,
            self.topics,
            self.positions,
            self.groups,
            memory_groups,
            Storing(self.topics, settings),
            self._deleting,
            self.users.members,
            self.counters,
            self.metrics,
        )
        self._slots = Slots(settings.large_requests_max)
        self._serving: set[asyncio.Task[None]] = set()
        self._servers: list[asyncio.Server] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._is_closing = False

    # life

    async def __aenter__(self) -> Broker:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def start(self) -> None:
        """Open the directory, and create it if necessary. LogError if another process has it, or it is damaged."""
        await asyncio.to_thread(make_directory, self.directory)
        await self.positions.load()  # its lock keeps a second process away from all of the directory
        try:
            await asyncio.to_thread(self.topics.load)
            for name, spec in self._declared.items():
                await self.topics.create(name, spec)
            async for part in self.positions.of_group():
                for (group, topic, number), offset in part:
                    memory = self.topics.memory(topic, number)
                    if memory is not None:
                        memory.has_read(group, offset)
        except BaseException:
            self.users.close()
            await self.positions.close()
            raise
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._sweep()))
        if self.settings.master:
            replica = Replica(self._make_table(), self.settings.master)
            self._tasks.append(loop.create_task(replica.follow_topics(self.topics)))

    async def listen(self, host: str, port: int) -> str:
        """Accept connections at this address, and return the address with the port that was chosen for port 0."""
        server = await start_server(self.serve, host, port)
        self._servers.append(server)
        found = server.sockets[0].getsockname()
        return f"[{found[0]}]:{found[1]}" if ":" in found[0] else f"{found[0]}:{found[1]}"

    async def close(self) -> None:
        """Stop listening, end all connections, and return when everything is on disk."""
        self._is_closing = True
        self.users.close()
        for server in self._servers:
            server.close()
        tasks = [*self._tasks, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for server in self._servers:
            await server.wait_closed()
        await asyncio.gather(*(partition.close() for partition in self.topics.partitions()))
        await self.positions.close()

    async def _sweep(self) -> None:
        """Remove old messages and silent members now and then."""
        turns = 0
        while True:
            await asyncio.sleep(_SWEEP_S)
            turns += 1
            try:
                for _ in self.groups.expire():
                    await asyncio.sleep(0)
                if turns % _EXPIRY_TURNS == 0 and not self.settings.master:
                    await self.expire_positions()
                for partition in self.topics.partitions():
                    await partition.sweep()
                await asyncio.to_thread(_retain, self.topics.partitions())
            except Exception:  # the next turn tries again: without turns, the disk would fill up
                _logger.exception("sweep_failed")

    async def expire_positions(self) -> None:
        """Remove the positions of groups that have had no member and stored nothing for long."""
        unused = await self.positions.find_unused(self.settings.position_s, self.groups.has_members)
        if unused:
            await self._deleting.forget(unused)
            _logger.warning("positions_expired", positions=len(unused), groups=len({key[0] for key in unused}))

    # connections

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve a connection of a producer, a consumer or a command until it ends."""
        task = asyncio.current_task()
        assert task is not None
        user = self._admit(user_of(writer))
        if user is None:
            reset_stream(writer)
            return
        self._serving.add(task)
        try:
            await user.charge_for(self._serve(reader, writer, user))
        except (OSError, asyncio.IncompleteReadError):
            pass  # the peer has gone
        except asyncio.CancelledError:
            if not self._is_closing:
                raise  # not while closing: asyncio's server would report an error for each task that `close` cancels
        finally:
            self._serving.discard(task)
            self.users.on_left(user)
            self.counters.connections -= 1
            writer.close()

    def _admit(self, name: str) -> User | None:
        counters = self.counters
        user = self.users.admit(name)
        if user is None:
            counters.connections_refused += 1
            _logger.warning("too_many_connections", user=name, connections=counters.connections)
            return None
        counters.connections += 1
        counters.connections_total += 1
        return user

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, user: User) -> None:
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.family in (socket.AF_INET, socket.AF_INET6):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)  # finds peers that have vanished
        try:
            first = await reader.readexactly(FIRST_BYTES)
        except asyncio.IncompleteReadError as cut:
            if cut.partial:
                self.counters.malformed_connections += 1
                reset_stream(writer)
            return
        metered = MeteredReader(reader, first, self._slots, user)
        try:
            if not is_call(first):
                await serve_producer(self._shared, metered, writer, user)
                return
            error = await CallConnection(self._shared, metered, writer, user).serve()
            if isinstance(error, MalformedFrameError):
                self.counters.malformed_connections += 1
                _logger.warning("malformed", user=user.name, text=str(error))
        finally:
            metered.release()

    # measures

    def metrics(self) -> dict[str, float]:
        """Return the counters since the start, and the present sizes, by name."""
        counters = self.counters
        partitions = self.topics.partitions()
        found: dict[str, float] = {name: getattr(counters, name) for name in counters.__struct_fields__}
        found["topics"] = len(self.topics.found)
        found["partitions"] = len(partitions)
        found["positions"] = len(self.positions)
        found["group_members"] = self.groups.members
        found["messages_stored_total"] = sum(each.appended for each in partitions)
        found["bytes_stored_total"] = sum(each.appended_bytes for each in partitions)
        found["messages_discarded_total"] = sum(
            each.messages_discarded for each in partitions if isinstance(each, MemoryPartition)
        )
        return found


def _retain(partitions: list[Partition]) -> None:
    for partition in partitions:
        with suppress(OSError, LogError):  # it was deleted, or the next turn tries again
            partition.retain()
