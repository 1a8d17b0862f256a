"""Damaged files: whole frames are read, damaged ones are counted."""

import os
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tunnel.traces.salvage import PLAIN_SUFFIX, SUFFIX, Findings, examine, frames_of, salvage_directory

CONTENTS = [b'{"a":%d}\n' % number * 50 for number in range(4)]
FRAMES = [zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content) for content in CONTENTS]
WHOLE = b"".join(FRAMES)


def read(data: bytes) -> tuple[Findings, list[bytes]]:
    findings = Findings(len(data))
    return findings, list(frames_of(data, findings))


def test_whole_frames_are_read() -> None:
    findings, parts = read(WHOLE)
    assert parts == CONTENTS
    assert findings == Findings(len(WHOLE), frames=4)
    assert findings.is_whole


@pytest.mark.parametrize("content_size", [True, False])
@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("size", [1, 300, 70_000, 300_000])
def test_every_form_of_header_is_read(content_size: bool, checksum: bool, size: int) -> None:
    compressor = zstandard.ZstdCompressor(write_checksum=checksum, write_content_size=content_size)
    for content in (os.urandom(size), bytes(size)):  # raw blocks, and blocks that repeat one byte
        assert read(compressor.compress(content) + FRAMES[0]) == (
            Findings(size_bytes=len(compressor.compress(content) + FRAMES[0]), frames=2),
            [content, CONTENTS[0]],
        )


@pytest.mark.parametrize("lost", range(1, len(FRAMES[3]) + 1))
def test_a_truncated_file_loses_only_its_last_frame(lost: int) -> None:
    findings, parts = read(WHOLE[:-lost])
    assert parts == CONTENTS[:3]
    assert (findings.is_truncated, findings.corrupt_frames) == (lost < len(FRAMES[3]), 0)


def test_a_damaged_frame_is_skipped() -> None:
    data = bytearray(WHOLE)
    data[len(FRAMES[0]) + len(FRAMES[1]) // 2] ^= 0xFF
    findings, parts = read(bytes(data))
    assert parts == [CONTENTS[0], *CONTENTS[2:]]
    assert (findings.frames, findings.corrupt_frames, findings.is_truncated) == (3, 1, False)
    assert not findings.is_whole


def test_a_damaged_last_frame_counts_as_corrupt_and_not_as_truncated() -> None:
    data = bytearray(WHOLE)
    data[-1] ^= 0xFF  # a byte of its checksum
    findings, parts = read(bytes(data))
    assert parts == CONTENTS[:3]
    assert (findings.corrupt_frames, findings.is_truncated) == (1, False)


def test_garbage_counts_as_corrupt() -> None:
    assert read(b"no frame at all") == (Findings(15, corrupt_frames=1), [])


@given(st.integers(0, len(WHOLE) - 1), st.integers(1, 255))
def test_one_altered_byte_costs_at_most_one_frame(at: int, change: int) -> None:
    data = bytearray(WHOLE)
    data[at] ^= change
    _, parts = read(bytes(data))
    assert len([part for part in parts if part in CONTENTS]) >= 3


@given(st.binary(max_size=200))
def test_no_bytes_after_the_first_four_of_a_frame_cause_an_error(data: bytes) -> None:
    read(b"\x28\xb5\x2f\xfd" + data)


def test_a_reserved_type_of_block_counts_as_damage() -> None:
    frame = bytearray(FRAMES[0])
    at = 6 if not frame[4] >> 5 & 1 else 5 + (1, 2, 4, 8)[frame[4] >> 6]
    frame[at] |= 0b110
    assert read(bytes(frame))[0].frames == 0


def test_a_plain_file_loses_its_unfinished_line(tmp_path: Path) -> None:
    path = tmp_path / f"a{PLAIN_SUFFIX}"
    path.write_bytes(b"one\ntwo\nthr")
    findings, parts = examine(path)
    assert parts == [b"one\ntwo\n"]
    assert findings.is_truncated
    path.write_bytes(b"")
    assert examine(path) == (Findings(), [])
    path.write_bytes(b"one\n")
    assert examine(path)[0].is_whole


def left(directory: Path, name: str, data: bytes) -> Path:
    path = directory / f"_{name}{SUFFIX}"
    path.write_bytes(data)
    return path


def test_leftovers_of_dead_processes_get_their_final_names(tmp_path: Path) -> None:
    whole = left(tmp_path, f"w-{2**30}-aa-00001", WHOLE)
    cut = left(tmp_path, f"w-{2**30}-aa-00002", WHOLE[:-5])
    nothing = left(tmp_path, f"w-{2**30}-aa-00003", WHOLE[:5])
    stranger = left(tmp_path, "stranger", WHOLE)
    salvaged = salvage_directory(tmp_path)
    assert salvaged == [tmp_path / path.name[1:] for path in (stranger, whole, cut)]
    assert not any(path.exists() for path in (whole, cut, nothing, stranger))
    assert examine(salvaged[1]) == (Findings(len(WHOLE), frames=4), CONTENTS)
    findings, parts = examine(salvaged[2])
    assert (findings.is_whole, parts) == (True, CONTENTS[:3])
    assert len(list(tmp_path.iterdir())) == 3


def test_files_of_a_living_process_are_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = left(tmp_path, f"w-{os.getpid()}-aa-00001", WHOLE)
    huge = left(tmp_path, f"w-{10**30}-aa-00001", WHOLE)
    assert salvage_directory(tmp_path) == []

    def refuse(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "kill", refuse)
    assert salvage_directory(tmp_path) == []
    assert mine.exists()
    assert huge.exists()


def test_a_salvaged_copy_is_on_disk_before_its_original_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash of the machine keeps what was synced: the content of files, and the names in directories."""
    cut = left(tmp_path, f"w-{2**30}-aa-00001", WHOLE[:-5])
    steps: list[tuple[str, str, int]] = []
    fsync, rename, unlink = os.fsync, Path.rename, Path.unlink

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        steps.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}"), os.fstat(descriptor).st_size))

    def note_rename(path: Path, target: Path) -> Path:
        steps.append(("rename", str(path), path.stat().st_size))
        return rename(path, target)

    def note_unlink(path: Path, missing_ok: bool = False) -> None:
        if path.exists():
            steps.append(("unlink", str(path), 0))
        unlink(path, missing_ok)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(Path, "rename", note_rename)
    monkeypatch.setattr(Path, "unlink", note_unlink)
    (salvaged,) = salvage_directory(tmp_path)
    temporary = str(tmp_path / f".{salvaged.name}")
    size = salvaged.stat().st_size
    assert [step[:2] for step in steps] == [
        ("sync", temporary),
        ("rename", temporary),
        ("sync", str(tmp_path)),
        ("unlink", str(cut)),
    ]
    assert [step[2] for step in steps[:2]] == [size, size]  # all of it
