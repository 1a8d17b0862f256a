"""The log: group flush, visibility to readers, rolling, retention, recovery and failure."""

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from tests.messages.logs import NEVER_S, config, payloads
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.messages.errors import LogError, OffsetOutOfRangeError
from tunnel.messages.kept.log import Log
from tunnel.messages.kept.segments import Segment
from tunnel.messages.sets.file_sets import FileMessageSet
from tunnel.messages.sets.message import encode_payloads


def test_appended_messages_can_be_read_after_the_flush(tmp_path: Path) -> None:
    with Log.open(tmp_path / "log", config()) as log:
        assert log.append([b"a", b"b"]) == 0
        assert log.append_set(encode_payloads([b"c"]), 1) == 2
        assert log.append([]) == 3
        assert (log.next_offset, log.end_offset) == (3, 0)
        assert payloads(log) == []
        log.flush()
        assert (log.first_offset, log.end_offset, log.size_bytes) == (0, 3, 33)
        assert payloads(log) == [b"a", b"b", b"c"]
        assert payloads(log, 2) == [b"c"]
        for offset in (-1, 4):
            with pytest.raises(OffsetOutOfRangeError, match="0 to 3") as caught:
                log.read(offset)
            assert (caught.value.offset, caught.value.first, caught.value.end) == (offset, 0, 3)
        log.append([b"d"])
    with Log.open(tmp_path / "log") as log:
        assert payloads(log) == [b"a", b"b", b"c", b"d"]
        assert log.append([b"e"]) == 4
        with pytest.raises(LogError, match="another process"):
            Log.open(tmp_path / "log")
    with pytest.raises(LogError, match="log is closed: open the log again to append"):
        log.append([b"f"])
    log.close()


@in_loop
async def test_groups_are_flushed_by_number_and_by_time(tmp_path: Path) -> None:
    with Log.open(tmp_path / "number", config(flush_messages=3)) as log:
        first = asyncio.ensure_future(log.until_flushed(1))
        log.append([b"a", b"b"])
        await asyncio.sleep(0)
        log.append([b"c"])
        await first
        assert log.end_offset == 3
        await log.until_flushed(2)
        await log.until_flushed(3)
    with Log.open(tmp_path / "time", config(flush_s=0.01)) as log:
        log.append([b"a"])
        await log.until_flushed(1)
    with Log.open(tmp_path / "now", config()) as log:
        log.append([b"a"])
        await log.until_flushed(1, now=True)
        waiting = asyncio.ensure_future(log.until_flushed(2))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert log._waiters == []


@in_loop
async def test_many_appends_cost_few_writes_and_a_reader_that_waits_is_told_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
    real, writes = os.writev, 0

    def counted(descriptor: int, buffers: list[memoryview]) -> int:
        nonlocal writes
        writes += 1
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", counted)
    with Log.open(tmp_path, config()) as log:
        for number in range(200):
            log.append([b"%d" % number])
        await log.until_flushed(200, now=True)
        assert writes == 1
        reader = asyncio.ensure_future(log.until_flushed(201, now=True))
        await asyncio.sleep(0)
        assert not reader.done()
        log.append([b"200"])
        await reader
        assert (log.end_offset, writes) == (201, 2)
        again = asyncio.ensure_future(log.until_flushed(203, now=True))
        await asyncio.sleep(0)
        log.append([b"201"])
        log.flush()  # which must not forget the reader
        log.append([b"202"])
        await again
        assert payloads(log)[200:] == [b"200", b"201", b"202"]


def test_appended_messages_are_written_before_the_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that is killed then loses little, although it had confirmed none of these messages."""
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_BYTES", 20)
    with Log.open(tmp_path, config()) as log:
        log.append([b"a"])
        while (tmp_path / f"{0:020d}.log").stat().st_size < 11:  # after _WRITE_S
            threading.Event().wait(0.001)
        monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
        log.append([b"a"])
        log.append([b"a"])
        while (tmp_path / f"{0:020d}.log").stat().st_size < 33:  # they are more than _WRITE_BYTES
            threading.Event().wait(0.001)
        assert log.end_offset == 0


def test_a_reader_that_follows_finds_each_end_without_reading_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(tmp_path, config()) as log:
        for number in range(100):
            log.append([b"%d" % number] * 3)
            log.flush()
        with monkeypatch.context() as patched:
            patched.setattr(FileMessageSet, "search", lambda *_: pytest.fail("it read the file"))
            found = [log.read(offset) for offset in range(120, 300, 3)]
        assert [next(iter(each.payloads())) for each in found] == [b"%d" % number for number in range(40, 100)]
        assert next(iter(log.read(3).payloads())) == b"1"
        assert next(iter(log.read(298).payloads())) == b"99"


def test_the_flush_and_not_the_write_makes_messages_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entered, gate = threading.Event(), threading.Event()
    real = os.fdatasync

    def slow(descriptor: int) -> None:
        entered.set()
        assert gate.wait(60)
        real(descriptor)

    monkeypatch.setattr(os, "fdatasync", slow)
    with Log.open(tmp_path, config(flush_messages=1)) as log:
        log.append([b"a"])
        assert entered.wait(60)
        assert log.end_offset == 0
        log.append([b"b"])
        gate.set()
        log.flush()
        assert log.end_offset == 2


def test_segments_roll_and_old_ones_are_removed(tmp_path: Path) -> None:
    with Log.open(tmp_path, config(segment_bytes=100, flush_messages=1)) as log:
        for number in range(10):
            log.append([b"%d" % number * 50])
            log.flush()
    # A segment rolls after the flush of its records was reported; closing the log waits for that.
    assert len(list(tmp_path.glob("*.log"))) == 6
    with Log.open(tmp_path) as log:
        assert payloads(log) == [b"%d" % number * 50 for number in range(10)]
        log.trim(5)
        assert log.first_offset == 4
        assert payloads(log, 4) == [b"%d" % number * 50 for number in range(4, 10)]
        with pytest.raises(OffsetOutOfRangeError, match="4 to 10"):
            log.read(3)
        log.trim(3)
        log.trim(1000)
        assert log.first_offset == 10
        assert len(list(tmp_path.glob("*"))) == 2  # the last segment and the lock
    with Log.open(tmp_path) as log:
        assert (log.first_offset, log.end_offset) == (10, 10)


def test_a_message_whose_segment_was_removed_is_an_offset_out_of_range(tmp_path: Path) -> None:
    with Log.open(tmp_path, config(segment_bytes=10)) as log:
        log.append([b"a" * 10])
        log.flush()
        log.append([b"b"])
        log.flush()
        (tmp_path / f"{0:020d}.log").unlink()
        with pytest.raises(OffsetOutOfRangeError) as caught:
            log.read(0)
        assert (caught.value.offset, caught.value.first, caught.value.end) == (0, 0, 2)


def test_a_torn_tail_is_cut_off(tmp_path: Path) -> None:
    with Log.open(tmp_path) as log:
        log.append([b"a", b"b"])
    with open(tmp_path / f"{0:020d}.log", "ab") as file:
        file.write(b"torn")
    with Log.open(tmp_path) as log:
        assert (log.cut_bytes, log.end_offset) == (4, 2)
        log.append([b"c"])
        log.flush()
        assert payloads(log) == [b"a", b"b", b"c"]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    with Log.open(tmp_path, config(segment_bytes=10)) as log:
        for number in range(3):
            log.append([b"%d" % number * 20])
            log.flush()
    (tmp_path / f"{1:020d}.index").unlink()
    (tmp_path / f"{1:020d}.log").write_bytes(bytes(30))
    with pytest.raises(LogError, match="damaged"):
        Log.open(tmp_path)
    (tmp_path / f"{1:020d}.log").unlink()
    with pytest.raises(LogError, match="missing"):
        Log.open(tmp_path)


@pytest.mark.parametrize("name", ["copy.log", "5.log", "-0000000000000000005.log", "\u0660" * 20 + ".log"])
def test_a_file_that_is_no_segment_is_named(tmp_path: Path, name: str) -> None:
    with Log.open(tmp_path) as log:
        log.append([b"a"])
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(LogError, match=f"^{tmp_path / name} is no segment of a log: move it away$"):
        Log.open(tmp_path)
    (tmp_path / name).rename(tmp_path / "copy")
    with Log.open(tmp_path) as log:
        assert payloads(log) == [b"a"]


@in_loop
async def test_a_disk_that_fails_ends_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path, config(flush_messages=1, pending_bytes_max=10))

    def full(descriptor: int, buffers: object) -> int:
        raise OSError(28, "No space left on device")

    log.append([b"kept"])
    await log.until_flushed(1)
    monkeypatch.setattr(os, "writev", full)
    log.append([b"lost"])
    with pytest.raises(LogError, match="mend this"):
        await log.until_flushed(2)
    for call in (log.flush, lambda: log.append([b"x"])):
        with pytest.raises(LogError, match="No space"):
            call()
    with pytest.raises(LogError):
        await log.until_flushed(2)
    log.close()
    monkeypatch.undo()
    with Log.open(tmp_path) as again:
        assert payloads(again) == [b"kept"]


@in_loop_within(HANGING_S)
async def test_a_file_that_cannot_be_opened_ends_the_log_and_lets_nobody_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Log.open(tmp_path).close()

    def fail(segment: Segment) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(Segment, "writer", fail)
    log = Log.open(tmp_path)
    log._thread.join()
    with pytest.raises(LogError, match="Too many open files; mend this"):
        log.append([b"a"])
    with pytest.raises(LogError, match="Too many open files"):
        await log.until_flushed(1)
    log.close()


@in_loop
async def test_short_writes_are_completed_and_room_is_awaited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, gate = os.writev, threading.Event()

    def short(descriptor: int, buffers: list[memoryview]) -> int:
        assert gate.wait(60)
        return real(descriptor, [buffers[0][:7]])

    monkeypatch.setattr(os, "writev", short)
    with Log.open(tmp_path, config(flush_messages=1, pending_bytes_max=100)) as log:
        sent = [b"%d" % number * 10 for number in range(30)]
        log.append(sent[:1])
        for payload in sent[1:]:
            log.append([payload])
        assert not log.has_room
        room = asyncio.ensure_future(log.room())
        await asyncio.sleep(0)
        gate.set()
        await room
        await log.room()
        log.flush()
        assert payloads(log) == sent


async def fill(log: Log) -> None:
    """Append a message, which the held writer thread takes, and another one, which then waits and fills the room."""
    log.append([bytes(50)])
    while not log.has_room:  # noqa: ASYNC110
        await asyncio.sleep(0)
    log.append([bytes(50)])


@in_loop_within(HANGING_S)
async def test_the_writer_may_make_room_just_when_a_caller_begins_to_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer wakes waiting callers when it takes what is pending. It would never wake a caller that then began to
    wait."""
    gate = threading.Event()
    real, get_loop = os.writev, asyncio.get_running_loop

    def held(descriptor: int, buffers: list[memoryview]) -> int:
        assert gate.wait(HANGING_S)
        return real(descriptor, buffers)

    def get_loop_late() -> asyncio.AbstractEventLoop:
        gate.set()
        while not log.has_room:
            time.sleep(0)
        return get_loop()

    monkeypatch.setattr(os, "writev", held)
    with Log.open(tmp_path, config(pending_bytes_max=10)) as log:
        await fill(log)
        assert not log.has_room
        monkeypatch.setattr(asyncio, "get_running_loop", get_loop_late)
        await log.room()
        monkeypatch.undo()


@pytest.mark.parametrize("is_closed", [True, False], ids=["its loop has ended", "its loop goes on"])
def test_a_caller_that_no_longer_waits_for_room_does_not_harm_the_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_closed: bool
) -> None:
    gate = threading.Event()
    real = os.writev

    def held(descriptor: int, buffers: list[memoryview]) -> int:
        assert gate.wait(HANGING_S)
        return real(descriptor, buffers)

    monkeypatch.setattr(os, "writev", held)

    @in_loop_within(HANGING_S)
    async def give_up(log: Log) -> None:
        await fill(log)
        waiting = asyncio.ensure_future(log.room())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        if not is_closed:
            gate.set()
            await log.until_flushed(2, now=True)
            await asyncio.sleep(0)

    with Log.open(tmp_path, config(pending_bytes_max=10)) as log:
        give_up(log)
        gate.set()
        log.flush()
        assert payloads(log) == [bytes(50)] * 2


@in_loop
async def test_waiting_for_room_raises_when_the_disk_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()

    def fail(descriptor: int, buffers: object) -> int:
        assert gate.wait(60)
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "writev", fail)
    with Log.open(tmp_path, config(pending_bytes_max=10)) as log:
        await fill(log)
        room = asyncio.ensure_future(log.room())
        await asyncio.sleep(0)
        gate.set()
        with pytest.raises(LogError, match="Input/output"):
            await room
        with pytest.raises(LogError, match="Input/output"):
            await log.room()


def test_no_other_user_can_read_the_files_of_a_log(tmp_path: Path) -> None:
    with Log.open(tmp_path, config(segment_bytes=10)) as log:
        log.append([bytes(10)])
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.iterdir()}
    assert set(modes) == {"lock", f"{0:020d}.log", f"{0:020d}.index", f"{1:020d}.log"}
    assert set(modes.values()) == {0o600}


def test_a_log_that_is_closed_twice_closes_nothing_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log.open(tmp_path)
    log.close()
    monkeypatch.setattr(os, "close", lambda descriptor: pytest.fail(f"it closed {descriptor}"))
    log.close()


def test_messages_that_were_written_and_not_flushed_can_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their senders got an error, and may have sent them again somewhere else."""
    log = Log.open(tmp_path, config())
    log.append([b"kept"])
    log.flush()

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    log.append([b"refused"])
    with pytest.raises(LogError, match=r"cannot be written: .* mend this"):
        log.flush()
    log.close()
    monkeypatch.undo()
    assert (tmp_path / f"{0:020d}.log").stat().st_size == 14 + 17
    log.discard_unflushed()
    with Log.open(tmp_path) as again:
        assert (again.cut_bytes, payloads(again)) == (0, [b"kept"])


def test_the_operator_reads_in_the_journal_what_became_of_a_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Log.open(tmp_path) as log:
        log.append([b"a", b"b"])
    (tmp_path / f"{0:020d}.log").write_bytes((tmp_path / f"{0:020d}.log").read_bytes() + b"torn")

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with capture_logs() as lines:
        log = Log.open(tmp_path, config())
        monkeypatch.setattr(os, "fdatasync", fail)
        log.append([b"c"])
        log.close()
        monkeypatch.undo()
        Log.open(tmp_path / "other").close()
    cut, failed = lines
    assert cut == {
        "event": "cut the torn end of a log",
        "log_level": "warning",
        "directory": str(tmp_path),
        "bytes": 4,
        "end": 2,
    }
    assert (failed["event"], failed["log_level"], failed["directory"]) == ("a log failed", "error", str(tmp_path))
    assert failed["error"] == str(log.error)


def test_a_thread_list_names_the_log_and_an_open_log_does_not_keep_a_process_alive(tmp_path: Path) -> None:
    with Log.open(tmp_path / "orders") as log:
        assert log._thread.name == "tunnel-log orders"
        assert log._thread.daemon


def test_nothing_is_flushed_and_no_segment_begins_before_it_is_due(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.messages.kept.log._WRITE_S", NEVER_S)
    with Log.open(tmp_path, config(flush_messages=3)) as log:
        log.append([b"a"])
        log.append([b"b"])
        assert log._wait_s() > 1000  # type: ignore[operator]
        assert log.end_offset == 0
        log.flush()
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_messages_are_found_in_a_segment_that_was_written_in_many_sets(tmp_path: Path) -> None:
    sent = [b"%d:" % number + bytes(1000) for number in range(150)]
    with Log.open(tmp_path, config(segment_bytes=100_000)) as log:
        for number in range(0, 50, 2):
            log.append(sent[number : number + 2])
        log.append(sent[50:100])
        log.flush()
        assert len(log._segments[-1]._offsets) > 5 or log.first_offset < log._segments[-1].base
        for number in range(100, 150):
            log.append([sent[number]])
        log.flush()
        for number in range(150):
            assert next(iter(log.read(number, 1).payloads())) == sent[number]
    with Log.open(tmp_path) as log:
        assert [next(iter(log.read(number, 1).payloads())) for number in range(150)] == sent


def test_a_large_set_gets_index_entries_inside(tmp_path: Path) -> None:
    with Log.open(tmp_path, config()) as log:
        log.append([bytes(1000)] * 100)
        log.flush()
        assert len(log._segments[-1]._offsets) == 6
