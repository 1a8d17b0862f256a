"""The steps of a writer's thread, one by one: when files end, and what is dropped, told and synced."""

import errno
import os
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.traces.rig import WAIT_S, read_all, record
from tunnel.traces import TraceEvent
from tunnel.traces.jsonl import encode_record, read_trace
from tunnel.traces.salvage import SUFFIX, examine
from tunnel.traces.writer import FLUSH_RECORDS, TraceWriter

Still = Callable[..., TraceWriter]


@pytest.fixture
def still() -> Iterator[Still]:
    """Makes writers without a thread: the test calls what the thread would."""
    writers = []

    def make(directory: Path, **options: Any) -> TraceWriter:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(threading.Thread, "start", lambda thread: None)
            writers.append(TraceWriter(directory, **options))
        return writers[-1]

    yield make
    for writer in writers:
        writer._finish()


def names(directory: Path) -> list[str]:
    return sorted(path.name.rpartition("-")[2].removesuffix(SUFFIX) for path in directory.iterdir())


def test_each_flush_is_a_frame_with_a_checksum_and_its_size(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    for number in (1, 2):
        writer(record(number))
        writer._flush()
    writer._flush()  # nothing waits: no frame
    writer._finish()
    (file,) = tmp_path.iterdir()
    findings, parts = examine(file)
    assert findings.frames == 2
    parameters = zstandard.get_frame_parameters(file.read_bytes())
    assert (parameters.has_checksum, parameters.content_size) == (True, len(parts[0]))
    assert writer.written == 2


def test_a_new_writer_has_written_and_lost_nothing(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    assert (writer.written, writer.records_dropped, writer.failure, writer.removed_files) == (0, 0, "", 0)


def test_the_folder_counts_the_files_of_a_writer_without_a_name(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    assert re.fullmatch(rf"trace-{os.getpid()}-[0-9a-f]{{8}}", writer.writer)
    writer(record(1))
    writer._flush()
    writer._folder.look()
    (file,) = tmp_path.iterdir()
    assert writer._folder._held_bytes == file.stat().st_size > 0


def test_a_process_ends_although_its_writer_was_not_closed(still: Still, tmp_path: Path) -> None:
    thread = still(tmp_path)._thread
    assert (thread.daemon, thread.name) == (True, "trace-writer")


def test_the_thread_is_woken_once_when_more_than_a_flush_waits(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    for _ in range(FLUSH_RECORDS):
        writer(record(1))
    assert not writer._wake.is_set()
    writer(record(1))
    assert writer._wake.is_set()
    writer._wake.clear()
    writer(record(1))
    assert not writer._wake.is_set()


class Wakes:
    """The event of a writer, with a clock: each wait takes a second, and after `count` waits the writer is closed."""

    def __init__(self, writer: TraceWriter, count: int, each: Callable[[], None]) -> None:
        self._writer = writer
        self._count = count
        self._each = each
        self.now_s = 100.0
        self.waits: list[float] = []
        self.cleared = 0

    def wait(self, timeout_s: float) -> None:
        assert self.cleared == len(self.waits)
        self.waits.append(timeout_s)
        self.now_s += 1
        self._each()
        self._writer._closed = len(self.waits) == self._count

    def clear(self) -> None:
        self.cleared += 1

    def set(self) -> None:
        return

    def monotonic(self) -> float:
        return self.now_s

    def time_ns(self) -> int:
        return 0


def run_for(writer: TraceWriter, count: int, monkeypatch: pytest.MonkeyPatch, each: Callable[[], None]) -> Wakes:
    """Run the thread's loop for this number of wakes."""
    wakes = Wakes(writer, count, each)
    monkeypatch.setattr("tunnel.traces.writer.time", wakes)
    monkeypatch.setattr(writer, "_wake", wakes)
    writer._file_opened_s = wakes.now_s
    writer._woken = True
    writer._run()
    return wakes


def test_waiting_records_are_written_four_times_a_second(
    still: Still, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = still(tmp_path)
    seen = []

    def each() -> None:
        seen.append((writer.written, writer._woken))
        writer(record(len(seen)))

    assert run_for(writer, 3, monkeypatch, each).waits == [0.25] * 3
    assert seen == [(0, True), (1, False), (2, False)]
    assert [each.number for each in read_all(tmp_path)] == [1, 2, 3]
    assert names(tmp_path) == ["00001"]


def test_a_file_ends_when_it_is_as_old_as_it_may_become(
    still: Still, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = still(tmp_path, file_s=2.0)
    held = []

    def each() -> None:
        held.append(names(tmp_path))
        writer(record(1))

    run_for(writer, 5, monkeypatch, each)
    assert held == [["00001"], ["00001"], ["00001"], ["00001", "00002"], ["00001", "00002"]]
    assert [len(list(read_trace(path))) for path in sorted(tmp_path.iterdir())] == [2, 3]


def test_a_file_ends_when_its_lines_have_reached_its_size(still: Still, tmp_path: Path) -> None:
    line = len(encode_record(record(1)))
    writer = still(tmp_path)
    sizes = []
    for number in range(4):
        writer(record(number))
        writer._flush()
        sizes.append(writer._file_size)
    writer._finish()
    assert sizes[0] > line
    assert sizes[3] == 4 * sizes[0]
    other = tmp_path / "other"
    writer = still(other, file_bytes=2 * sizes[0])
    for number in range(4):
        assert names(other) == [["00001"], ["00001"], ["00001"], ["00001", "00002"]][number]
        writer(record(number))
        writer._flush()
    assert writer._file is None
    assert [len(list(read_trace(path))) for path in sorted(other.iterdir())] == [2, 2]


def test_a_file_ends_at_an_eighth_of_the_folder(still: Still, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda count: count * "0a")  # so that frames have the same size
    writer = still(tmp_path)
    writer(record(1))
    writer._flush()
    frame_bytes = writer._file_disk_bytes
    writer._finish()
    assert [path.stat().st_size for path in tmp_path.iterdir()] == [frame_bytes]
    for count, bytes_max in ((1, 8 * frame_bytes + 7), (2, 8 * (frame_bytes * 3 // 2))):
        writer = still(tmp_path / str(count), bytes_max=bytes_max)
        while writer._file is not None and writer.written < 7:
            writer(record(1))
            writer._flush()
        assert writer.written == count


def test_each_drop_is_reported_once(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path, queue_records=2)
    for refused in (3, 0, 2):
        for number in range(2 + refused):
            writer(record(number))
        writer._flush()
    writer._finish()
    records = read_all(tmp_path)
    dropped = [each for each in records if each.event == TraceEvent.TRACE_DROPPED]
    assert [(each.count, each.number, each.node) for each in dropped] == [
        (3, 6, writer.writer),
        (2, 13, writer.writer),
    ]
    assert [each.number for each in records] == [1, 2, 6, 7, 8, 9, 10, 13]
    assert (writer.records_dropped, writer.written) == (5, 8)


def test_a_failure_is_told_once_and_says_where_and_why(still: Still, tmp_path: Path) -> None:
    told: list[str] = []
    writer = still(tmp_path, tell=told.append)
    writer._failed(2, OSError(errno.ENOSPC, "No space left on device"))
    assert (writer.records_dropped, writer.failure) == (2, f"{tmp_path}: No space left on device")
    assert list(tmp_path.iterdir()) == []  # a full disk leaves no empty file
    writer._failed(3, OSError("strange"))
    assert (writer.records_dropped, writer.failure) == (5, f"{tmp_path}: strange")
    assert told == [f"trace records are lost, because they cannot be written: {tmp_path}: No space left on device"]


def test_a_file_with_records_is_kept_when_writing_fails(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    writer(record(1))
    writer._flush()
    writer._failed(0, OSError(errno.EIO, "Input/output error"))
    (file,) = tmp_path.iterdir()
    assert len(list(read_trace(file))) == 1
    assert writer._file is None


def test_a_file_is_on_disk_before_it_gets_its_final_name(
    still: Still, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = still(tmp_path)
    writer(record(1))
    writer._flush()
    (written,) = tmp_path.iterdir()
    seen = []
    fsync = os.fsync

    def note(descriptor: int) -> None:
        fsync(descriptor)
        seen.append((os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))

    monkeypatch.setattr(os, "fsync", note)
    file = writer._file
    assert file is not None
    writer._finish()
    assert seen == [(str(written), (tmp_path / written.name[1:]).stat().st_size)]
    assert file.closed
    writer._finish()  # there is no file to finish
    assert names(tmp_path) == ["00001"]


def test_a_folder_without_room_is_reported_as_one(still: Still, tmp_path: Path) -> None:
    told: list[str] = []
    writer = still(tmp_path, bytes_max=10, tell=told.append)
    writer(record(1))
    writer._flush()
    assert writer.failure == (
        f"{tmp_path}: the trace files have reached their limit of 9.53674e-06 MiB, and removing the complete ones "
        "would not make enough room: raise the limit, or let fewer processes write there"
    )
    assert (writer.written, writer.records_dropped) == (0, 1)
    with pytest.raises(OSError, match="their limit") as error:
        writer._write([record(2)], 0)
    assert error.value.errno == errno.EDQUOT
    assert list(tmp_path.iterdir()) == []


def test_only_the_first_record_of_a_file_is_the_clock(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path, reads_clock=True)
    for number in (1, 2):
        writer(record(number))
        writer._flush()
    writer._finish()
    events = [each.event for each in read_all(tmp_path)]
    assert events == [TraceEvent.CLOCK_READ, TraceEvent.ATTACHED, TraceEvent.ATTACHED]
    assert read_all(tmp_path)[0].node == writer.writer


def test_a_disk_that_hangs_delays_the_end_for_a_limited_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gate = threading.Event()
    monkeypatch.setattr("tunnel.traces.writer._CLOSE_S", 0.01)
    writer = TraceWriter(tmp_path)
    monkeypatch.setattr(writer, "_flush", lambda: gate.wait(WAIT_S))
    writer(record(1))
    writer.close()
    assert writer._thread.is_alive()
    gate.set()
    writer._thread.join()


def test_what_other_processes_wrote_is_counted_when_a_file_begins(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path, bytes_max=4000)
    writer(record(1))
    writer._flush()
    writer._finish()
    other = tmp_path / f"_other-{os.getpid()}-0123abcd-00001{SUFFIX}"
    other.write_bytes(bytes(3990))
    writer(record(2))
    writer._flush()
    assert "would not make enough room" in writer.failure
    assert [each.time_us for each in read_all(tmp_path)] == [1]  # removing it would not have made enough room


def test_a_failure_in_a_folder_that_was_removed_does_not_end_the_thread(still: Still, tmp_path: Path) -> None:
    writer = still(tmp_path)
    for path in tmp_path.iterdir():
        path.unlink()
    writer._failed(1, OSError(errno.EIO, "Input/output error"))
    writer(record(1))
    writer._flush()
    assert (writer.written, writer.records_dropped) == (1, 1)
