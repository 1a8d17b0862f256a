"""Copies the topics that a master keeps on disk into this broker, with the same offsets, while this broker runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from tunnel.errors import TunnelError
from tunnel.messages.broker.log_broker import Replica
from tunnel.messages.broker.partition import StoredPartition
from tunnel.messages.broker.protocol import TOPICS, TopicReport
from tunnel.messages.broker.settings import TopicSpec
from tunnel.messages.broker.topics import Topics
from tunnel.messages.channels import ChannelTable
from tunnel.messages.errors import LogError, OffsetOutOfRangeError, RemoteCallError

__all__ = ["Replication"]

_LOOK_S = 1.0  # between two looks for new topics
_RETRY_S = 0.5
_PULLS_MAX = 200  # calls that wait at the master at once; the master allows 256 on a connection
_logger = structlog.get_logger("tunnel.broker")


class Replication:
    """Copies the topics that the master keeps on disk. Topics in memory are read at the master alone."""

    def __init__(self, topics: Topics, master: str, make_table: Callable[[], ChannelTable] = ChannelTable) -> None:
        self._topics = topics
        self._master = master
        self._table = make_table()
        self._pulls = asyncio.Semaphore(_PULLS_MAX)
        self._copies: dict[tuple[str, int], asyncio.Task[None]] = {}
        self._is_away = False

    async def run(self) -> None:
        """Copy until cancelled."""
        try:
            while True:
                try:
                    await self._look()
                except (OSError, TunnelError) as error:
                    self._away(error)
                await asyncio.sleep(_LOOK_S)
        finally:
            copies = list(self._copies.values())
            for copy in copies:
                copy.cancel()
            await asyncio.gather(*copies, return_exceptions=True)
            await self._table.close()

    def _away(self, error: Exception) -> None:
        if not self._is_away:
            _logger.warning("master_away", master=self._master, text=str(error))
        self._is_away = True

    async def _look(self) -> None:
        response = await self._table.call(self._master, TOPICS)
        if self._is_away:
            _logger.warning("master_back", master=self._master)
        self._is_away = False
        for report in msgspec.json.decode(response.data, type=list[TopicReport]):
            if report.storage != "log":
                continue
            topic = await self._topics.create(report.topic, TopicSpec(partitions=len(report.partitions)))
            for number, partition in enumerate(topic.partitions):
                if (topic.name, number) not in self._copies and isinstance(partition, StoredPartition):
                    copying = self._copy(topic.name, number, partition)
                    self._copies[topic.name, number] = asyncio.get_running_loop().create_task(copying)

    async def _copy(self, topic: str, number: int, partition: StoredPartition) -> None:
        while True:
            try:
                async with self._pulls:
                    await self._pull(topic, number, partition)
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
                self._away(error)
                await asyncio.sleep(_RETRY_S)

    async def _pull(self, topic: str, number: int, partition: StoredPartition) -> None:
        """Copy one batch. Raise LogError if the partition cannot be written here."""
        try:
            await partition.ready()
        except RemoteCallError as error:
            raise LogError(str(error)) from None
        await Replica(partition.log, self._table, self._master, topic=topic, partition=number).pull()
