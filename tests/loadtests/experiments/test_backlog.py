"""The benchmark of backlogs: its parts in this process. The whole needs a dozen processes and is run by hand."""

import asyncio
from pathlib import Path

import pytest

from loadtests.experiments.backlog.__main__ import show
from loadtests.experiments.backlog.run import Figures, Measures, _fill, _read
from loadtests.experiments.backlog.sides import consumer, producer, reader
from tests.messages.streams import served
from tests.support.loops import in_loop
from tunnel.messages import BrokerConfig, Log, LogBroker, LogConfig


def test_a_backlog_is_filled_read_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    measures = Measures(3000)
    _fill(tmp_path, 3000, measures)
    assert measures.backlog_messages == 3000
    assert 1034 <= measures.bytes_per_message < 1040
    assert measures.capacity_messages > 0
    for cold in (True, False):
        assert min(_read(tmp_path, 60.0, cold=cold)) > 0
    measures.with_replica = Figures(reader=1234.0, reader_redirected=True)
    show(measures)
    shown = capsys.readouterr().out
    assert "1,234" in shown
    assert "yes" in shown


@in_loop
async def test_producer_consumer_and_reader_work_on_a_broker(tmp_path: Path) -> None:
    with Log.open(tmp_path / "master", LogConfig(flush_messages=100, flush_s=0.001)) as log:
        log.append([bytes(1024)] * 11_000)
        log.flush()
        handlers = LogBroker(log).handlers
        async with served(handlers) as master, served(LogBroker(log, BrokerConfig(master=master)).handlers) as replica:
            handlers.update(LogBroker(log, BrokerConfig(replica=replica)).handlers)
            live = asyncio.ensure_future(consumer(master, 0.5, -1))
            sent = await producer(master, 0.3, 1000.0)
            assert sent["per_second"] > 0
            assert (await live)["p99_ms"] >= 0
            assert (await producer(master, 0.1, 0.0))["per_second"] > 0
            read = await reader(master, 0.3)
            assert read["per_second"] > 0
            assert read["redirected"] == 1
            assert await consumer(master, 0.01, log.end_offset) == {"p50_ms": 0.0, "p99_ms": 0.0}
