"""How a replica follows its master: in batches, and without more flushes at the master."""

import asyncio
import os
from pathlib import Path
from typing import cast

import pytest

from tests.messages.broker.rig import DirectTable
from tests.support.loops import in_loop
from tunnel.messages.broker import LogBroker, Replica, log_broker
from tunnel.messages.calls import Response
from tunnel.messages.channels import ChannelTable
from tunnel.messages.log import Log, LogConfig
from tunnel.messages.segments import INDEX_BYTES

SOON = LogConfig(flush_messages=1, flush_s=0.0)


class Followed:
    """A table for a replica. It counts the fetches, and keeps the sizes of the answers."""

    def __init__(self, log: Log) -> None:
        self._table = DirectTable(LogBroker(log))
        self.asked = 0
        self.sizes: list[int] = []

    async def call(self, address: str, code: int, body: bytes, fields: dict[str, str]) -> Response:
        self.asked += 1
        answer = await self._table.call(address, code, body, fields)
        self.sizes.append(len(answer.data))
        return answer


NEVER = LogConfig(flush_messages=1_000_000, flush_s=3600.0)


def counted_syncs(monkeypatch: pytest.MonkeyPatch, directory: Path) -> list[str]:
    """Return a list that gets an entry for each flush of a log in this directory."""
    found: list[str] = []
    real = os.fdatasync

    def fdatasync(descriptor: int) -> None:
        path = os.readlink(f"/proc/self/fd/{descriptor}")
        if path.startswith(str(directory)):
            found.append(path)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    return found


@in_loop
async def test_a_replica_that_follows_does_not_make_its_master_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The master flushes as its settings say. Others get nothing that is not on its disk yet."""
    syncs = counted_syncs(monkeypatch, tmp_path / "master")
    with Log.open(tmp_path / "master", NEVER) as log, Log.open(tmp_path / "copy", SOON) as copy:
        table = Followed(log)
        async with Replica(copy, cast("ChannelTable", table), "master:1"):
            while not table.asked:  # noqa: ASYNC110
                await asyncio.sleep(0)
            for number in range(300):
                log.append([b"%d" % number])
                await asyncio.sleep(0)
            await asyncio.sleep(0.1)  # as long as an early flush may take
            assert (syncs, copy.next_offset) == ([], 0)
            log.flush()
            await copy.flushed(300)
        assert len(syncs) == 1
        assert list(copy.read(0).payloads()) == [b"%d" % number for number in range(300)]


@in_loop
async def test_a_replica_takes_batches_though_its_master_flushes_each_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_broker, "_GATHER_MS", 60_000)
    with Log.open(tmp_path / "master", SOON) as log, Log.open(tmp_path / "copy", SOON) as copy:
        table = Followed(log)
        async with Replica(copy, cast("ChannelTable", table), "master:1", batch_bytes=50_000):
            while copy.next_offset < 150:
                log.append([bytes(990)])
                await log.flushed(log.next_offset, now=True)
                await asyncio.sleep(0)
        assert min(table.sizes) > 50_000 - INDEX_BYTES - 1000
        assert len(table.sizes) <= copy.next_offset / 33


@in_loop
async def test_a_replica_gets_what_there_is_when_a_batch_takes_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_broker, "_GATHER_MS", 1)
    with Log.open(tmp_path / "master", SOON) as log, Log.open(tmp_path / "copy", SOON) as copy:
        log.append([b"a"])
        async with Replica(copy, cast("ChannelTable", Followed(log)), "master:1"):
            await copy.flushed(1)
