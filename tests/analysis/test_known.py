"""Content that the tables have is recognised, whatever file brings it."""

from collections.abc import Callable
from pathlib import Path

import pytest
import zstandard
from xxhash import xxh3_64_hexdigest

from tests.analysis.plain import compressed, findings_and_rows, plain
from tunnel.analysis.kept.known import Known, Piece, part_of
from tunnel.analysis.kept.ledger import Entry, Part, TraceFile
from tunnel.traces.salvage import SUFFIX, examine


def lines(begin: int, end: int) -> bytes:
    return b"".join(b'{"number":%d}\n' % number for number in range(begin, end))


def compress(content: bytes) -> bytes:
    return zstandard.ZstdCompressor().compress(content)


def content_of(*paths: Path) -> bytes:
    return b"".join(part for path in paths for part in examine(path)[1])


Change = Callable[[Path, Path], None]


def unpacked(traces: Path, original: Path) -> None:
    (traces / "copy.jsonl").write_bytes(content_of(original))


def unpacked_and_cut(traces: Path, original: Path) -> None:
    content = content_of(original)
    (traces / "copy.jsonl").write_bytes(content[: len(content) * 2 // 3])


def packed_into_one_frame(traces: Path, original: Path) -> None:
    (traces / f"copy{SUFFIX}").write_bytes(compress(content_of(original)))


def cut(traces: Path, original: Path) -> None:
    (traces / f"copy{SUFFIX}").write_bytes(original.read_bytes()[:-9])


@pytest.mark.parametrize("copy", [unpacked, unpacked_and_cut, packed_into_one_frame, cut])
@pytest.mark.parametrize("is_later", [True, False])
def test_a_copy_in_any_form_is_a_duplicate(tmp_path: Path, copy: Change, is_later: bool) -> None:
    original = compressed(tmp_path, "a", 10_000)
    content = content_of(original)
    if is_later:
        findings_and_rows(tmp_path, tmp_path / "_tables")
    copy(tmp_path, original)
    intake, rows = findings_and_rows(tmp_path, tmp_path / "_tables")
    assert rows == sorted(content.splitlines())
    assert {file.name: (file.problem, file.same_as) for file in intake.files} == {
        original.name: ("", ""),
        next(path.name for path in tmp_path.glob("copy*")): ("duplicate", original.name),
    }


def test_a_cut_copy_of_a_plain_file_is_a_duplicate_and_its_growth_is_new(tmp_path: Path) -> None:
    path = plain(tmp_path, "b.jsonl", 9)
    whole = path.read_bytes().splitlines(keepends=True)
    findings_and_rows(tmp_path, tmp_path / "_tables")
    copy = tmp_path / "a.jsonl"
    copy.write_bytes(b"".join(whole[:4]))
    intake, rows = findings_and_rows(tmp_path, tmp_path / "_tables")
    assert [(file.name, file.problem, file.same_as) for file in intake.files][1] == ("a.jsonl", "duplicate", "b.jsonl")
    assert len(rows) == 9
    copy.write_bytes(b"".join(whole[:4]) + lines(0, 2))
    assert len(findings_and_rows(tmp_path, tmp_path / "_tables")[1]) == 11


def test_a_file_that_grew_at_two_times_is_known_in_one_piece(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    for end in (3, 5, 9):
        path.write_bytes(lines(0, end))
        findings_and_rows(tmp_path, tmp_path / "_tables")
    (tmp_path / f"b{SUFFIX}").write_bytes(compress(lines(0, 9)))
    (tmp_path / "c.jsonl").write_bytes(lines(0, 12))
    intake, rows = findings_and_rows(tmp_path, tmp_path / "_tables")
    assert rows == sorted(lines(0, 12).splitlines())
    assert {file.name: file.problem for file in intake.files} == {
        "a.jsonl": "",
        f"b{SUFFIX}": "duplicate",
        "c.jsonl": "",
    }


def test_files_that_were_joined_into_one_are_known(tmp_path: Path) -> None:
    one, two = compressed(tmp_path, "a", 5), plain(tmp_path, "b.jsonl", 4)
    findings_and_rows(tmp_path, tmp_path / "_tables")
    (tmp_path / "all.jsonl").write_bytes(content_of(two, one) + lines(0, 1))
    assert len(findings_and_rows(tmp_path, tmp_path / "_tables")[1]) == 10


def test_a_cut_copy_is_added_again_if_its_original_is_no_longer_there(tmp_path: Path) -> None:
    path = plain(tmp_path, "b.jsonl", 9)
    content = path.read_bytes()
    findings_and_rows(tmp_path, tmp_path / "_tables")
    path.unlink()
    (tmp_path / "a.jsonl").write_bytes(content[: content.index(b"\n", 200) + 1])
    assert len(findings_and_rows(tmp_path, tmp_path / "_tables")[1]) > 9


def test_files_that_begin_alike_and_go_on_differently_are_both_read(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(0, 9))
    (tmp_path / "b.jsonl").write_bytes(lines(0, 1) + lines(20, 23))
    assert len(findings_and_rows(tmp_path, tmp_path / "_tables")[1]) == 13


def test_known_parts_of_a_content_are_divided_from_the_rest() -> None:
    parts = [part_of(lines(0, 3)), part_of(lines(3, 5))]
    known = Known([Entry(TraceFile("a", 1, 1), parts=parts)], lambda name, content: False)
    content = lines(0, 7)
    pieces = list(known.pieces(content, part_of(content)))
    assert [(piece.part, piece.owner, piece.content) for piece in pieces] == [
        (parts[0], "a", b""),
        (parts[1], "a", b""),
        (part_of(lines(5, 7)), "", lines(5, 7)),
    ]
    assert list(known.pieces(b"", part_of(b""))) == []
    assert list(known.pieces(lines(0, 3), parts[0])) == [Piece(parts[0], "a", b"")]


def test_a_part_is_known_by_its_lines_and_by_the_first_of_them() -> None:
    content = b"one\ntwo\n"
    assert part_of(content) == Part(xxh3_64_hexdigest(content), xxh3_64_hexdigest(b"one\n"), len(content))


def test_lines_that_begin_alike_and_are_as_long_are_new() -> None:
    known = Known([Entry(TraceFile("a", 1, 1), parts=[part_of(b"one\ntwo\n")])], lambda name, content: False)
    other = b"one\nsix\n"
    assert list(known.pieces(other, part_of(other))) == [Piece(part_of(other), "", other)]
    longer = other + b"two\n"
    assert list(known.pieces(longer, part_of(longer))) == [Piece(part_of(longer), "", longer)]


def test_the_lines_of_a_cut_copy_are_not_taken_again() -> None:
    known = Known([Entry(TraceFile("a", 1, 1), parts=[part_of(lines(0, 5))])], lambda name, content: name == "a")
    cut = lines(0, 2)
    assert list(known.pieces(cut, part_of(cut))) == [Piece(part_of(cut), "a", b"")]
