"""How a replica copies what its master keeps on disk, with the same offsets, while it runs."""

from __future__ import annotations

import asyncio

import msgspec
import structlog

from tunnel.errors import TunnelError
from tunnel.messages.broker.protocol import FETCH, TOPICS, UNKNOWN, TopicReport, check_range, place_fields
from tunnel.messages.broker.settings import TopicSpec
from tunnel.messages.broker.stored_partition import StoredPartition
from tunnel.messages.broker.topics import Topics
from tunnel.messages.calls.calls import Response
from tunnel.messages.calls.channels import ChannelTable
from tunnel.messages.errors import LogError, OffsetOutOfRangeError, RemoteCallError
from tunnel.messages.sets.message import count_whole

__all__ = ["Replica"]

_LOOK_S = 1.0  # between two looks for new topics
_RETRY_S = 0.5
_GONE_S = 60.0  # until a topic that the master has deleted is looked for again: a user can delete 500 partitions
_PULLS_MAX = 200  # calls that wait at the master at once; the master allows 256 on a connection
_GATHER_MS = 1_000  # as long as the master waits, by default, until it flushes
_BATCH_BYTES = 1024 * 1024  # the batch that remoting-and-backlog.md proposes (docs/REFERENCES.md)
_logger = structlog.get_logger("tunnel.broker")


class Replica:
    """Copies partitions of the master at an address, which it calls through a table of channels of its own."""

    def __init__(self, table: ChannelTable, master: str, *, batch_bytes: int = _BATCH_BYTES) -> None:
        self._table = table
        self._master = master
        self._batch_bytes = batch_bytes
        self._pulls = asyncio.Semaphore(_PULLS_MAX)
        self._is_away = False
        self._refused: set[str] = set()  # the topics that cannot be copied

    async def follow_topics(self, topics: Topics) -> None:
        """Copy the topics that the master keeps on disk, until cancelled. Topics in memory are read there alone."""
        copies: dict[tuple[str, int], asyncio.Task[None]] = {}
        try:
            while True:
                try:
                    await self._look(topics, copies)
                except (OSError, TunnelError, msgspec.DecodeError, ValueError, RecursionError) as error:  # no list
                    self._away(error)
                await asyncio.sleep(_LOOK_S)
        finally:
            for copy in copies.values():
                copy.cancel()
            await asyncio.gather(*copies.values(), return_exceptions=True)
            await self._table.close()

    async def _look(self, topics: Topics, copies: dict[tuple[str, int], asyncio.Task[None]]) -> None:
        response = await self._table.call(self._master, TOPICS)
        self._back()
        refused: set[str] = set()
        for report in msgspec.json.decode(response.data, type=list[TopicReport]):
            if report.storage != "log":
                continue
            try:
                topic = await topics.create(report.topic, TopicSpec(partitions=len(report.partitions)))
            except (RemoteCallError, ValueError) as error:  # as after it was deleted, and created with more partitions
                refused.add(report.topic)
                if report.topic not in self._refused:
                    _logger.error("not_copied", topic=report.topic, text=str(error))
                continue
            for number, partition in enumerate(topic.partitions):
                if (topic.name, number) not in copies and isinstance(partition, StoredPartition):
                    following = self.follow(partition, topic.name, number)
                    copies[topic.name, number] = asyncio.get_running_loop().create_task(following)
        self._refused = refused

    async def follow(self, partition: StoredPartition, topic: str = "", number: int = 0) -> None:
        """Copy one partition, until cancelled. Without a topic, it is one that is served without a broker."""
        is_gone = False
        while True:
            try:
                async with self._pulls:
                    await self.pull(partition, topic, number)
            except OffsetOutOfRangeError as error:
                if error.offset < error.first:
                    _logger.warning("copy_restarted", topic=topic, partition=number, offset=error.first)
                    await partition.restart_at(error.first)
                    continue
                _logger.error(
                    "copy_is_ahead",
                    topic=topic,
                    partition=number,
                    text=f"{error}: the master has lost messages that this replica has; restore the master, or remove "
                    "the folder of the replica",
                )
                await asyncio.sleep(10 * _RETRY_S)
            except LogError:  # of our own disk: the partition reports it once, and the next try opens the log again
                await asyncio.sleep(_RETRY_S)
            except (OSError, TunnelError) as error:
                if isinstance(error, RemoteCallError) and error.code == UNKNOWN:
                    if not is_gone:
                        _logger.warning("topic_gone", topic=topic, partition=number, text=str(error))
                    is_gone = True
                    await asyncio.sleep(_GONE_S)
                    continue
                self._away(error)
                await asyncio.sleep(_RETRY_S)

    async def pull(self, partition: StoredPartition, topic: str = "", number: int = 0) -> int:
        """Copy one batch, and return the number of its messages.

        Raises OffsetOutOfRangeError, a LogError, if the master no longer has the next message; another LogError if the
        partition cannot be written here.
        """
        try:
            await partition.ready()
        except RemoteCallError as error:
            raise LogError(str(error)) from None
        log = partition.log
        response = await self._fetch(log.next_offset, topic, number)
        check_range(log.next_offset, response)
        data = response.data
        count, end = count_whole(data)
        if count:
            log.append_set(data[:end], count)
            await log.room()
        return count

    async def _fetch(self, offset: int, topic: str, number: int) -> Response:
        fields = place_fields(topic, number) | {
            "offset": str(offset),
            "bytes": str(self._batch_bytes),
            "wait_ms": str(_GATHER_MS),
            "gather": "1",
            "stay": "1",
        }
        return await self._table.call(self._master, FETCH, b"", fields)

    def _away(self, error: Exception) -> None:
        if not self._is_away:
            _logger.warning("master_away", master=self._master, text=str(error))
        self._is_away = True

    def _back(self) -> None:
        if self._is_away:
            _logger.warning("master_back", master=self._master)
        self._is_away = False
