"""The files that are read, and the problems reported of the others; without Spark."""

from pathlib import Path

import pytest

from tests.analysis.damage import damaged_directory
from tunnel.analysis.intake import compressed_bytes, take_in
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter
from tunnel.traces.salvage import SUFFIX, examine


def plain(directory: Path, name: str, count: int = 3) -> Path:
    with JsonLinesWriter(directory / name) as trace:
        for number in range(count):
            trace(TraceRecord(time_us=number, node="a", event=TraceEvent.ATTACHED))
    return directory / name


def test_damage_is_found_and_whole_frames_are_staged(tmp_path: Path) -> None:
    expected = damaged_directory(tmp_path)
    intake, staged = take_in(tmp_path, tmp_path / "_tables")
    problems = {file.name: file.problem for file in intake.problems}
    assert problems == {name: problem for name, problem in expected.items() if problem != "version"}
    assert staged is not None
    assert len(list(staged.iterdir())) == 4
    assert all(examine(path)[0].is_whole for path in staged.iterdir())


def test_a_second_intake_without_new_files_stages_nothing(tmp_path: Path) -> None:
    plain(tmp_path, "a.jsonl")
    first, staged = take_in(tmp_path, tmp_path / "_tables")
    assert staged is not None
    again, staged = take_in(tmp_path, tmp_path / "_tables")
    assert staged is None
    assert again == first


def test_a_later_copy_is_the_duplicate(tmp_path: Path) -> None:
    path = plain(tmp_path, "b.jsonl")
    take_in(tmp_path, tmp_path / "_tables")
    (tmp_path / "a.jsonl").write_bytes(path.read_bytes())
    intake, staged = take_in(tmp_path, tmp_path / "_tables")
    assert [(file.name, file.problem, file.same_as) for file in intake.files] == [
        ("b.jsonl", "", ""),
        ("a.jsonl", "duplicate", "b.jsonl"),
    ]
    assert staged is None


def test_files_of_the_same_name_in_two_folders_are_both_read(tmp_path: Path) -> None:
    for folder, count in (("x", 1), ("y", 2)):
        (tmp_path / folder).mkdir()
        plain(tmp_path / folder, "a.jsonl", count)
    intake, staged = take_in(tmp_path, tmp_path / "_tables")
    assert [file.name for file in intake.files] == ["x/a.jsonl", "y/a.jsonl"]
    assert staged is not None
    assert len(list(staged.iterdir())) == 2


def test_an_open_file_is_named_until_it_is_finished(tmp_path: Path) -> None:
    path = tmp_path / f"_w-1-1-1{SUFFIX}"
    path.write_bytes(b"x")
    intake, staged = take_in(tmp_path, tmp_path / "_tables")
    assert staged is None
    assert [file.problem for file in intake.files] == ["open"]
    path.unlink()
    assert take_in(tmp_path, tmp_path / "_tables")[0].files == []


def test_other_files_are_ignored(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.jsonl").write_text("x")
    assert take_in(tmp_path, tmp_path / "_tables")[0].files == []


def test_a_file_system_without_links_gets_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, target: Path) -> None:
        raise OSError("no links here")

    path = plain(tmp_path, "a.jsonl")
    monkeypatch.setattr(Path, "symlink_to", refuse)
    _, staged = take_in(tmp_path, tmp_path / "_tables")
    assert staged is not None
    assert [copy.read_bytes() for copy in staged.iterdir()] == [path.read_bytes()]


def test_the_amount_to_read_is_known_in_advance(tmp_path: Path) -> None:
    (tmp_path / "_tables").mkdir()
    (tmp_path / "_tables" / "x.parquet").write_bytes(b"x" * 1000)
    assert compressed_bytes(tmp_path) == 0
    (tmp_path / f"a{SUFFIX}").write_bytes(b"x" * 300)
    (tmp_path / "b.jsonl").write_bytes(b"x" * 300)
    assert compressed_bytes(tmp_path) == 330
