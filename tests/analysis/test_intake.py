"""The files that are read, and the problems reported of the others; without Spark."""

import fcntl
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zstandard

from tests.analysis.damage import BAD_LINES, FRAME_RECORDS, damaged_directory
from tests.analysis.plain import append_to, compressed, findings_and_rows, plain, rows_of
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.intake import Added, Append, _batch, _looks, add_new, compressed_bytes, trace_files
from tunnel.analysis.kept.ledger import Commit, Intake, open_ledger
from tunnel.traces.salvage import SUFFIX, examine, salvage_directory


@pytest.fixture
def work(tmp_path: Path) -> Path:
    return tmp_path / "_tables"


def lines_of(*paths: Path) -> list[bytes]:
    return sorted(line for path in paths for part in examine(path)[1] for line in part.splitlines())


def test_damage_is_found_and_whole_frames_are_added(tmp_path: Path, work: Path) -> None:
    expected = damaged_directory(tmp_path)
    intake, rows = findings_and_rows(tmp_path, work)
    problems = {file.name: file.problem for file in intake.problems}
    assert problems == {name: problem for name, problem in expected.items() if problem != "version"}
    whole = 2 * FRAME_RECORDS + 100
    assert len(rows) == whole + 2 * FRAME_RECORDS + (FRAME_RECORDS + 100) + (whole + 1 + BAD_LINES)


def test_a_second_intake_without_new_files_adds_nothing(tmp_path: Path, work: Path) -> None:
    path = plain(tmp_path, "a.jsonl")
    first, rows = findings_and_rows(tmp_path, work)
    assert rows == lines_of(path)
    assert findings_and_rows(tmp_path, work) == (first, rows)
    assert len(list((work / "commits").iterdir())) == 1


def test_a_later_copy_is_the_duplicate(tmp_path: Path, work: Path) -> None:
    path = plain(tmp_path, "b.jsonl")
    findings_and_rows(tmp_path, work)
    (tmp_path / "a.jsonl").write_bytes(path.read_bytes())
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem, file.same_as) for file in intake.files] == [
        ("b.jsonl", "", ""),
        ("a.jsonl", "duplicate", "b.jsonl"),
    ]
    assert rows == lines_of(path)


def test_a_copy_in_the_same_intake_is_a_duplicate_too(tmp_path: Path, work: Path) -> None:
    path = compressed(tmp_path, "a")
    (tmp_path / f"copy{SUFFIX}").write_bytes(path.read_bytes())
    intake, rows = findings_and_rows(tmp_path, work)
    assert [file.problem for file in intake.files] == ["", "duplicate"]
    assert rows == lines_of(path)


def test_files_of_the_same_name_in_two_folders_are_both_read(tmp_path: Path, work: Path) -> None:
    paths = [plain(tmp_path / folder, "a.jsonl", 2) for folder in ("x", "y")]
    paths[1].write_bytes(paths[1].read_bytes().replace(b'"node":"a"', b'"node":"b"'))
    intake, rows = findings_and_rows(tmp_path, work)
    assert [file.name for file in intake.files] == ["x/a.jsonl", "y/a.jsonl"]
    assert rows == lines_of(*paths)


def test_a_truncated_copy_that_is_completed_later_adds_only_its_rest(tmp_path: Path, work: Path) -> None:
    path = compressed(tmp_path, "a", 3 * FRAME_RECORDS)
    whole, content = path.read_bytes(), lines_of(path)
    path.write_bytes(whole[: len(whole) - 10])
    intake, rows = findings_and_rows(tmp_path, work)
    assert [file.problem for file in intake.files] == ["truncated"]
    assert 0 < len(rows) < len(content)
    path.write_bytes(whole)
    intake, rows = findings_and_rows(tmp_path, work)
    assert [file.problem for file in intake.files] == [""]
    assert rows == content


def test_a_plain_file_that_grows_adds_only_its_new_lines(tmp_path: Path, work: Path) -> None:
    path = plain(tmp_path, "a.jsonl", 2)
    findings_and_rows(tmp_path, work)
    for number in (1, 2):
        with path.open("a") as file:
            file.write(f'{{"version":1,"later":{number}}}\n')
        assert findings_and_rows(tmp_path, work)[1] == lines_of(path)
    path.write_text('{"version":1,"other":1}\n')  # a new file of the same name
    assert len(findings_and_rows(tmp_path, work)[1]) == 5


@pytest.mark.parametrize("cut", [0, 7])
def test_an_unfinished_file_is_read_and_its_later_lines_are_added_once(tmp_path: Path, work: Path, cut: int) -> None:
    lines = [b'{"number":%d}' % number for number in range(3)]
    frames = [zstandard.ZstdCompressor().compress(line + b"\n") for line in lines]
    left = tmp_path / f"_left-{2**30}-aa-00001{SUFFIX}"
    left.write_bytes(frames[0] + frames[1][:9])
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem, file.frames) for file in intake.files] == [(left.name, "died", 1)]
    assert rows == lines[:1]
    whole = b"".join(frames)
    left.write_bytes(whole[: len(whole) - cut])
    assert salvage_directory(tmp_path) == [tmp_path / left.name[1:]]  # with `cut`, it compresses the file again
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem) for file in intake.files] == [(left.name[1:], "")]
    assert rows == (lines[:2] if cut else lines)  # no record of a death, for these lines name no writer
    assert {row["file"] for row in intake.found} == {left.name[1:]}


def take_in_by(append: Append, directory: Path, work: Path) -> tuple[Intake, list[bytes]]:
    with open_ledger(LocalFolder(work)) as ledger:
        intake = add_new(LocalFolder(directory), ledger, append)
    return intake, rows_of(work)


def test_a_file_that_is_finished_meanwhile_is_read_as_it_was(tmp_path: Path, work: Path) -> None:
    frame = zstandard.ZstdCompressor().compress(b'{"a":1}\n')
    unfinished, other = tmp_path / f"_a{SUFFIX}", plain(tmp_path, "b.jsonl")
    unfinished.write_bytes(frame)
    append = append_to(work)

    def meanwhile(files: list[str], data: str) -> dict[str, Added]:
        unfinished.rename(tmp_path / f"a{SUFFIX}")
        return append(files, data)

    content = sorted([b'{"a":1}', *lines_of(other)])
    assert take_in_by(meanwhile, tmp_path, work)[1] == content
    intake, rows = findings_and_rows(tmp_path, work)
    assert rows == content
    assert intake.problems == []


@pytest.mark.parametrize("is_plain", [True, False])
def test_a_file_that_changes_while_it_is_read_is_read_again_from_a_copy(
    tmp_path: Path, work: Path, is_plain: bool
) -> None:
    path = plain(tmp_path, "a.jsonl") if is_plain else compressed(tmp_path, "a")
    append, seen = append_to(work), []
    later = b'{"later":%d}\n'

    def meanwhile(files: list[str], data: str) -> dict[str, Added]:
        seen.append(files)
        added = append(files, data)
        line = later % len(seen)
        with path.open("ab") as file:
            file.write(line if is_plain else zstandard.ZstdCompressor().compress(line))
        return added

    content = lines_of(path)
    rows = take_in_by(meanwhile, tmp_path, work)[1]
    assert rows == sorted([*content, b'{"later":1}'])
    assert [[uri == f"file:{path}" for uri in files] for files in seen] == [[True], [False]]
    assert len(list((work / "events").iterdir())) == 1
    assert findings_and_rows(tmp_path, work)[1] == sorted([*rows, b'{"later":2}'])


def test_whole_files_are_read_where_they_lie_and_only_mended_ones_are_copied(tmp_path: Path, work: Path) -> None:
    whole = [compressed(tmp_path, "a"), plain(tmp_path / "x y", "b [1]*.jsonl")]
    cut = compressed(tmp_path, "c", 3 * FRAME_RECORDS)
    cut.write_bytes(cut.read_bytes()[:-10])
    append, seen = append_to(work), []

    def note(files: list[str], data: str) -> dict[str, Added]:
        seen.extend(files)
        assert all(examine(Path(uri.removeprefix("file:")))[0].is_whole for uri in files)  # Spark skips no damage
        return append(files, data)

    take_in_by(note, tmp_path, work)
    assert {f"file:{path}" for path in whole} < set(seen)
    (staged,) = set(seen) - {f"file:{path}" for path in whole}
    assert staged.startswith(f"file:{work}/staged/")
    assert not list((work / "staged").iterdir())


def test_fewer_rows_than_a_file_has_are_an_error_and_nothing_is_added(tmp_path: Path, work: Path) -> None:
    compressed(tmp_path, "a")
    plain(tmp_path, "b.jsonl", 2)
    append = append_to(work)

    def lose(files: list[str], data: str) -> dict[str, Added]:
        added = append(files, data)
        return added | {files[0]: Added("x", 1, [])}

    with pytest.raises(SetupError, match=r"3 of 5 events were written, .* the same path, and run the command again"):
        take_in_by(lose, tmp_path, work)
    assert rows_of(work) == []
    assert len(findings_and_rows(tmp_path, work)[1]) == 5


def test_a_surplus_row_of_one_file_does_not_make_up_for_a_missing_row_of_another(tmp_path: Path, work: Path) -> None:
    plain(tmp_path, "a.jsonl")
    plain(tmp_path, "b.jsonl", 2)
    append = append_to(work)

    def mix(files: list[str], data: str) -> dict[str, Added]:
        append(files, data)
        return {files[0]: Added("x", 2, []), files[1]: Added("y", 3, [])}

    with pytest.raises(SetupError, match="5 of 5 events were written"):
        take_in_by(mix, tmp_path, work)


def test_a_file_without_a_whole_frame_is_named_until_it_is_gone(tmp_path: Path, work: Path) -> None:
    path = tmp_path / f"_w-1-1-1{SUFFIX}"
    path.write_bytes(b"x")
    intake, rows = findings_and_rows(tmp_path, work)
    assert [file.problem for file in intake.files] == ["open"]  # a process with this PID runs, always
    assert rows == []
    path.unlink()
    assert findings_and_rows(tmp_path, work)[0].files == []


def test_other_files_are_ignored(tmp_path: Path, work: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / ".hidden.jsonl").write_text("x")
    assert findings_and_rows(tmp_path, work)[0].files == []


def test_empty_lines_are_left_out_since_spark_leaves_them_out(tmp_path: Path, work: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'\n{"a":1}\n \t\n\r\n{"a":2}\n\n')
    whole = zstandard.ZstdCompressor().compress(b'{"a":3}\n\n{"a":4}\n')
    (tmp_path / f"b{SUFFIX}").write_bytes(whole)
    assert findings_and_rows(tmp_path, work)[1] == [b'{"a":%d}' % number for number in (1, 2, 3, 4)]
    assert findings_and_rows(tmp_path, work)[0].problems == []


def test_a_file_that_was_deleted_after_it_had_been_read_counts(tmp_path: Path, work: Path) -> None:
    path = compressed(tmp_path, "a")

    append = append_to(work)

    def remove(files: list[str], data: str) -> dict[str, Added]:
        added = append(files, data)
        path.unlink()
        return added

    assert [file.problem for file in take_in_by(remove, tmp_path, work)[0].files] == [""]
    assert len(findings_and_rows(tmp_path, work)[1]) == 3


def test_the_amount_to_read_is_known_in_advance(tmp_path: Path, work: Path) -> None:
    work.mkdir()
    (work / "x.parquet").write_bytes(b"x" * 1000)
    assert compressed_bytes(LocalFolder(tmp_path)) == 0
    (tmp_path / f"a{SUFFIX}").write_bytes(b"x" * 300)
    (tmp_path / f"_c{SUFFIX}").write_bytes(b"x" * 100)
    (tmp_path / "b.jsonl").write_bytes(b"x" * 305)
    assert compressed_bytes(LocalFolder(tmp_path)) == 430


class LosingFolder(LocalFolder):
    """A folder whose files `lost` vanish after the folder was listed and before they are looked at."""

    def __init__(self, path: Path, lost: set[str]) -> None:
        super().__init__(path)
        self._lost = lost

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        if name in self._lost:
            raise FileNotFoundError(name)
        with super().local_copy(name) as path:
            yield path


@pytest.mark.parametrize("lost", [set(), {"x00.jsonl", "x05.jsonl", "x19.jsonl"}])
def test_many_files_are_looked_at_in_order_and_those_that_vanished_are_left_out(
    tmp_path: Path, work: Path, lost: set[str]
) -> None:
    names = [f"x{number:02d}.jsonl" for number in range(20)]
    for name in names:
        (tmp_path / name).write_text(f'{{"of":"{name}"}}\n')
    with open_ledger(LocalFolder(work)) as ledger:
        batch = _batch(
            LosingFolder(tmp_path, lost), ledger, ledger.begin()[0], trace_files(LocalFolder(tmp_path)), set()
        )
    assert [entry.file.name for entry in batch.entries] == [name for name in names if name not in lost]


class WatchedFolder(LocalFolder):
    """A folder that records which files are read. The reads of the first two wait for each other."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.read_files: list[str] = []
        self._both = threading.Barrier(2, timeout=30.0)

    @contextmanager
    def local_copy(self, name: str) -> Iterator[Path]:
        self.read_files.append(name)
        if name in ("x00.jsonl", "x01.jsonl"):
            self._both.wait()
        yield self.path / name


def test_files_are_read_on_several_threads_and_only_a_few_ahead(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the contents of all new files would be in memory at once."""
    monkeypatch.setattr("tunnel.analysis.kept.intake._THREADS", 2)
    submitted = []
    submit = ThreadPoolExecutor.submit

    def note(pool: ThreadPoolExecutor, call: Any, *arguments: Any) -> Any:
        submitted.append(arguments)
        return submit(pool, call, *arguments)

    monkeypatch.setattr(ThreadPoolExecutor, "submit", note)
    for number in range(20):
        (tmp_path / f"x{number:02d}.jsonl").write_text("{}\n")
    files = trace_files(LocalFolder(tmp_path))
    folder = WatchedFolder(tmp_path)
    looks = _looks(folder, files)
    seen = [next(looks)]
    assert len(submitted) == 3
    seen += looks
    assert [look.status for look in seen] == files
    assert sorted(folder.read_files) == [file.name for file in files]


def test_files_without_lines_do_not_keep_others_from_being_added(tmp_path: Path, work: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b"")
    (tmp_path / f"b{SUFFIX}").write_bytes(b"no frame at all")
    (tmp_path / "c.jsonl").write_bytes(b"\n\n")
    paths = [plain(tmp_path, "d.jsonl", 2), plain(tmp_path, "e.jsonl")]
    intake, rows = findings_and_rows(tmp_path, work)
    assert rows == lines_of(*paths)
    assert [(file.name, file.problem, file.corrupt_frames) for file in intake.files] == [
        ("a.jsonl", "empty", 0),
        (f"b{SUFFIX}", "corrupt", 1),
        ("c.jsonl", "", 0),
        ("d.jsonl", "", 0),
        ("e.jsonl", "", 0),
    ]


def test_a_record_of_the_ledger_has_the_rows_and_the_sources_of_what_was_added(tmp_path: Path, work: Path) -> None:
    paths = [plain(tmp_path, "a.jsonl", 2), compressed(tmp_path / "x", "b")]
    intake, _ = findings_and_rows(tmp_path, work)
    (tmp_path / "copy.jsonl").write_bytes(paths[0].read_bytes())
    findings_and_rows(tmp_path, work)
    records = (path.read_bytes() for path in sorted((work / "commits").iterdir()))
    first, second = (msgspec.json.decode(record, type=Commit) for record in records)
    assert (first.rows, second.rows) == (5, 0)
    assert first.data
    assert second.data == []
    assert {entry.source: entry.file.name for entry in first.entries} == {
        f"file:{path}": str(path.relative_to(tmp_path)) for path in paths
    }
    assert {row["file"]: row["rows"] for row in intake.found} == {"a.jsonl": 2, f"x/{paths[1].name}": 3}
    assert not list((work / "staged").iterdir())
    assert [file.frames for file in intake.files] == [0, 1]


def test_the_beginning_of_a_known_file_is_a_duplicate_while_that_file_contains_it(tmp_path: Path, work: Path) -> None:
    path = plain(tmp_path, "b.jsonl", 5)
    content = path.read_bytes()
    begin = b"".join(content.splitlines(keepends=True)[:2])
    findings_and_rows(tmp_path, work)
    (tmp_path / "c.jsonl").write_bytes(begin)
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem, file.same_as) for file in intake.files][1:] == [
        ("c.jsonl", "duplicate", "b.jsonl")
    ]
    assert rows == lines_of(path)
    path.write_bytes(b'{"a":1}\n')  # it is another file now
    (tmp_path / "d.jsonl").write_bytes(begin.replace(b'"time_us":1', b'"time_us":9'))
    assert findings_and_rows(tmp_path, work)[0].files[2].problem == ""
    path.unlink()  # now no file shows that more lines followed these
    (tmp_path / "e.jsonl").write_bytes(b"".join(content.splitlines(keepends=True)[:3]))
    assert findings_and_rows(tmp_path, work)[0].files[3].problem == ""


def test_nothing_is_written_when_there_is_nothing_new(tmp_path: Path, work: Path) -> None:
    """A job of Spark takes seconds."""

    def refuse(files: list[str], data: str) -> dict[str, Added]:
        raise AssertionError(files)

    (tmp_path / "empty.jsonl").write_bytes(b"")
    assert take_in_by(refuse, tmp_path, work)[1] == []


def test_a_copy_with_new_lines_is_no_duplicate(tmp_path: Path, work: Path) -> None:
    path = plain(tmp_path, "a.jsonl", 2)
    findings_and_rows(tmp_path, work)
    (tmp_path / "b.jsonl").write_bytes(path.read_bytes() + b'{"later":1}\n')
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.problem, file.same_as) for file in intake.files] == [("", ""), ("", "")]
    assert rows == lines_of(tmp_path / "b.jsonl")


def test_a_file_that_was_rewritten_in_the_same_size_is_read_again(tmp_path: Path, work: Path) -> None:
    path = tmp_path / "a.jsonl"
    for number in (1, 2):
        path.write_text(f'{{"a":{number}}}\n')
        os.utime(path, ns=(number, number))
        rows = findings_and_rows(tmp_path, work)[1]
    assert rows == [b'{"a":1}', b'{"a":2}']


def test_a_copy_that_spark_reads_has_checksums(tmp_path: Path, work: Path) -> None:
    """With them, Zstandard notices that a copy is damaged (RFC 8878 3.1.1.1.1.5)."""
    (tmp_path / "a.jsonl").write_bytes(b'{"a":1}\n\n{"a":2}\n')
    append = append_to(work)
    flags: list[int] = []

    def note(files: list[str], data: str) -> dict[str, Added]:
        flags.extend(Path(uri.removeprefix("file:")).read_bytes()[4] & 4 for uri in files)
        return append(files, data)

    take_in_by(note, tmp_path, work)
    assert flags == [4]


def test_each_file_that_has_changed_is_read_from_a_copy_from_then_on(tmp_path: Path, work: Path) -> None:
    paths = [plain(tmp_path, name) for name in ("a.jsonl", "b.jsonl", "c.jsonl")]
    append, seen = append_to(work), []

    def meanwhile(files: list[str], data: str) -> dict[str, Added]:
        seen.append([f"file:{path}" in files for path in paths])
        added = append(files, data)
        if len(seen) <= 2:
            with paths[len(seen) - 1].open("ab") as file:
                file.write(b'{"later":%d}\n' % len(seen))
        return added

    assert take_in_by(meanwhile, tmp_path, work)[1] == lines_of(*paths)
    assert seen == [[True, True, True], [False, True, True], [False, False, True]]


def test_an_unfinished_file_whose_rows_were_added_is_named_even_when_it_is_gone(tmp_path: Path, work: Path) -> None:
    path = tmp_path / f"_w-1-1-1{SUFFIX}"
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"a":1}\n') + b"x")
    findings_and_rows(tmp_path, work)
    path.unlink()
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem) for file in intake.files] == [(path.name, "open")]
    assert rows == [b'{"a":1}']


def test_an_unfinished_plain_file_is_ignored(tmp_path: Path, work: Path) -> None:
    """No program of ours writes one, so the file may be the user's own."""
    (tmp_path / "_notes.jsonl").write_text('{"a":1}\n')
    assert findings_and_rows(tmp_path, work)[0].files == []
    assert compressed_bytes(LocalFolder(tmp_path)) == 0


@pytest.mark.parametrize("blank", [b"\n", b" \n", b"\t\r\n"])
def test_an_empty_line_at_the_beginning_is_left_out(tmp_path: Path, work: Path, blank: bytes) -> None:
    (tmp_path / "a.jsonl").write_bytes(blank + b'{"a": "b c"}\n')
    assert findings_and_rows(tmp_path, work)[1] == [b'{"a": "b c"}']


def test_lines_that_may_be_new_are_added_rather_than_lost(tmp_path: Path, work: Path) -> None:
    """Only the earlier file could show that these lines are its beginning, and it is gone."""
    path = plain(tmp_path, "a.jsonl", 5)
    begin = b"".join(path.read_bytes().splitlines(keepends=True)[:2])
    findings_and_rows(tmp_path, work)
    path.unlink()
    (tmp_path / "b.jsonl").write_bytes(begin)
    intake, rows = findings_and_rows(tmp_path, work)
    assert intake.files[1].problem == ""
    assert len(rows) == 7


def test_an_unfinished_file_in_a_subfolder_is_recognised(tmp_path: Path, work: Path) -> None:
    (tmp_path / "x").mkdir()
    path = tmp_path / "x" / f"_w-1-1-1{SUFFIX}"
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"a":1}\n'))
    assert trace_files(LocalFolder(tmp_path)) == []
    assert compressed_bytes(LocalFolder(tmp_path)) == path.stat().st_size
    intake, rows = findings_and_rows(tmp_path, work)
    assert [(file.name, file.problem) for file in intake.files] == [(f"x/{path.name}", "open")]
    assert rows == [b'{"a":1}']


def test_an_unfinished_file_is_one_of_a_dead_process_as_soon_as_nobody_holds_it(tmp_path: Path, work: Path) -> None:
    """Its content does not change then, and so is not read again."""
    path = tmp_path / f"_w-{2**30}-aa-00001{SUFFIX}"  # a PID that cannot exist, as seen from another container
    path.write_bytes(zstandard.ZstdCompressor().compress(b'{"a":1}\n'))
    with path.open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        assert [file.problem for file in findings_and_rows(tmp_path, work)[0].files] == ["open"]
    intake, rows = findings_and_rows(tmp_path, work)
    assert ([file.problem for file in intake.files], rows) == (["died"], [b'{"a":1}'])
