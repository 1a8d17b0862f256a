"""The writer of trace files: the order and the files of its records, and the records that it drops and counts."""

import errno
import os
import threading
import time
from pathlib import Path
from typing import Any, BinaryIO

import pytest
import zstandard

from tests.traces.rig import WAIT_S, read_all, record
from tunnel.traces import TraceEvent, TraceLevel, TraceRecord, level_of
from tunnel.traces.jsonl import encode_record, read_trace
from tunnel.traces.salvage import SUFFIX, examine, is_being_written, salvage_directory
from tunnel.traces.writer import FLUSH_RECORDS, TraceWriter


def held(writer: TraceWriter, monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """An event for which the writer's thread waits before each flush."""
    gate = threading.Event()
    flush = writer._flush

    def wait_and_flush() -> None:
        gate.wait(WAIT_S)
        flush()

    monkeypatch.setattr(writer, "_flush", wait_and_flush)
    return gate


def test_records_are_read_in_order_with_writer_and_number(tmp_path: Path) -> None:
    count = 2 * FLUSH_RECORDS + 10
    with TraceWriter(tmp_path, name="client") as writer:
        for number in range(count):
            writer(record(number))
    records = read_all(tmp_path)
    assert [each.time_us for each in records] == list(range(count))
    assert [each.number for each in records] == list(range(1, count + 1))
    assert {each.writer for each in records} == {writer.writer}
    assert writer.writer.startswith(f"client-{os.getpid()}-")
    assert (writer.written, writer.records_dropped, writer.failure) == (count, 0, "")


def test_a_frame_holds_at_most_one_flush(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path) as writer:
        gate = held(writer, monkeypatch)
        for number in range(2 * FLUSH_RECORDS + 1):
            writer(record(number))
        gate.set()
    (file,) = tmp_path.iterdir()
    findings, parts = examine(file)
    assert findings.is_whole
    assert max(part.count(b"\n") for part in parts) == FLUSH_RECORDS
    assert sum(part.count(b"\n") for part in parts) == 2 * FLUSH_RECORDS + 1


def test_a_file_gets_its_final_name_when_it_is_complete(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "made" / "here")
    assert [path.name[0] for path in (tmp_path / "made" / "here").iterdir()] == ["_"]
    writer(record(1))
    writer.close()
    writer.close()
    (file,) = (tmp_path / "made" / "here").iterdir()
    assert file.name == f"{writer.writer}-00001{SUFFIX}"


def test_a_writer_without_records_leaves_no_file(tmp_path: Path) -> None:
    TraceWriter(tmp_path).close()
    assert list(tmp_path.iterdir()) == []


def test_a_full_queue_drops_records_and_counts_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path, queue_records=100)
    gate = held(writer, monkeypatch)
    for number in range(150):
        writer(record(number))
    gate.set()
    writer.close()
    records = read_all(tmp_path)
    assert [each.time_us for each in records[:-1]] == list(range(100))
    assert (records[-1].event, records[-1].count) == (TraceEvent.TRACE_DROPPED, 50)
    assert [each.number for each in records] == [*range(1, 101), 151]  # gaps in the numbers show the dropped records
    assert writer.records_dropped == 50


def test_records_after_closing_are_dropped(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path)
    writer(record(1))
    writer.close()
    writer(record(2))
    assert [each.time_us for each in read_all(tmp_path)] == [1]
    assert (writer.written, writer.records_dropped) == (1, 1)


def test_only_records_of_callers_count_as_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records that the writer itself adds do not count: the wall clock, and the number of dropped records."""
    writer = TraceWriter(tmp_path, queue_records=100, reads_clock=True)
    gate = held(writer, monkeypatch)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(writer._folder, "takes", full)
    for number in range(150):
        writer(record(number))
    assert writer.records_dropped == 50  # at once, even if the disk hangs
    gate.set()
    writer.close()
    assert (writer.written, writer.records_dropped) == (0, 150)


def test_files_are_finished_by_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with TraceWriter(tmp_path, file_bytes=1) as writer:
        gate = held(writer, monkeypatch)
        for number in range(2 * FLUSH_RECORDS):
            writer(record(number))
        gate.set()
    assert sorted(path.name for path in tmp_path.iterdir()) == [f"{writer.writer}-0000{n}{SUFFIX}" for n in (1, 2)]
    assert [each.number for each in read_all(tmp_path)] == list(range(1, 2 * FLUSH_RECORDS + 1))


def test_files_are_finished_by_age(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    finished = threading.Event()
    writer = TraceWriter(tmp_path, file_s=0.0)
    finish = writer._finish

    def finish_and_tell() -> None:
        finish()
        if list(tmp_path.glob(f"[!_]*{SUFFIX}")):
            finished.set()

    monkeypatch.setattr(writer, "_finish", finish_and_tell)
    writer(record(1))
    assert finished.wait(WAIT_S)  # although the writer is not closed
    writer(record(2))
    writer.close()
    assert [each.number for each in read_all(tmp_path)] == [1, 2]


def test_a_full_disk_loses_only_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path)
    gate = held(writer, monkeypatch)
    write = writer._write
    failures = [OSError(errno.ENOSPC, "No space left on device")]

    def write_or_fail(records: list[TraceRecord], refused: int) -> None:
        if failures:
            writer._number += len(records)
            raise failures.pop()
        write(records, refused)

    monkeypatch.setattr(writer, "_write", write_or_fail)
    for number in range(FLUSH_RECORDS):
        writer(record(number))
    seen = []
    failed = writer._failed

    def failed_and_continue(count: int, error: OSError) -> None:
        failed(count, error)
        seen.append(writer.failure)
        writer(record(9))

    monkeypatch.setattr(writer, "_failed", failed_and_continue)
    gate.set()
    while not seen:
        assert writer._thread.is_alive()
        writer._wake.set()
    writer.close()
    assert seen == [f"{tmp_path}: No space left on device"]
    records = [each for each in read_all(tmp_path) if each.time_us == 9]
    assert [each.number for each in records] == [FLUSH_RECORDS + 1]
    assert (writer.records_dropped, writer.failure) == (FLUSH_RECORDS, "")


class FullDisk:
    """A file of which the disk takes only the beginning of what is written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    def write(self, data: bytes) -> int:
        self._file.write(data[: len(data) // 2])
        self._file.flush()
        raise OSError(errno.ENOSPC, "No space left on device")

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


def test_after_a_full_disk_it_goes_on_in_another_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A frame after half a frame would be lost, too, for readers that stop at the damage."""
    with TraceWriter(tmp_path) as writer:
        gate = held(writer, monkeypatch)
        file = writer._file
        assert file is not None
        file.write(zstandard.ZstdCompressor().compress(encode_record(record(0)) + b"\n"))
        writer._file = FullDisk(file)  # type: ignore[assignment]
        for number in range(FLUSH_RECORDS + 1):
            writer(record(number))
        gate.set()
    torn, whole = sorted(tmp_path.iterdir(), key=lambda path: path.name[0] != "_")
    assert [torn.name, whole.name] == [f"_{writer.writer}-00001{SUFFIX}", f"{writer.writer}-00002{SUFFIX}"]
    assert [each.time_us for each in read_trace(torn)] == [0]
    assert examine(torn)[0].is_truncated
    assert examine(whole)[0].is_whole
    assert [each.number for each in read_trace(whole)] == [FLUSH_RECORDS + 1]
    assert (writer.records_dropped, writer.written, writer.failure) == (FLUSH_RECORDS, 1, "")


def test_a_file_that_cannot_be_finished_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    writer = TraceWriter(tmp_path)
    writer(record(1))
    monkeypatch.setattr(os, "fsync", refuse)
    writer.close()
    assert "Input/output error" in writer.failure
    assert writer.records_dropped == 0  # they are in the file, which the next process salvages
    assert [path.name[0] for path in tmp_path.iterdir()] == ["_"]


def test_a_directory_that_cannot_be_written_is_an_error_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="file"):
        TraceWriter(tmp_path / "file")


def test_leftovers_are_salvaged_at_the_start(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, name="dead") as dead:
        dead(record(1))
    (file,) = tmp_path.iterdir()
    left = tmp_path / f"_dead-{2**30}-aa-00001{SUFFIX}"  # from a process that cannot exist
    left.write_bytes(file.read_bytes() * 2 + b"\x28\xb5\x2f\xfd garbage")
    with TraceWriter(tmp_path):
        *records, died = read_trace(tmp_path / left.name[1:])
        assert [each.time_us for each in records] == [1, 1]
        assert not left.exists()
    told = TraceRecord(time_us=1, node=dead.writer, event=TraceEvent.PROCESS_DIED, writer=dead.writer, number=2)
    assert died == told


def test_a_file_is_locked_while_it_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In another container, the PID in its name says nothing."""
    monkeypatch.setattr("tunnel.traces.salvage._is_alive", lambda name: False)
    with TraceWriter(tmp_path):
        (path,) = tmp_path.iterdir()
        assert is_being_written(path)
        assert salvage_directory(tmp_path) == []
    assert not is_being_written(path)


def test_several_threads_may_write(tmp_path: Path) -> None:
    with TraceWriter(tmp_path) as writer:

        def write() -> None:
            for number in range(5000):
                writer(record(number))

        threads = [threading.Thread(target=write) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert [each.number for each in read_all(tmp_path)] == list(range(1, 20_001))


def test_a_writer_has_the_level_that_was_asked_for(tmp_path: Path) -> None:
    with TraceWriter(tmp_path, level=TraceLevel.CONNECTION) as writer:
        assert level_of(writer) is TraceLevel.CONNECTION
    assert level_of(print) is TraceLevel.PACKET
    assert level_of(None) is TraceLevel.OFF


def test_each_file_begins_with_the_wall_clock_if_it_is_wanted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    with TraceWriter(tmp_path, file_bytes=1, reads_clock=True) as writer:
        gate = held(writer, monkeypatch)
        for number in range(FLUSH_RECORDS + 1):
            writer(record(number))
        gate.set()
    after_us = (time.time_ns() - time.monotonic_ns()) // 1_000
    records = read_all(tmp_path)
    assert [each.number for each in records] == list(range(1, FLUSH_RECORDS + 4))
    clocks = [each for each in records if each.event == TraceEvent.CLOCK_READ]
    assert [each.number for each in clocks] == [1, FLUSH_RECORDS + 2]
    for clock in clocks:
        assert min(before_us, after_us) - 1_000 <= clock.wall_us - clock.time_us <= max(before_us, after_us) + 1_000
