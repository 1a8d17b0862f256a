"""Segments: finding messages by offset, and recovery after a crash."""

import os
from pathlib import Path

import pytest

from tests.support.disk import RecordedDisk
from tunnel.messages.errors import LogError
from tunnel.messages.message import encode_payloads
from tunnel.messages.segments import INDEX_BYTES, Segment, recover_segments, segment_path, write_atomically

PAYLOADS = [b"%d" % number + bytes(1000) for number in range(100)]


def filled(directory: Path, base: int = 0, payloads: list[bytes] = PAYLOADS) -> Segment:
    segment_path(directory, base).write_bytes(encode_payloads(payloads))
    segment = Segment(directory, base)
    segment.recover(last=True)
    return segment


def test_messages_are_found_by_their_offset(tmp_path: Path) -> None:
    segment = filled(tmp_path, 5)
    assert (segment.base, segment.count, segment.end) == (5, 100, 105)
    for offset in (5, 6, 50, 104):
        assert next(iter(segment.read(offset, 10_000))).payload == PAYLOADS[offset - 5]
        assert next(iter(segment.read(offset, 1))).payload == PAYLOADS[offset - 5]  # the first whole message
    assert segment.read(105, 1000).size_bytes == 0
    assert segment.read(5, 1 << 30).size_bytes == segment.size


def test_an_index_saves_reading_the_file(tmp_path: Path) -> None:
    filled(tmp_path).seal()
    again = Segment(tmp_path, 0)
    assert again.recover(last=False) == 0
    assert (again.count, again.size) == (100, os.path.getsize(again.path))
    assert next(iter(again.read(77, 1))).payload == PAYLOADS[77]
    # The file was not read at opening, so only a reader of the messages would notice damage.
    data = bytearray(again.path.read_bytes())
    data[50] ^= 1
    again.path.write_bytes(data)
    assert Segment(tmp_path, 0).recover(last=False) == 0


@pytest.mark.parametrize("damage", ["missing", "empty", "odd", "longer file", "beyond"])
def test_a_wrong_index_is_not_used(tmp_path: Path, damage: str) -> None:
    segment = filled(tmp_path)
    segment.seal()
    path = segment.index_path
    match damage:
        case "missing":
            path.unlink()
        case "empty":
            path.write_bytes(b"")
        case "odd":
            path.write_bytes(path.read_bytes() + b"x")
        case "longer file":
            segment.path.write_bytes(encode_payloads([*PAYLOADS, b"more"]))
        case "beyond":
            path.write_bytes(b"\xff" * 16 + path.read_bytes()[-16:])
    again = Segment(tmp_path, 0)
    again.recover(last=False)
    assert again.count == 100 + (damage == "longer file")
    assert next(iter(again.read(99, 1))).payload == PAYLOADS[99]


def test_a_torn_tail_is_cut_only_off_the_last_segment(tmp_path: Path) -> None:
    for tail in (b"\x00", encode_payloads([b"x" * 50])[:-1], b"\xff" * 40, encode_payloads([b"x"])[:-1] + b"y"):
        whole = filled(tmp_path).size
        with open(segment_path(tmp_path, 0), "ab") as file:
            file.write(tail)
        with pytest.raises(LogError, match="restore it, or remove it"):
            Segment(tmp_path, 0).recover(last=False)
        segment = Segment(tmp_path, 0)
        assert segment.recover(last=True) == len(tail)
        assert segment.path.stat().st_size == segment.size == whole
        assert segment.recover(last=False) == 0


def test_large_sets_have_index_entries_inside(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 0)
    data = encode_payloads(PAYLOADS)
    segment.path.write_bytes(data)
    segment.note(0, 0)
    segment.note_inside(data, 0, 0)
    assert len(segment._offsets) == -(-len(data) // (INDEX_BYTES + 1000))
    segment.size, segment.count = len(data), 100
    assert next(iter(segment.read(99, 1))).payload == PAYLOADS[99]


def test_readers_outlive_the_segment(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    segment.seal()
    part = segment.read(98, 1 << 20)
    segment.remove()
    segment.remove()
    assert list(tmp_path.iterdir()) == []
    assert list(part.payloads()) == PAYLOADS[98:]


def test_a_missing_segment_is_an_error(tmp_path: Path) -> None:
    segments = [filled(tmp_path, 0, PAYLOADS[:10]), filled(tmp_path, 10, PAYLOADS[:5])]
    assert recover_segments(segments) == 0
    with pytest.raises(LogError, match="one is missing; restore it"):
        recover_segments([segments[0], Segment(tmp_path, 11)])


def test_a_replaced_file_has_the_old_or_the_new_content_even_after_a_power_failure(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        path = disk.root / "file"
        for data in (b"old", b"new"):
            write_atomically(path, data)
            assert path.read_bytes() == data
            disk.mark("written", data)
        assert os.listdir(disk.root) == ["file"]
    seen = set()
    for crash in disk.crashes():
        written = crash.last("written", None)
        allowed = {None: (None, b"old"), b"old": (b"old", b"new"), b"new": (b"new",)}[written]
        for _ in crash.images(tmp_path / "image", seeds=range(9)):
            left = tmp_path / "image" / "file"
            found = left.read_bytes() if left.exists() else None
            assert found in allowed
            seen.add((written, found))
    assert seen == {(None, None), (None, b"old"), (b"old", b"old"), (b"old", b"new"), (b"new", b"new")}


def test_a_reader_of_a_file_that_is_replaced_keeps_the_old_content(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    with open(tmp_path / "file", "rb") as reader:
        write_atomically(tmp_path / "file", b"a longer new one")
        assert reader.read() == b"old"
