"""The folder of trace files: who can read them, and how much of the disk they take."""

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from tests.traces.rig import FRAMES
from tunnel.system.private_files import create_private
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.folder import TraceFolder
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


def wake(writer: TraceWriter) -> None:
    """Wake the writer's thread, and give it time to run."""
    writer._wake.set()
    time.sleep(0.0002)


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


def test_nothing_is_removed_if_that_would_not_make_enough_room(tmp_path: Path) -> None:
    told: list[str] = []
    old, older = left(tmp_path, 2, 100), left(tmp_path, 1, 100)
    left(tmp_path, 3, 200, name="_relay")
    folder = TraceFolder(tmp_path, 450, told.append)
    folder.look()
    assert not folder.takes(251)
    assert (old.exists(), older.exists(), folder.removed_files, told) == (True, True, 0, [])
    assert folder.takes(250)
    assert (old.exists(), older.exists(), folder.removed_files, len(told)) == (False, False, 2, 1)


def test_no_more_is_removed_than_necessary(tmp_path: Path) -> None:
    old, older = left(tmp_path, 2, 100), left(tmp_path, 1, 100)
    folder = TraceFolder(tmp_path, 250, print)
    folder.look()
    assert folder.takes(150)
    assert (old.exists(), older.exists()) == (True, False)


def test_the_bytes_that_were_taken_count_until_the_next_look(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path, 100, print)
    assert folder.takes(60)
    left(tmp_path, 1, 60, name="_relay")
    assert not folder.takes(41)
    assert folder.takes(40)


def test_a_full_folder_is_counted_again(tmp_path: Path) -> None:
    """The user, or another process, may have removed files."""
    file = left(tmp_path, 1, 90)
    folder = TraceFolder(tmp_path, 100, pytest.fail)
    folder.look()
    file.unlink()
    assert folder.takes(20)
    assert folder.takes(80)
    left(tmp_path, 2, 95, name="_relay")
    assert folder.takes(5)
    assert not folder.takes(6)


def test_files_that_another_process_writes_count_from_the_next_look_on(tmp_path: Path) -> None:
    folder = TraceFolder(tmp_path, 100, print)
    folder.look()
    left(tmp_path, 1, 60, name="_relay")
    assert folder.takes(50)
    folder.look()
    assert folder.takes(40)
    folder.look()
    assert not folder.takes(41)


@pytest.mark.parametrize(
    ("name", "is_ours"),
    [
        (f"relay-1-0123abcd-00001{SUFFIX}", True),
        (f"my-name-123-0123abcd-123456{SUFFIX}", True),
        (f"relay-1-0123abcd-0001{SUFFIX}", False),
        (f"relay-1-0123abc-00001{SUFFIX}", False),
        (f"relay-x-0123abcd-00001{SUFFIX}", False),
        (f"-1-0123abcd-00001{SUFFIX}", False),
        ("relay-1-0123abcd-00001.jsonl", False),
        (f"relay-1-0123abcd-00001{SUFFIX}.bak", False),
        (f"relay-1-0123abcd-00001{SUFFIX.replace('.', 'x')}", False),
    ],
)
def test_only_trace_files_are_counted_and_removed(tmp_path: Path, name: str, is_ours: bool) -> None:
    (tmp_path / name).write_bytes(bytes(90))
    folder = TraceFolder(tmp_path, 100, print)
    folder.look()
    assert folder.takes(20)
    assert (tmp_path / name).exists() != is_ours


def test_a_symbolic_link_counts_with_its_own_size(tmp_path: Path) -> None:
    """A link to a large file elsewhere takes no room here, so that removing it would not help."""
    large = tmp_path / "large"
    large.write_bytes(bytes(5_000))
    (tmp_path / f"relay-1-0123abcd-00001{SUFFIX}").symlink_to(large)
    folder = TraceFolder(tmp_path, 1_000, pytest.fail)
    folder.look()
    assert folder.takes(500)


def test_files_that_vanish_while_they_are_counted_do_not_count_and_all_others_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[str] = []
    paths = [left(tmp_path, number, 10) for number in range(1, 9)]
    folder = TraceFolder(tmp_path, 100, told.append)
    scandir = os.scandir

    @contextmanager
    def scan(path: Path) -> Iterator[list[os.DirEntry[str]]]:
        with scandir(path) as entries:
            found = sorted(entries, key=lambda entry: entry.name)
            for file in paths[::2]:
                file.unlink()
            yield found

    with monkeypatch.context() as patch:
        patch.setattr(os, "scandir", scan)
        folder.look()
    left(tmp_path, 9, 60, name="_relay")
    assert folder.takes(60)
    assert told == []
    assert folder.takes(1)
    assert (len(told), paths[1].exists(), paths[3].exists()) == (1, False, True)


def test_another_process_may_remove_the_same_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    oldest, old = left(tmp_path, 1, 50), left(tmp_path, 2, 50)
    folder = TraceFolder(tmp_path, 100, print)
    folder.look()
    scandir = os.scandir

    @contextmanager
    def scan(path: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scandir(path) as entries:
            yield entries
        oldest.unlink()

    monkeypatch.setattr(os, "scandir", scan)
    assert folder.takes(50)
    assert old.exists()


def test_the_folder_is_made_with_those_above_it(tmp_path: Path) -> None:
    TraceFolder(tmp_path / "a" / "b", 1, print).create("c").close()
    TraceFolder(tmp_path / "a" / "b", 1, print)
    assert mode(tmp_path / "a" / "b") == 0o700
    with pytest.raises(FileExistsError):
        TraceFolder(tmp_path / "a" / "b", 1, print).create("c")
    with pytest.raises(FileExistsError):
        TraceFolder(tmp_path / "a" / "b" / "c", 1, print)


def test_a_trace_without_end_keeps_the_newest_records(tmp_path: Path) -> None:
    told: list[str] = []
    bytes_max = 64 * 1024
    writer = TraceWriter(tmp_path, bytes_max=bytes_max, tell=told.append)
    sizes = []
    for number in range(100):
        writer(record(f"{number} {os.urandom(1000).hex()}"))
        while writer.written <= number:
            wake(writer)
        sizes.append(held(tmp_path))
    writer.close()
    assert max(sizes) <= bytes_max
    assert writer.removed_files > 3
    assert writer.records_dropped == 0
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
    while not writer.records_dropped:
        wake(writer)
    assert "would not make enough room" in writer.failure
    writer.close()
    assert (writer.written, writer.records_dropped) == (0, 1)
    assert len(list(tmp_path.iterdir())) == 1
    assert told[-1].startswith("trace records are lost, because they cannot be written")


def test_two_writers_share_the_limit(tmp_path: Path) -> None:
    bytes_max = 64 * 1024
    with TraceWriter(tmp_path, bytes_max=bytes_max) as first, TraceWriter(tmp_path, bytes_max=bytes_max) as second:
        for number in range(80):
            for writer in (first, second):
                writer(record(os.urandom(1000).hex()))
                while writer.written <= number:
                    wake(writer)
    assert held(tmp_path) <= bytes_max * 5 // 4  # each may have written an eighth since the other looked


def test_a_full_disk_leaves_no_empty_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = TraceWriter(tmp_path)

    def fail(count: int) -> bool:
        raise OSError(errno.ENOSPC, "No space left on device")

    for number in (1, 2):
        with monkeypatch.context() as patch:
            patch.setattr(writer._folder, "takes", fail)
            writer(record())
            while writer.records_dropped < number:
                wake(writer)
    assert list(tmp_path.iterdir()) == []
    writer(record())
    writer.close()
    assert [each.number for path in tmp_path.iterdir() for each in read_trace(path)] == [3]
