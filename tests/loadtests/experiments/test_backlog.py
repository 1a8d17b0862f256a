"""The benchmark of backlogs: its parts in this process. The whole needs a dozen processes and is run by hand."""

import asyncio
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.experiments.backlog.__main__ import main, show
from loadtests.experiments.backlog.copies import Sent, send_log
from loadtests.experiments.backlog.run import Figures, Measures, Readers, _fill, _read
from loadtests.experiments.backlog.sides import consumer, producer, reader
from tests.messages.streams import served
from tests.support.loops import in_loop
from tunnel.messages import BrokerSettings, LogConfig, StoredPartition


def test_a_backlog_is_filled_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measures = Measures(3000)
    _fill(tmp_path, 3000, measures)
    assert measures.backlog_messages == 3000
    assert 1034 <= measures.bytes_per_message < 1040
    assert measures.capacity_messages > 0
    for cold in (True, False):
        assert min(_read(tmp_path, 60.0, cold=cold)) > 0
    measures.with_replica = Figures(reader=1234.0, reader_redirected=True, readers=[Readers(4, 4321.0, 987.0)])
    measures.copied = Sent(250.0, 0.125)
    show(measures)
    shown = capsys.readouterr().out
    for part in ("1,234", "yes", "4 readers at once", "4,321", "987", "a copy in memory", "250", "0.125"):
        assert part in shown


@pytest.mark.parametrize("zero_copy", [True, False])
def test_a_log_goes_to_a_socket_with_and_without_a_copy(
    tmp_path: Path, zero_copy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    _fill(tmp_path, 3000, Measures(3000))
    sent: list[int] = []
    sendfile = os.sendfile

    def counted(out_fd: int, in_fd: int, offset: int, count: int) -> int:
        sent.append(sendfile(out_fd, in_fd, offset, count))
        return sent[-1]

    monkeypatch.setattr(os, "sendfile", counted)
    found = send_log(tmp_path, 0.05, zero_copy=zero_copy)
    assert found.mb_per_s > 0
    assert found.cpu_ms_per_mb > 0
    assert bool(sent) == zero_copy


def test_the_numbers_of_readers_are_checked(capsys: pytest.CaptureFixture[str]) -> None:
    for wrong in ("0", "1,x", "", "1000"):
        with pytest.raises(SystemExit):
            main(["--readers", wrong])
        assert "--readers" in capsys.readouterr().err


@in_loop
async def test_producer_consumer_and_reader_work_on_a_broker(tmp_path: Path) -> None:
    settings = BrokerSettings(log=LogConfig(flush_messages=100, flush_s=0.001), behind_bytes=1_000_000)
    async with StoredPartition(tmp_path / "master", settings) as partition:
        log = partition.log
        log.append([bytes(1024)] * 11_000)
        log.flush()
        shutil.copytree(tmp_path / "master", tmp_path / "copy", ignore=shutil.ignore_patterns("lock"))
        async with (
            served(partition.handlers) as master,
            StoredPartition(tmp_path / "copy", replace(settings, master=master)) as copy,
            served(copy.handlers) as replica,
        ):
            partition.settings = replace(settings, replica=replica)
            live = asyncio.ensure_future(consumer(master, 0.5, -1))
            sent = await producer(master, 0.3, 1000.0)
            assert sent["per_second"] > 0
            assert (await live)["p99_ms"] >= 0
            assert (await producer(master, 0.1, 0.0))["per_second"] > 0
            read = await reader(master, 0.3)
            assert read["per_second"] > 0
            assert read["redirected"] == 1
            assert await consumer(master, 0.01, log.end_offset) == {"p50_ms": 0.0, "p99_ms": 0.0}
