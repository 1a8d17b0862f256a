"""Damaged files: whole frames are read, damaged ones are counted."""

import fcntl
import os
import stat
from pathlib import Path

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from tests.traces.rig import CONTENTS, FRAMES
from tunnel.traces import salvage
from tunnel.traces.salvage import PLAIN_SUFFIX, SUFFIX, Findings, examine, frames_of, salvage_directory

MAGIC = b"\x28\xb5\x2f\xfd"
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
    assert read(FRAMES[0] + b"garbage") == (Findings(len(FRAMES[0]) + 7, 1, corrupt_frames=1), CONTENTS[:1])


@pytest.mark.parametrize("garbage", [b"x", b"xy", MAGIC, MAGIC + b"x", MAGIC[:1]])
def test_a_frame_right_after_garbage_is_read(garbage: bytes) -> None:
    assert read(garbage + WHOLE) == (Findings(len(garbage + WHOLE), 4, corrupt_frames=1), CONTENTS)


def test_every_damaged_part_is_counted() -> None:
    damaged = [frame[:-1] + bytes([frame[-1] ^ 0xFF]) for frame in FRAMES]
    for frames in (
        [damaged[0], FRAMES[1], damaged[2], FRAMES[3]],
        [FRAMES[0], damaged[1], FRAMES[2], damaged[3]],
    ):
        assert read(b"".join(frames))[0] == Findings(len(WHOLE), 2, corrupt_frames=2)
    assert read(b"".join(damaged))[0] == Findings(len(WHOLE), corrupt_frames=1)  # no intact frame separates them


@pytest.mark.parametrize("content_size_flag", range(4))
@pytest.mark.parametrize("is_single", [0, 1])
@pytest.mark.parametrize("dictionary_flag", range(4))
def test_every_field_of_a_header_is_skipped(content_size_flag: int, is_single: int, dictionary_flag: int) -> None:
    """RFC 8878 3.1.1.1. Our own compressor does not choose all of these forms for a small frame."""
    field_bytes = (is_single, 2, 4, 8)[content_size_flag]
    content = bytes(44 if field_bytes < 2 else 300)
    size = (len(content) - (256 if field_bytes == 2 else 0)).to_bytes(8, "little")[:field_bytes]
    header = bytes([content_size_flag << 6 | is_single << 5 | dictionary_flag]) + bytes(1 - is_single)
    block = (len(content) << 3 | 1).to_bytes(3, "little") + content
    frame = MAGIC + header + bytes((0, 1, 2, 4)[dictionary_flag]) + size + block
    for data in (frame, frame + FRAMES[0]):
        findings, parts = read(data)
        assert (findings.frames, findings.is_whole) == (1 + (data != frame), True)
        assert parts[0] == content
    assert read(frame[:-1]) == (Findings(len(frame) - 1, is_truncated=True), [])


def test_a_frame_may_end_with_an_empty_block() -> None:
    frame = MAGIC + bytes([0x20, 2]) + (2 << 3).to_bytes(3, "little") + b"ab" + (1).to_bytes(3, "little")
    assert read(frame) == (Findings(len(frame), frames=1), [b"ab"])
    assert read(frame[:-1]) == (Findings(len(frame) - 1, is_truncated=True), [])


def test_a_frame_counts_as_damaged_if_it_needs_more_memory_than_every_reader_has() -> None:
    """A small file could otherwise make a reader allocate gigabytes."""
    for log, frames in ((23, 1), (24, 0)):
        parameters = zstandard.ZstdCompressionParameters.from_level(1, window_log=log, write_content_size=False)
        compressor = zstandard.ZstdCompressor(compression_params=parameters).compressobj()
        frame = compressor.compress(b"a\n") + compressor.flush()
        assert read(frame)[0] == Findings(len(frame), frames, corrupt_frames=1 - frames)


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
    assert read(bytes(frame))[0] == Findings(len(frame), corrupt_frames=1)
    frame[at + 2] = 0xFF  # the block's size reaches beyond the end
    assert read(bytes(frame))[0] == Findings(len(frame), corrupt_frames=1)


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


def test_the_pid_is_found_in_every_name(tmp_path: Path) -> None:
    left(tmp_path, f"my-own-relay-{os.getpid()}-aa-00001", WHOLE)
    others = [left(tmp_path, name, WHOLE) for name in (f"{os.getpid()}-a-b", "a-b-c-d", f"my-{2**30}-aa-00001")]
    assert salvage_directory(tmp_path) == sorted(tmp_path / path.name[1:] for path in others)


def test_a_directory_that_another_process_salvages_is_left_to_it(tmp_path: Path) -> None:
    """Two commands that start at once would otherwise take each other's copies away, and fail."""
    path = left(tmp_path, f"w-{2**30}-aa-00001", WHOLE[:-5])
    other = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    assert salvage_directory(tmp_path) == []
    assert path.read_bytes() == WHOLE[:-5]
    os.close(other)
    descriptors = len(os.listdir("/proc/self/fd"))
    assert salvage_directory(tmp_path) == [tmp_path / path.name[1:]]
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_a_file_system_without_locks_is_salvaged_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(descriptor: int, kind: int) -> None:
        raise OSError("no locks here")

    monkeypatch.setattr(fcntl, "flock", refuse)
    path = left(tmp_path, f"w-{2**30}-aa-00001", WHOLE[:-5])
    assert salvage_directory(tmp_path) == [tmp_path / path.name[1:]]


def test_a_salvaged_copy_has_checksums_and_only_its_owner_can_read_it(tmp_path: Path) -> None:
    left(tmp_path, f"w-{2**30}-aa-00001", WHOLE[:-5])
    umask = os.umask(0)
    try:
        (copy,) = salvage_directory(tmp_path)
    finally:
        os.umask(umask)
    assert stat.S_IMODE(copy.stat().st_mode) == 0o600
    frame = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(CONTENTS[0])
    assert copy.read_bytes().startswith(frame)


@pytest.mark.parametrize("is_link", [False, True])
def test_a_copy_that_was_interrupted_is_made_again(tmp_path: Path, is_link: bool) -> None:
    other = tmp_path / "other"
    other.write_text("mine")
    path = left(tmp_path, f"w-{2**30}-aa-00001", WHOLE[:-5])
    copy = tmp_path / f".{path.name[1:]}"
    if is_link:
        copy.symlink_to(other)
    else:
        copy.write_bytes(b"half a copy")
    (salvaged,) = salvage_directory(tmp_path)
    assert examine(salvaged)[1] == CONTENTS[:3]
    assert other.read_text() == "mine"


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
    assert [step[2] for step in steps[:2]] == [size, size]  # the whole copy had been written


def rle_frame(blocks: int, *, is_ended: bool = True) -> bytes:
    """Return a frame of blocks that repeat one byte: 4 bytes for each 128 KiB of content, which is only newlines."""
    size = 128 * 1024
    block = (size << 3 | 1 << 1).to_bytes(3, "little") + b"\n"
    last = (size << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"\n"
    return MAGIC + bytes((0, 0x58)) + block * (blocks - 1) + (last if is_ended else block)  # a window of 2 MiB


def unpacked_bytes(data: bytes, monkeypatch: pytest.MonkeyPatch, least: int = 1 << 20) -> tuple[Findings, int]:
    """Return the findings in a file, and the number of bytes that are unpacked when the least limit is this one."""
    monkeypatch.setattr(salvage, "_UNPACKED_BYTES_LEAST", least)
    findings = Findings(len(data))
    return findings, sum(map(len, frames_of(data, findings)))


def test_two_users_a_frame_that_repeats_one_byte_is_not_unpacked_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """65 KB would be 2 GiB here; in the form that zstd makes of 16 GiB they would be that."""
    bomb = rle_frame(16_000)
    findings, unpacked = unpacked_bytes(FRAMES[0] + bomb + FRAMES[1], monkeypatch)
    assert unpacked == len(CONTENTS[0])
    assert (findings.frames, findings.corrupt_frames) == (1, 1)


def test_two_users_many_small_frames_have_the_limit_of_their_file(monkeypatch: pytest.MonkeyPatch) -> None:
    frames = [rle_frame(4) for _ in range(1000)]
    findings, unpacked = unpacked_bytes(b"".join(frames), monkeypatch)
    assert unpacked == findings.frames * 512 * 1024
    assert findings.frames == sum(map(len, frames)) * 100 // (512 * 1024 + 4 * 64) == 4
    assert findings.corrupt_frames == 1


def test_two_users_the_search_after_damage_has_the_same_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these beginnings of a frame leads to all blocks that follow, and to damage at the end."""
    begin = MAGIC + bytes((0, 0x58))
    nested = begin + (len(begin) << 3).to_bytes(3, "little")  # a raw block, which holds the next beginning
    data = nested * 2000 + rle_frame(2, is_ended=False)
    findings, unpacked = unpacked_bytes(data, monkeypatch)
    assert (unpacked, findings.corrupt_frames, findings.is_truncated) == (0, 1, False)


def test_lines_that_pack_well_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    content = b'{"version":1,"event":"packet_sent","node":"client"}\n' * 40_000
    packed = zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content)
    monkeypatch.setattr(salvage, "_UNPACKED_BYTES_LEAST", 4 << 20)
    assert read(packed)[1] == [content]
