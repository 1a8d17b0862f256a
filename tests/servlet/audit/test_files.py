"""The file of the audit: private, bounded, whole lines, whatever happens to the process, the disk or the clock."""

from __future__ import annotations

import errno
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.tree import python_path
from tunnel_servlet.audit.event import AuditEvent, Kind, decode_event, encode_event
from tunnel_servlet.audit.files import AuditFile, files_of

LINE = b'{"event":"admin","text":"%d"}\n'


def opened(path: Path, **changes: Any) -> AuditFile:
    return AuditFile(path, **{"bytes_max": 1000, "files_max": 3, "syncs": False, **changes})


def content(path: Path) -> bytes:
    return b"".join(one.read_bytes() for one in files_of(path) if one.exists())


def test_lines_are_appended_and_only_the_owner_can_read_them(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(b"before\n")
    path.chmod(0o644)
    file = opened(path)
    file.write(LINE % 1)
    file.close()
    assert path.read_bytes() == b"before\n" + LINE % 1
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_full_file_is_rotated_and_the_oldest_ones_are_removed_and_reported(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    file = opened(path, bytes_max=100)
    lines = [encode_event(AuditEvent(event=Kind.ADMIN, time=f"t{number}", text="x" * 40)) for number in range(5)]
    for line in lines:
        file.write(line)
    file.close()
    found = files_of(path)
    assert [one.read_bytes() for one in found] == lines[2:]
    assert {one.stat().st_mode & 0o777 for one in found} == {0o600}
    assert [(one.first, one.last) for one in file.removed] == [("t0", "t0"), ("t1", "t1")]
    assert all(re.fullmatch(r"audit\.jsonl\.\d{8}T\d{6}\.\d{6}Z", one.name) for one in found[:-1])


def test_other_files_beside_it_are_left_alone(tmp_path: Path) -> None:
    others = [tmp_path / name for name in ("audit.jsonl.gz", "audit.jsonl.1", "audit.jsonl.20261129", "audit.json")]
    for other in others:
        other.touch()
    file = opened(tmp_path / "audit.jsonl", bytes_max=20, files_max=2)
    for number in range(4):
        file.write(LINE % number)
    file.close()
    assert all(other.exists() for other in others)
    assert len(files_of(tmp_path / "audit.jsonl")) == 2


def test_the_order_of_the_files_is_that_of_the_events_if_the_clock_is_set_back(
    tmp_path: Path,
) -> None:
    path = tmp_path / "audit.jsonl"
    (tmp_path / "audit.jsonl.20991231T235959.999999Z").write_bytes(LINE % 0)
    file = opened(path, bytes_max=20, files_max=4)
    for number in (1, 2, 3):
        file.write(LINE % number)
    file.close()
    assert [one.name[-23:] for one in files_of(path)[:-1]] == [
        "20991231T235959.999999Z",
        "21000101T000000.000000Z",
        "21000101T000000.000001Z",
    ]
    assert content(path) == b"".join(LINE % number for number in range(4))


def test_a_line_that_was_cut_off_is_ended_so_that_the_next_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    path.write_bytes(LINE % 1 + b'{"event":"adm')
    file = opened(path)
    file.write(LINE % 2)
    file.close()
    assert [decode_event(line) is not None for line in path.read_bytes().splitlines()] == [True, False, True]


def test_a_second_relay_does_not_get_the_file(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    first = opened(path)
    with pytest.raises(OSError, match="another relay"):
        opened(path)
    first.close()
    opened(path).close()


@pytest.mark.parametrize("make", [lambda path: path.symlink_to("/dev/null"), os.mkfifo, os.mkdir])
def test_a_trap_in_place_of_the_file_is_refused(tmp_path: Path, make: Callable[[Path], object]) -> None:
    path = tmp_path / "audit.jsonl"
    make(path)
    with pytest.raises(OSError, match=r"symbolic links|ordinary file|directory"):
        opened(path)


@pytest.mark.parametrize("move", [os.unlink, lambda path: os.rename(path, f"{path}.away")])
def test_a_file_that_somebody_has_moved_or_removed_is_begun_anew(
    tmp_path: Path, move: Callable[[Path], object]
) -> None:
    path = tmp_path / "audit.jsonl"
    file = opened(path)
    file.write(LINE % 1)
    move(path)
    file.write(LINE % 2)
    file.close()
    assert path.read_bytes() == LINE % 2


def full_after(count: int, monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let the disk have room for this number of bytes; return a function that makes room again."""
    room = [count]
    write = os.write

    def written(descriptor: int, data: bytes) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, "No space left on device")
        size = write(descriptor, data[: room[0]])
        room[0] -= size
        return size

    monkeypatch.setattr(os, "write", written)

    def more() -> None:
        room[0] = 1 << 20

    return more


@pytest.mark.parametrize("count", [0, 1, len(LINE % 1), len(LINE % 1) + 5])
def test_after_a_full_disk_the_lines_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int
) -> None:
    path = tmp_path / "audit.jsonl"
    file = opened(path)
    data = LINE % 1 + LINE % 2
    more = full_after(count, monkeypatch)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.write(data)
    more()
    file.write(data)
    file.write(LINE % 3)
    file.close()
    assert path.read_bytes() == data + LINE % 3


def test_lines_that_were_given_up_cut_off_no_later_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    file = opened(path)
    more = full_after(4, monkeypatch)
    with pytest.raises(OSError, match="No space"):
        file.write(LINE % 1)
    more()
    file.give_up()
    file.write(LINE % 2)
    file.close()
    assert path.read_bytes() == (LINE % 1)[:4] + b"\n" + LINE % 2


def test_a_disk_without_room_for_a_new_file_loses_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "audit.jsonl"
    file = opened(path, bytes_max=20)
    file.write(LINE % 1)
    opening = os.open

    def fails(*arguments: Any, **options: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "open", fails)
    for _ in range(2):
        with pytest.raises(OSError, match="No space"):
            file.write(LINE % 2)
    monkeypatch.setattr(os, "open", opening)
    file.write(LINE % 2)
    file.close()
    assert content(path) == LINE % 1 + LINE % 2


def test_with_fsync_each_write_is_on_the_disk_when_it_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    sync = os.fdatasync

    def record(descriptor: int) -> None:
        synced.append(descriptor)
        sync(descriptor)

    monkeypatch.setattr(os, "fdatasync", record)
    for syncs, count in ((False, 0), (True, 2)):
        file = opened(tmp_path / f"{syncs}.jsonl", syncs=syncs)
        file.write(LINE % 1)
        file.write(LINE % 2)
        file.close()
        assert len(synced) == count


WRITER = """
import sys
from pathlib import Path
from tunnel_servlet.audit.event import AuditEvent, Kind, encode_event
from tunnel_servlet.audit.files import AuditFile
file = AuditFile(Path(sys.argv[1]), bytes_max=400, files_max=1000, syncs=False)
for number in range(1, int(sys.argv[3]) + 1):
    file.write(encode_event(AuditEvent(event=Kind.ADMIN, run=sys.argv[2], number=number, text="x" * 50)))
    print(number, flush=True)
sys.stdin.read()
"""
LINES_MAX = 450  # of one writer, however late it is killed: 3 lines in a file, so that 6 writers make fewer than 1000


def test_kill_9_during_rotation_loses_no_line_that_was_written(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    wanted: dict[str, int] = {}
    for turn in range(6):
        environment = {**os.environ, "PYTHONPATH": python_path()}
        command = [sys.executable, "-c", WRITER, str(path), str(turn), str(LINES_MAX)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environment) as process:
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(40 + 7 * turn)]  # 3 lines in a file
            process.send_signal(signal.SIGKILL)
            lines += process.stdout.read().splitlines()
        wanted[str(turn)] = int([line for line in lines if line.strip().isdigit()][-1])
    found = [decode_event(line) for line in content(path).splitlines()]
    assert sum(event is None for event in found) <= len(wanted)
    for run, last in wanted.items():
        numbers = [event.number for event in found if event is not None and event.run == run]
        assert numbers[:last] == list(range(1, last + 1))
    assert len(files_of(path)) > 6 * 10
