"""The ledger: a record is there or is not, and one process at a time adds to it."""

import fcntl
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.analysis.plain import compressed, findings_and_rows, plain, rows_of
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.ledger import Commit, Entry, Ledger, LedgerError, State, TraceFile, key_of, open_ledger


def test_the_second_of_two_processes_is_told_which_one_is_the_first(tmp_path: Path) -> None:
    with (
        open_ledger(LocalFolder(tmp_path)),
        pytest.raises(LedgerError, match=rf"process {os.getpid()} on .*run this one again"),
        open_ledger(LocalFolder(tmp_path)),
    ):
        raise AssertionError
    with open_ledger(LocalFolder(tmp_path)):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_is_respected_before_its_holder_has_written_its_name(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="not written its name yet"), open_ledger(LocalFolder(tmp_path)):
            raise AssertionError


def test_the_record_of_another_process_is_not_replaced(tmp_path: Path) -> None:
    """Two processes may add at once where a file system does not honour locks."""
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        other = Ledger(LocalFolder(tmp_path))
        other.commit([Entry(TraceFile("a", 1, 1))])
        with pytest.raises(LedgerError) as error:
            ledger.commit([Entry(TraceFile("b", 1, 1))])
    assert str(error.value) == (
        f"another process has added to the tables in {tmp_path} meanwhile, so this one added nothing: run the command "
        "again"
    )
    assert [file.name for file in Ledger(LocalFolder(tmp_path)).intake.files] == ["a"]
    assert [path.name for path in (tmp_path / "commits").iterdir()] == ["00000001.json"]


def test_a_file_system_without_links_has_records_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr("os.link", refuse)
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        other = Ledger(LocalFolder(tmp_path))
        ledger.commit([Entry(TraceFile("a", 1, 1))])
        with pytest.raises(LedgerError, match="another process has added"):
            other.commit([Entry(TraceFile("b", 1, 1))])
    assert [file.name for file in Ledger(LocalFolder(tmp_path)).intake.files] == ["a"]


class TakenFolder(LocalFolder):
    """A folder that takes its lock from another process, although that process may only be frozen."""

    @contextmanager
    def lock(self) -> Iterator[bool]:
        yield True


def test_a_process_that_lost_its_lock_can_add_nothing_any_more(tmp_path: Path) -> None:
    with open_ledger(LocalFolder(tmp_path)) as frozen:
        with open_ledger(TakenFolder(tmp_path)) as ledger:
            assert ledger.state == State(number=1)
        with pytest.raises(LedgerError, match="another process has added"):
            frozen.commit([Entry(TraceFile("late", 1, 1))])
    assert Ledger(LocalFolder(tmp_path)).entries == []


def test_rows_are_on_disk_before_the_record_that_names_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash of the machine keeps what was synced: the content of files, and the names in directories."""
    steps: list[str] = []
    fsync, link = os.fsync, os.link

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        synced = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        steps.append(str(synced.relative_to(tmp_path)).partition("-")[0])

    def note_link(source: Path, target: Path) -> None:
        link(source, target)
        steps.append(f"appears: {target.name}")

    with open_ledger(LocalFolder(tmp_path)) as ledger:
        _, data = ledger.begin()
        (tmp_path / data / "part").mkdir(parents=True)
        (tmp_path / data / "part" / "rows").write_bytes(b"1")
        monkeypatch.setattr(os, "fsync", note_fsync)
        monkeypatch.setattr(os, "link", note_link)
        ledger.commit([Entry(TraceFile("a", 1, 1))], [f"{data}/part"], 1)
    number = data.partition("-")[0]
    assert steps[0] == "."  # it names the folder of the records
    assert steps[1:4] == [number] * 3  # the rows, and the folders that name them
    assert steps[4:] == ["events", "commits/.00000001.json", "appears: 00000001.json", "commits"]


def test_a_record_says_what_was_added_where(tmp_path: Path) -> None:
    added: list[str] = []
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        for number in (1, 2):
            staged, data = ledger.begin()
            assert staged.startswith(f"staged/0000000{number}-")
            assert data.startswith(f"events/0000000{number}-")
            assert (tmp_path / staged).is_dir()
            added.append(f"{data}/2026-11-0{number}")
            (tmp_path / added[-1]).mkdir(parents=True)
            ledger.commit([Entry(TraceFile(f"f{number}", 1, 1))], added[-1:], 10 * number)
        ledger.commit([Entry(TraceFile("f1", 2, 2))])
    read = Ledger(LocalFolder(tmp_path))
    assert read.state == ledger.state
    assert [entry.file.name for entry in read.entries] == ["f1", "f2", "f1"]
    assert read.data() == added
    records = sorted((tmp_path / "commits").iterdir())
    assert [msgspec.json.decode(path.read_bytes(), type=Commit).rows for path in records] == [10, 20, 0]
    assert sorted(path.name for path in (tmp_path / "commits").iterdir()) == [f"0000000{n}.json" for n in (1, 2, 3)]


def test_the_findings_are_those_of_the_latest_look_at_each_file(tmp_path: Path) -> None:
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        ledger.commit([Entry(TraceFile("_a", 1, 1, problem="open"), found=[{"n": 1}]), Entry(TraceFile("b", 1, 1))])
        ledger.commit([Entry(TraceFile("a", 2, 2), found=[{"n": 2}]), Entry(TraceFile("c", 1, 1, problem="empty"))])
    intake = Ledger(LocalFolder(tmp_path)).intake
    assert [(file.name, file.size_bytes) for file in intake.files] == [("a", 2), ("b", 1), ("c", 1)]
    assert intake.found == [{"file": "a", "n": 1}, {"file": "a", "n": 2}]
    assert [file.name for file in intake.problems] == ["c"]


def test_a_record_of_another_version_is_refused(tmp_path: Path) -> None:
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        ledger.commit([])
    record = tmp_path / "commits" / "00000001.json"
    record.write_text(record.read_text().replace('"format":3', '"format":4'))
    with pytest.raises(LedgerError, match=r"00000001.json has the format 4 of another version, .* format 3: delete "):
        Ledger(LocalFolder(tmp_path))


def test_what_a_killed_process_had_begun_is_removed(tmp_path: Path) -> None:
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        staged, data = (tmp_path / name for name in ledger.begin())
        data.mkdir()
    assert staged.is_dir()
    with open_ledger(LocalFolder(tmp_path)):
        assert not staged.exists()
        assert not data.exists()


def test_a_record_that_never_got_its_name_is_removed(tmp_path: Path) -> None:
    (tmp_path / "commits").mkdir()
    left = tmp_path / "commits" / ".00000001.json-0123abcd"
    left.write_text("{")
    others = [tmp_path / "commits" / name for name in ("notes.json", ".00000001.json")]
    for path in others:
        path.write_text("mine")
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        assert ledger.state == State()
    assert not left.exists()
    assert all(path.exists() for path in others)


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    """The folder for the tables may hold other things of the user."""
    compressed(tmp_path / "traces", "a")
    mine = [tmp_path / "events" / "party", tmp_path / "staged" / "plays", tmp_path / "commits" / ".hidden"]
    left = [tmp_path / "events" / "00000007-0123abcd", tmp_path / "staged" / "00000007-0123abcd"]
    for path in mine + left:
        path.mkdir(parents=True)
    for _ in range(2):
        findings_and_rows(tmp_path / "traces", tmp_path)
    assert all(path.exists() for path in mine)
    assert not any(path.exists() for path in left)
    assert len(rows_of(tmp_path)) == 3


def test_data_that_is_missing_is_an_error_and_not_fewer_rows(tmp_path: Path) -> None:
    compressed(tmp_path, "a")
    work = tmp_path / "_tables"
    findings_and_rows(tmp_path, work)
    shutil.rmtree(work / Ledger(LocalFolder(work)).data()[0])
    with pytest.raises(LedgerError, match=r"incomplete, because .* delete"):
        rows_of(work)


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    plain(tmp_path, "a.jsonl")
    findings_and_rows(tmp_path, tmp_path / "_tables")
    (tmp_path / "_tables" / "commits" / "00000001.json").write_text("{")
    with pytest.raises(LedgerError, match=r"00000001.json is no commit record .* delete"):
        Ledger(LocalFolder(tmp_path / "_tables"))


def test_tables_without_a_ledger_are_refused(tmp_path: Path) -> None:
    (tmp_path / "intake.json").write_text("{}")
    with pytest.raises(LedgerError, match="an earlier version, which could lose events: delete"):
        Ledger(LocalFolder(tmp_path))


def test_a_file_keeps_its_key_when_it_is_finished() -> None:
    assert [key_of(name) for name in ("_a", "a", "x/_a", "_x/a")] == ["a", "a", "x/a", "_x/a"]
