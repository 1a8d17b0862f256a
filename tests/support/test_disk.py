"""The recorded disk loses what was not synced, and keeps what was."""

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.disk import RecordedDisk
from tests.support.power import SECTOR_BYTES, Act, Crash, Step


def put(path: Path, data: bytes, *, sync: bool) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(descriptor, data)
    if sync:
        os.fsync(descriptor)
    os.close(descriptor)


def sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)


def last(disk: RecordedDisk) -> Crash:
    *_, crash = disk.crashes()
    return crash


def left(crash: Crash, **options: Any) -> dict[str, bytes | None]:
    return crash.left(**options)


def every(crash: Crash) -> set[tuple[tuple[str, bytes | None], ...]]:
    return {tuple(sorted(crash.left(Random(seed)).items())) for seed in range(300)}


def test_a_name_and_its_content_are_safe_after_both_were_synced(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "a", b"x", sync=True)
        sync(disk.root)
        put(disk.root / "b", b"y", sync=True)
        put(disk.root / "c", b"z", sync=False)
    assert left(last(disk)) == {"a": b"x"}
    assert every(last(disk)) == {
        (("a", b"x"),),
        (("a", b"x"), ("b", b"y")),
        (("a", b"x"), ("b", b"y"), ("c", b"")),
        (("a", b"x"), ("b", b"y"), ("c", b"\0")),
        (("a", b"x"), ("b", b"y"), ("c", b"z")),
    }
    assert [step.act for step in disk.steps[:3]] == [Act.CREATE, Act.WRITE, Act.SYNC]
    assert str(last(disk)).endswith("write c 1 bytes at 0\n---- the power fails")


def test_any_sectors_of_a_write_may_be_lost(tmp_path: Path) -> None:
    data = bytes([1]) * SECTOR_BYTES + bytes([2]) * SECTOR_BYTES + b"3"
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "a", b"", sync=True)
        sync(disk.root)
        put(disk.root / "a", data, sync=False)
    found = {dict(each)["a"] or b"" for each in every(last(disk))}
    assert {b"", data, bytes(SECTOR_BYTES) + data[SECTOR_BYTES:]} <= found
    assert any(data.startswith(each) for each in found - {b"", data})  # the file may end within the write


def test_a_cut_may_be_lost_while_a_later_write_is_there(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "a", b"0123456789", sync=True)
        sync(disk.root)
        descriptor = os.open(disk.root / "a", os.O_RDWR)
        os.ftruncate(descriptor, 2)
        os.pwrite(descriptor, b"xx", 2)
        assert {dict(each)["a"] for each in every(last(disk))} >= {
            b"0123456789",
            b"01xx",
            b"01xx456789",
            b"01",
        }
        os.fdatasync(descriptor)
        os.close(descriptor)
    assert every(last(disk)) == {(("a", b"01xx"),)}


def test_a_replaced_name_has_its_old_or_its_new_content(tmp_path: Path) -> None:
    (tmp_path / "disk" / "in").mkdir(parents=True)
    (tmp_path / "disk" / "in" / "a").write_bytes(b"old")
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "in" / "new", b"new", sync=True)
        os.replace(disk.root / "in" / "new", disk.root / "in" / "a")
        (disk.root / "in" / "gone").mkdir()
    assert left(last(disk)) == {"in": None, "in/a": b"old"}
    assert {tuple(sorted(dict(each).items() - {("in", None)})) for each in every(last(disk))} == {
        (("in/a", b"old"),),
        (("in/a", b"old"), ("in/new", b"new")),
        (("in/a", b"new"),),
        (("in/a", b"new"), ("in/gone", None)),
    }
    assert left(last(disk), spared=["in"]) == {"in": None, "in/a": b"new", "in/gone": None}


def test_a_directory_keeps_what_is_in_it_under_its_new_name(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        (disk.root / "new").mkdir()
        put(disk.root / "new" / "a", b"x", sync=True)
        sync(disk.root / "new")
        os.replace(disk.root / "new", disk.root / "b")
        put(disk.root / "b" / "a", b"y", sync=True)
        sync(disk.root)
    assert left(last(disk)) == {"b": None, "b/a": b"xy"}


def test_a_removed_file_may_come_back_and_open_files_go_on(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "disk" / "a").write_bytes(b"old")
    with RecordedDisk(tmp_path / "disk") as disk:
        descriptor = os.open(disk.root / "a", os.O_RDWR)
        again = os.dup(descriptor)
        (disk.root / "a").unlink()
        os.writev(again, [b"n", b"ew"])
        os.close(descriptor)
        os.close(again)
    assert left(last(disk)) == {"a": b"old"}
    assert {dict(each).get("a") for each in every(last(disk))} >= {None, b"old", b"new"}


def test_marks_lie_between_the_steps(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        disk.mark("made", 0)
        put(disk.root / "a", b"x", sync=False)
        disk.mark("made", 1)
        sync(disk.root)
    crashes = [(crash.steps, crash.marked("made"), crash.last("made", None)) for crash in disk.crashes()]
    assert crashes == [(0, [0], 0), (1, [0], 0), (2, [0, 1], 1), (3, [0, 1], 1)]


def test_a_step_can_be_made_to_fail(tmp_path: Path) -> None:
    def full(step: Step) -> None:
        if step.act is Act.WRITE:
            raise OSError(28, "No space left on device")

    with RecordedDisk(tmp_path / "disk") as disk:
        disk.before = full
        with pytest.raises(OSError, match="No space"):
            put(disk.root / "a", b"x", sync=True)
    assert [str(step) for step in disk.steps] == ["create a"]


def test_a_change_past_the_record_fails_the_test(tmp_path: Path) -> None:
    disk = RecordedDisk(tmp_path / "disk")
    with pytest.raises(AssertionError, match=r"not by functions of os that are recorded: \['a'\]"), disk:
        (disk.root / "a").write_bytes(b"x")
    put(disk.root / "b", b"x", sync=True)  # the functions of os are back
    assert disk.steps == []


def test_what_a_killed_process_had_not_synced_is_not_safe_in_the_next_life(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "a", b"x", sync=True)
        sync(disk.root)
        put(disk.root / "a", b"y", sync=False)
        put(disk.root / "b", b"z", sync=True)
    with RecordedDisk(tmp_path / "disk", killed=last(disk)) as again:
        assert (again.root / "a").read_bytes() == b"xy"
        put(again.root / "c", b"", sync=False)
        put(again.root / "b", b"z", sync=True)
    crash = next(again.crashes())
    assert left(crash) == {"a": b"x"}
    assert left(crash, spared=["a", "b"]) == {"a": b"xy", "b": b"z"}
    with RecordedDisk(tmp_path / "disk", killed=crash) as third:
        put(third.root / "a", b"", sync=True)
        sync(third.root)
    assert left(last(third)) == {"a": b"xy", "b": b"z"}


def test_each_image_is_written_once(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        put(disk.root / "a", b"x", sync=True)
    found = [
        {path.name: path.read_bytes() for path in (tmp_path / "image").iterdir()}
        for _ in last(disk).images(tmp_path / "image", range(30))
    ]
    assert found == [{}, {"a": b"x"}]
