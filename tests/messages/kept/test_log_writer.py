"""A log and its writer thread: what wakes it, when it flushes, and which work it avoids."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from pathlib import Path

import pytest

from tests.messages.logs import NEVER_S, config, payloads
from tests.support.loops import HANGING_S, in_loop_within
from tunnel.messages.kept.log import Log
from tunnel.messages.sets.message import encode_payloads


def until_it_waits(log: Log) -> None:
    while not log._is_waiting:
        time.sleep(0.001)
    with log._condition:  # the writer holds the lock until it waits
        pass


def until_it_is_written(log: Log) -> None:
    while log._pending:
        time.sleep(0.001)
    until_it_waits(log)


def test_of_messages_that_wait_for_their_group_only_the_first_wakes_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waking a thread costs about as much as checking 100 messages."""
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
    real, waits = threading.Condition.wait, 0

    def counted(condition: threading.Condition, timeout: float | None = None) -> bool:
        nonlocal waits
        waits += condition is log._condition
        return real(condition, timeout)

    with Log.open(tmp_path, config(flush_messages=10)) as log:
        until_it_waits(log)
        monkeypatch.setattr(threading.Condition, "wait", counted)
        for group in (1, 2):
            waits = 0
            for _ in range(9):
                log.append([b"a"])
                until_it_waits(log)
            assert waits == 1  # the first message tells the writer how long it may wait
            log.append([b"a"])
            while log.end_offset < 10 * group:
                time.sleep(0.001)
            until_it_waits(log)
        monkeypatch.undo()
        assert payloads(log) == [b"a"] * 20


def test_waiting_bytes_at_the_limit_leave_room_and_do_not_hasten_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
    with Log.open(tmp_path, config(pending_bytes_max=222)) as log:
        for _ in range(2):
            log.append([b"a"])
            log.append([b"a"])
            until_it_waits(log)
            assert (log._pending_bytes, log.has_room) == (222, True)
            assert (log._wait_s() or 0) > 1000
            log.flush()


def test_messages_that_are_added_later_do_not_put_off_the_flush(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise those of a steady stream would never be flushed."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", 0.0)
    with Log.open(tmp_path, config(flush_s=100.0)) as log:
        for now, left in ((0.0, 100.0), (60.0, 40.0), (90.0, 10.0)):  # noqa: B007
            log.append([b"a"])
            until_it_is_written(log)
            assert (log._wait_s(), log.end_offset) == (left, 0)


def test_a_group_that_was_written_in_part_waits_for_its_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", 0.0)
    with Log.open(tmp_path, config(flush_messages=10)) as log:
        log.append([b"a"] * 6)
        log.flush()
        for _ in range(5):
            until_it_is_written(log)
            assert log.end_offset == 6
            log.append([b"a"] * 2)
        while log.end_offset < 16:
            time.sleep(0.001)


@in_loop_within(HANGING_S)
async def test_only_a_caller_with_now_hastens_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
    with Log.open(tmp_path, config()) as log:
        log.append([b"a"])
        until_it_waits(log)
        patient = asyncio.ensure_future(log.until_flushed(1))
        await asyncio.sleep(0)
        assert (log.end_offset, log._flush_to) == (0, 0)
        assert (log._wait_s() or 0) > 1000
        await log.until_flushed(1, now=True)
        await patient


@in_loop_within(HANGING_S)
async def test_the_flush_may_end_just_when_a_caller_begins_to_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing would wake a caller that then began to wait."""
    get_loop = asyncio.get_running_loop

    def get_loop_late() -> asyncio.AbstractEventLoop:
        log.flush()
        return get_loop()

    with Log.open(tmp_path, config()) as log:
        log.append([b"a"])
        with monkeypatch.context() as patched:
            patched.setattr(asyncio, "get_running_loop", get_loop_late)
            await log.until_flushed(1)
        assert log.end_offset == 1


def test_opening_a_log_begins_no_segment(tmp_path: Path) -> None:
    for number in range(3):
        with Log.open(tmp_path, config()) as log:
            assert payloads(log) == [b"a"] * number
            log.append([b"a"])
    assert [path.name for path in tmp_path.glob("*.log")] == [f"{0:020d}.log"]


def test_a_reader_at_the_end_gets_an_empty_set(tmp_path: Path) -> None:
    with Log.open(tmp_path, config()) as log:
        assert list(log.read(0)) == []
        log.append([b"a"])
        log.flush()
        assert list(log.read(1)) == []


def test_a_segment_ends_when_it_has_reached_its_size(tmp_path: Path) -> None:
    for size, count in ((11, 2), (12, 1)):
        with Log.open(tmp_path / str(size), config(segment_bytes=size)) as log:
            log.append([b"a"])
        assert len(list((tmp_path / str(size)).glob("*.log"))) == count


def test_a_writer_that_waits_holds_nothing_that_it_has_written(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", config()) as log:
        data = encode_payloads([b"a"])
        before = sys.getrefcount(data)
        log.append_set(data, 1)
        log.flush()
        until_it_waits(log)
        assert sys.getrefcount(data) == before


def test_small_sets_that_wait_to_be_written_count_with_their_objects(tmp_path: Path) -> None:
    with (
        Log.open(tmp_path / "log", config(pending_bytes_max=20_000)) as log,
        log._condition,
    ):  # the writer takes nothing
        for _ in range(200):
            log.append_set(encode_payloads([b""]), 1)
        assert not log.has_room
