"""The folder of trace files: who can read them, and how much of the disk they take."""

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.traces.test_salvage import FRAMES
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.folder import TraceFolder, create_private
from tunnel.traces.jsonl import JsonLinesWriter, read_trace
from tunnel.traces.salvage import SUFFIX
from tunnel.traces.writer import TraceWriter


@pytest.fixture(autouse=True)
def _no_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def record(text: str = "") -> TraceRecord:
    return TraceRecord(time_us=1, node="a", event=TraceEvent.ATTACHED, text=text)


def held(folder: Path) -> int:
    """The bytes in the files of the folder, without a file that is being renamed."""
    total = 0
    for path in folder.iterdir():
        with suppress(FileNotFoundError):
            total += path.stat().st_size
    return total


def left(folder: Path, number: int, size: int, name: str = "relay") -> Path:
    """A file of a certain age and size."""
    path = folder / f"{name}-{os.getpid()}-0123abcd-{number:05d}{SUFFIX}"
    path.write_bytes(bytes(size))
    os.utime(path, ns=(number, number))
    return path


def test_only_the_owner_can_read_a_trace(tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    folder.mkdir(mode=0o755)
    damaged = folder / f"_relay-{2**30}-0123abcd-00001{SUFFIX}"
    damaged.write_bytes(FRAMES[0] + FRAMES[1][:-3])
    with TraceWriter(tmp_path / "new") as writer:
        writer(record())
    with TraceWriter(folder) as writer:
        writer(record())
    with JsonLinesWriter(folder / "plain.jsonl") as plain:
        plain(record())
    assert mode(tmp_path / "new") == 0o700
    assert mode(folder) == 0o755  # it belongs to the user
    paths = [*folder.iterdir(), *(tmp_path / "new").iterdir()]
    assert len(paths) == 4
    assert {mode(path) for path in paths} == {0o600}


def test_a_file_is_never_written_through_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / "link").symlink_to(victim)
    with pytest.raises(FileExistsError):
        create_private(tmp_path / "link")
    damaged = tmp_path / f"_relay-{2**30}-0123abcd-00001{SUFFIX}"
    damaged.write_bytes(FRAMES[0] + FRAMES[1][:-3])
    (tmp_path / f".{damaged.name[1:]}").symlink_to(victim)
    TraceWriter(tmp_path).close()
    assert victim.read_text() == "mine"


def test_the_oldest_complete_files_make_room(tmp_path: Path) -> None:
    told: list[str] = []
    old, older, oldest = (left(tmp_path, number, 100) for number in (3, 2, 1))
    written = left(tmp_path, 1, 100, name="_relay")
    notes = tmp_path / "notes.jsonl.zst"
    notes.write_bytes(bytes(5000))
    folder = TraceFolder(tmp_path, 450, told.append)
    folder.create(f"_x-1-00000000-00001{SUFFIX}").close()
    folder.look()
    assert folder.takes(50)
    assert (told, folder.removed_files) == ([], 0)
    (tmp_path / f"_x-1-00000000-00001{SUFFIX}").write_bytes(bytes(50))
    assert folder.takes(1)
    assert (oldest.exists(), older.exists(), folder.removed_files) == (False, True, 1)
    assert folder.takes(250)
    assert (older.exists(), old.exists()) == (False, False)
    assert not folder.takes(1000)
    assert written.exists()
    assert notes.exists()
    assert len(told) == 1
    assert "limit of 0.000429153 MiB: the oldest are removed" in told[0]


def test_a_trace_without_end_keeps_the_newest_records(tmp_path: Path) -> None:
    told: list[str] = []
    bytes_max = 64 * 1024
    writer = TraceWriter(tmp_path, bytes_max=bytes_max, tell=told.append)
    sizes = []
    for number in range(100):
        writer(record(f"{number} {os.urandom(1000).hex()}"))
        while writer.written <= number:
            writer._wake.set()
        sizes.append(held(tmp_path))
    writer.close()
    assert max(sizes) <= bytes_max
    assert writer.removed_files > 3
    assert writer.dropped == 0
    assert len(told) == 1
    records = [each for path in sorted(tmp_path.iterdir()) for each in read_trace(path)]
    assert records[-1].number == 100
    assert [each.number for each in records] == list(range(records[0].number, 101))
    assert len(records) > 20


def test_records_without_room_are_dropped_and_counted(tmp_path: Path) -> None:
    told: list[str] = []
    left(tmp_path, 1, 5000, name="_relay")  # of a process that may still write to it
    writer = TraceWriter(tmp_path, bytes_max=4096, tell=told.append)
    writer(record())
    while not writer.dropped:
        writer._wake.set()
    assert "none can be removed" in writer.failure
    writer.close()
    assert (writer.written, writer.dropped) == (0, 1)
    assert len(list(tmp_path.iterdir())) == 1
    assert told[-1].startswith("trace records are lost, because they cannot be written")


def test_two_writers_share_the_limit(tmp_path: Path) -> None:
    bytes_max = 64 * 1024
    with TraceWriter(tmp_path, bytes_max=bytes_max) as first, TraceWriter(tmp_path, bytes_max=bytes_max) as second:
        for number in range(80):
            for writer in (first, second):
                writer(record(os.urandom(1000).hex()))
                while writer.written <= number:
                    writer._wake.set()
    assert held(tmp_path) <= bytes_max * 5 // 4  # each may have written an eighth since the other looked


def test_a_full_disk_leaves_no_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path)

    def fail(count: int) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(writer._folder, "takes", fail)
            writer(record())
            while writer.dropped < number:
                writer._wake.set()
    assert list(tmp_path.iterdir()) == []
    writer(record())
    writer.close()
    assert [each.number for path in tmp_path.iterdir() for each in read_trace(path)] == [3]
