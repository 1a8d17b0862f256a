"""Segments: finding messages by offset, and recovery after a crash."""

import math
import os
import time
from array import array
from pathlib import Path

import pytest

from tests.support.disk import recorded_syncs
from tunnel.messages.errors import LogError
from tunnel.messages.kept.segments import INDEX_BYTES, Segment, recover_segments, segment_base, segment_path
from tunnel.messages.sets.file_sets import FileMessageSet
from tunnel.messages.sets.message import encode_payloads
from tunnel.system import clock

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


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and directories that were synced, in order."""
    return recorded_syncs(monkeypatch)


def test_what_a_killed_process_wrote_is_synced_before_it_is_read(tmp_path: Path, synced: list[str]) -> None:
    segment = filled(tmp_path)
    assert synced == [str(segment.path)]
    Segment(tmp_path, 0).recover(last=False)
    assert len(synced) == 1


def test_the_first_damage_and_what_to_do_is_named(tmp_path: Path) -> None:
    data = encode_payloads([b"abc", b"def"])
    path = segment_path(tmp_path, 0)
    for content, text in (
        (data[:-1] + b"x", f"{path} is damaged: the payload does not match its CRC-32 (at 13); "),
        (data[:-1], f"{path} ends within a message; "),
    ):
        path.write_bytes(content)
        with pytest.raises(LogError) as caught:
            Segment(tmp_path, 0).recover(last=False)
        assert str(caught.value) == f"{text}restore it, or remove it and all older segments"


def test_a_part_says_which_offset_comes_after_it_where_that_is_known(tmp_path: Path) -> None:
    segment = filled(tmp_path, 5)
    size = len(encode_payloads(PAYLOADS[:1]))
    for part in (segment.read(5, segment.size), segment.read(5, 1 << 30)):
        assert (part.size_bytes, part.next_offset) == (segment.size, 105)
    assert (segment.read(105, 10).size_bytes, segment.read(105, 10).next_offset) == (0, 105)
    part = segment.read(5, 40_000)  # up to an entry of the index
    assert part.next_offset is not None
    assert 20_000 < part.size_bytes <= 40_000
    assert list(part.payloads()) == PAYLOADS[: part.next_offset - 5]
    exact = segment.read(5, part.size_bytes)
    assert (exact.size_bytes, exact.next_offset) == (part.size_bytes, part.next_offset)
    inside = segment.read(part.next_offset, 1500)
    assert (inside.size_bytes, inside.next_offset) == (1500, None)
    assert segment.read(5, 1).size_bytes == size
    assert segment.read(5, size).size_bytes == size


def test_a_segment_has_messages_of_any_size(tmp_path: Path) -> None:
    large = bytes(1_000_001)
    segment = filled(tmp_path, 0, [b"small", large])
    assert (segment.count, list(segment.read(0, 1).payloads())) == (2, [b"small"])
    assert list(segment.read(1, 1).payloads()) == [large]


def test_a_segment_can_be_read_when_it_is_sealed_and_its_end_was_noted(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    segment.remember_end()
    assert segment.position(100) == segment.size
    segment.seal()
    assert next(iter(segment.read(99, 1))).payload == PAYLOADS[99]
    assert segment.index_path.stat().st_mode & 0o777 == 0o600


def test_a_missing_segment_is_named_with_the_offsets_around_it(tmp_path: Path) -> None:
    first = filled(tmp_path, 0, PAYLOADS[:10])
    filled(tmp_path, 12, PAYLOADS[:5])
    with pytest.raises(LogError) as caught:
        recover_segments([first, Segment(tmp_path, 12)])
    text = f"{first.path} ends at 10, but the next segment begins at 12: one is missing; restore it"
    assert str(caught.value) == text


def test_only_what_is_cut_off_the_last_segment_is_counted(tmp_path: Path) -> None:
    first, last = filled(tmp_path, 0, PAYLOADS[:10]), filled(tmp_path, 10, PAYLOADS[:5])
    with open(last.path, "ab") as file:
        file.write(b"torn")
    assert recover_segments([first, last]) == 4
    assert recover_segments([first, last]) == 0


def test_a_new_segment_is_empty_and_only_its_user_can_read_it(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 5)
    assert (segment.size, segment.count, segment.end) == (0, 0, 5)
    segment.writer()
    assert segment.path.stat().st_mode & 0o777 == 0o600
    assert segment.read(5, 10).size_bytes == 0


@pytest.mark.parametrize("count", range(10, 100, 15))
def test_an_index_is_read_as_it_was_written(tmp_path: Path, count: int) -> None:
    segment = filled(tmp_path, 0, PAYLOADS[:count])
    segment.seal()
    segment.path.write_bytes(bytes(segment.size))  # to read the messages would be an error
    again = Segment(tmp_path, 0)
    assert again.recover(last=False) == 0
    assert (again._offsets, again._positions) == (segment._offsets, segment._positions)
    assert (again.count, again.size) == (count, segment.size)


@pytest.mark.parametrize("number", [-2, -1])
def test_an_index_with_an_entry_beyond_the_end_is_not_used(tmp_path: Path, number: int) -> None:
    segment = filled(tmp_path)
    segment.seal()
    numbers = array("Q", segment.index_path.read_bytes())
    numbers[number - 2] = 1 << 40  # the last two numbers are the end; those before them are the last entry
    segment.index_path.write_bytes(numbers.tobytes())
    again = Segment(tmp_path, 0)
    again.recover(last=False)
    assert (again._offsets, again._positions) == (segment._offsets, segment._positions)


def test_the_last_ends_that_readers_saw_are_found_without_reading_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = filled(tmp_path)
    end = segment.size
    for count in range(1, 101):
        segment.count, segment.size = count, 1010 * count
        segment.remember_end()
    segment.size = end
    monkeypatch.setattr(FileMessageSet, "search", lambda *_: pytest.fail("it read the file"))
    assert [segment.position(count) for count in range(40, 100)] == [1010 * count for count in range(40, 100)]
    assert len(segment._ends) <= 64


def test_readers_share_the_descriptor_of_the_writer(tmp_path: Path) -> None:
    segment = filled(tmp_path)
    writer = segment.writer()
    assert segment.messages().keeps is writer
    del writer
    reader = segment.messages()
    assert segment.messages().keeps is reader.keeps


def test_a_reader_gets_nothing_that_is_not_flushed(tmp_path: Path) -> None:
    """A power failure could take it back."""
    segment = filled(tmp_path)
    flushed = segment.read(0, 40_000)
    assert flushed.next_offset is not None
    segment.count, segment.size = flushed.next_offset, flushed.size_bytes
    for size_max in (1, 20_000, segment.size, 1 << 30):
        assert segment.read(0, size_max).size_bytes <= segment.size
    assert list(segment.read(0, 1 << 30).payloads()) == PAYLOADS[: segment.count]
    assert segment.read(segment.count, 1 << 30).size_bytes == 0


def test_the_name_of_a_segment_tells_its_first_offset(tmp_path: Path) -> None:
    for base in (0, 7, 1 << 63):
        assert segment_base(segment_path(tmp_path, base)) == base
    for name in ("7.log", "copy.log", f"{7:020d}.old", "-0000000000000000007.log", "\u0660" * 20 + ".log"):
        with pytest.raises(LogError) as caught:
            segment_base(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name} is no segment of a log: move it away"


@pytest.mark.interpreted  # it replaces a function of the clock, which calls it
def test_the_age_of_a_segment_counts_from_its_last_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    segment = filled(tmp_path)
    os.utime(segment.path, (0, 1000))
    monkeypatch.setattr(time, "time", lambda: 1300.0)
    passed = iter((0.0, 0.0, 7.0, 7.0, 12.0))
    monkeypatch.setattr(clock, "passed_s", lambda: next(passed))
    segment.recover(last=True)
    assert segment.age_s() == 307
    segment.written()
    assert segment.age_s() == 5
    segment.remove()
    assert segment.age_s() == math.inf  # it has been removed by now: it is older than anything that is to be kept


@pytest.mark.parametrize("torn", [b"", b"torn"])
def test_a_last_segment_without_a_whole_message_is_empty(tmp_path: Path, torn: bytes) -> None:
    segment_path(tmp_path, 0).write_bytes(torn)
    segment = Segment(tmp_path, 0)
    assert segment.recover(last=True) == len(torn)
    assert (segment.size, segment.count, segment.path.read_bytes()) == (0, 0, b"")


def test_every_message_of_a_new_segment_is_found(tmp_path: Path) -> None:
    segment = Segment(tmp_path, 5)
    writer = segment.writer()
    os.write(writer.number, encode_payloads([b"a", b"b"]))
    segment.note(0, 0)
    segment.note(1, 11)
    segment.size, segment.count = 22, 2
    assert [next(iter(segment.read(offset, 100))).payload for offset in (5, 6)] == [b"a", b"b"]
