"""Small folders of the tables are merged and old days leave, beside readers, and whenever the process dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb
import pytest

from tests.analysis.plain import append_to, compressed, plain
from tests.analysis.upkeep import LinesEngine, add, lines_of, record_of
from tunnel.analysis.cli import main
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept import intake, upkeep
from tunnel.analysis.kept.intake import Added, add_new
from tunnel.analysis.kept.ledger import Entry, Ledger, LedgerError, TraceFile, open_ledger
from tunnel.analysis.kept.upkeep import Changed, expire, optimise
from tunnel.ground.exit_codes import OK, USAGE
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter

DAYS = ("2026-11-01", "2026-11-01", "2026-11-02", "2026-11-01")
STEPS_MIN = 10


@pytest.fixture
def tables(tmp_path: Path) -> Path:
    """Tables of four commits, three of one day."""
    for number, day in enumerate(DAYS):
        add(tmp_path / "traces", tmp_path / "tables", f"f{number}", day)
    return tmp_path / "tables"


def changed(tables: Path, change: Callable[[Ledger], Changed]) -> Changed:
    with open_ledger(LocalFolder(tables)) as ledger:
        return change(ledger)


def merged(ledger: Ledger) -> Changed:
    return optimise(LinesEngine().engine, ledger)


def days_on_disk(tables: Path) -> list[str]:
    return sorted(path.name for path in (tables / "events").glob("*/*"))


def test_the_folders_of_a_day_become_one(tables: Path) -> None:
    before = lines_of(Ledger(LocalFolder(tables)))
    assert len(before) == 4
    assert changed(tables, merged) == Changed(1, 4, 2)
    assert lines_of(Ledger(LocalFolder(tables))) == before
    assert days_on_disk(tables) == ["2026-11-01", "2026-11-02"]
    assert changed(tables, merged) == Changed(0, 2, 2)


def test_folders_are_merged_up_to_a_size(tables: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(record_of("f0", DAYS[0]))
    monkeypatch.setattr(upkeep, "MERGED_BYTES", 2 * size + 1)
    assert changed(tables, merged) == Changed(1, 4, 3)
    assert changed(tables, merged) == Changed(0, 3, 3)


def test_a_merge_that_loses_rows_changes_nothing(tables: Path) -> None:
    losing = LinesEngine()
    losing.lost = 1
    with pytest.raises(SetupError, match=r"2 of 3 events of 2026-11-01 were written, so the tables in .* as before"):
        changed(tables, lambda ledger: optimise(losing.engine, ledger))
    assert len(lines_of(Ledger(LocalFolder(tables)))) == 4
    assert len(Ledger(LocalFolder(tables)).data()) == 4


@pytest.mark.parametrize("change", [merged, lambda ledger: expire(ledger, "2026-11-02")])
def test_what_somebody_reads_is_removed_when_it_is_read(tables: Path, change: Callable[[Ledger], Changed]) -> None:
    folder = LocalFolder(tables)
    with folder.reading():
        reader = Ledger(folder)
        changed(tables, change)
        with open_ledger(folder):  # another command begins, and cleans up
            pass
        assert len(lines_of(reader)) == 4
        assert len(Ledger(folder).data()) < 4
    with open_ledger(folder):
        pass
    assert len(days_on_disk(tables)) == len(Ledger(folder).data())


def test_a_file_system_that_cannot_tell_who_reads_keeps_data_for_a_day(
    tables: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def unknown(self: LocalFolder) -> Iterator[None]:
        yield None

    monkeypatch.setattr(LocalFolder, "unread", unknown)
    changed(tables, lambda ledger: expire(ledger, "2026-11-02"))
    with open_ledger(LocalFolder(tables)) as ledger:
        assert len(days_on_disk(tables)) == 4
        ledger.state.gone = dict.fromkeys(ledger.state.gone, 0)
        ledger.clean()
    assert days_on_disk(tables) == ["2026-11-02"]


def test_expired_days_leave_and_do_not_come_back_with_their_files(tables: Path) -> None:
    traces = tables.parent / "traces"
    assert changed(tables, lambda ledger: expire(ledger, "2026-11-02")) == Changed(1, 4, 1)
    (traces / "copy.jsonl").write_bytes((traces / "f0.jsonl").read_bytes())
    add(traces, tables, "late", "2026-11-01")
    ledger = Ledger(LocalFolder(tables))
    assert sorted(json.loads(line)["node"] for line in lines_of(ledger)) == ["f2", "late"]
    assert sorted(row["file"] for row in ledger.intake.found) == ["f2.jsonl", "late.jsonl"]
    assert changed(tables, lambda ledger: expire(ledger, "2026-11-01")) == Changed(0, 2, 2)


def test_a_change_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.analysis.upkeep", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert all(int(steps) >= STEPS_MIN for steps in done.stdout.split())


def test_many_records_fold_into_a_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.analysis.kept.ledger.FOLD", 3)
    for number in range(8):
        add(tmp_path / "traces", tmp_path / "tables", f"f{number}", "2026-11-01")
    assert [path.name for path in (tmp_path / "tables" / "checkpoints").iterdir()] == ["00000006.msgpack.zst"]
    records = sorted(path.name for path in (tmp_path / "tables" / "commits").iterdir())
    assert records == ["00000007.json", "00000008.json"]
    ledger = Ledger(LocalFolder(tmp_path / "tables"))
    assert ledger.state.number == 8
    assert [entry.file.name for entry in ledger.entries] == [f"f{number}.jsonl" for number in range(8)]
    assert len(lines_of(ledger)) == 8


def test_a_reader_whose_records_become_a_checkpoint_reads_that(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.analysis.kept.ledger.FOLD", 3)
    for number in range(2):
        add(tmp_path / "traces", tmp_path / "tables", f"f{number}", "2026-11-01")

    class Folder(LocalFolder):
        """Another process adds a file when this one has seen the names of the records."""

        is_first = True

        def read(self, name: str) -> bytes:
            if self.is_first:
                self.is_first = False
                add(tmp_path / "traces", tmp_path / "tables", "more", "2026-11-01")
            return super().read(name)

    assert Ledger(Folder(tmp_path / "tables")).state.number == 3


def test_a_record_that_a_checkpoint_has_passed_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process may have been frozen while others took its lock, and folded the record that would have stopped it."""
    monkeypatch.setattr("tunnel.analysis.kept.ledger.FOLD", 2)
    frozen = Ledger(LocalFolder(tmp_path))
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        ledger.commit([])
        ledger.commit([])
    assert not list((tmp_path / "commits").iterdir())
    with pytest.raises(LedgerError, match="another process has added"):
        frozen.commit([Entry(TraceFile("late", 1, 1))])
    assert Ledger(LocalFolder(tmp_path)).entries == []


def test_a_damaged_checkpoint_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.analysis.kept.ledger.FOLD", 1)
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        ledger.commit([])
    path = tmp_path / "checkpoints" / "00000001.msgpack.zst"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(LedgerError, match=r"00000001.msgpack.zst is no checkpoint .* delete"):
        Ledger(LocalFolder(tmp_path))


def test_many_files_are_added_in_portions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure undoes one portion only."""
    for name in "abc":
        compressed(tmp_path / "traces", name)
    monkeypatch.setattr(intake, "PORTION_BYTES", 1)
    seen: list[str] = []
    append = append_to(tmp_path / "tables")

    def fail(files: list[str], data: str) -> dict[str, Added]:
        seen.extend(files)
        if len(seen) == 3:
            raise RuntimeError
        return append(files, data)

    with open_ledger(LocalFolder(tmp_path / "tables")) as ledger, pytest.raises(RuntimeError):
        add_new(LocalFolder(tmp_path / "traces"), ledger, fail)
    ledger = Ledger(LocalFolder(tmp_path / "tables"))
    assert (ledger.state.number, len(lines_of(ledger))) == (2, 6)


@pytest.mark.parametrize(
    ("line", "day"),
    [
        (record_of("a", "2026-11-05"), "2026-11-05"),
        (b'{"event":"clock_read","wall_us":0}\n', "2001-09-09"),
        (b'{"event":"clock_read","wall_us":9e30}\n', "2001-09-09"),
        (b'{"event":"clock_read","wall_us":"x"}\n', "2001-09-09"),
        (b'no json "clock_read"\n', "2001-09-09"),
        (b'{"event":"attached"}\n', "2001-09-09"),
    ],
)
def test_a_day_is_that_of_the_wall_clock_in_the_file_or_of_the_file(tmp_path: Path, line: bytes, day: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"event":"attached"}\n' + line)
    os.utime(path, (1_000_000_000, 1_000_000_000))
    with open_ledger(LocalFolder(tmp_path / "_tables")) as ledger:
        add_new(LocalFolder(tmp_path), ledger, append_to(tmp_path / "_tables"))
        assert [name.rpartition("/")[2] for name in ledger.data()] == [day]


def test_rows_of_a_stream_lie_side_by_side(tmp_path: Path) -> None:
    with JsonLinesWriter(tmp_path / "a.jsonl") as trace:
        for number in range(60):
            connection = 1 + number % 3
            trace(TraceRecord(time_us=number, node="a", event=TraceEvent.PACKET_SENT, connection=connection))
            trace(TraceRecord(time_us=number, node="b", event=TraceEvent.TIMER_UPDATED))
    assert main(["compact", str(tmp_path)]) == OK
    (path,) = (tmp_path / "_tables" / "events").glob("*/*/*.parquet")
    streams = [row[0] for row in duckdb.connect().execute(f"select stream from '{path}'").fetchall()]
    assert streams == sorted(streams) == [-1] * 60 + [1] * 20 + [2] * 20 + [3] * 20


def test_the_commands_change_the_tables_and_no_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def report() -> dict[str, Any]:
        assert main(["report", str(tmp_path), "-o", str(tmp_path / "r.html"), "--json"]) == OK
        found: dict[str, Any] = json.loads(capsys.readouterr().out)
        return found

    plain(tmp_path, "a.jsonl", 4)
    report()
    compressed(tmp_path, "b", 9)
    before = report()
    assert main(["optimise", str(tmp_path)]) == OK
    printed = capsys.readouterr().out
    assert printed in (
        "2 folders of the tables became 1; days that changed: 1.\n",
        "Nothing to merge: no day has several small folders.\n",  # at midnight
    )
    for path in (tmp_path / "_tables" / "results").iterdir():
        path.unlink()
    assert report() == before
    assert main(["expire", str(tmp_path), "--keep", "3"]) == OK
    assert "that left the tables: 0" in capsys.readouterr().out
    assert report() == before
    assert main(["expire", str(tmp_path), "--before", "2200-01-01"]) == OK
    assert "folders that remain: 0." in capsys.readouterr().out
    assert report()["files"] == []
    assert sorted(path.suffix for path in tmp_path.iterdir() if path.is_file()) == [".html", ".jsonl", ".zst"]


@pytest.mark.parametrize(
    "arguments",
    [["--keep", "0"], ["--keep", "99999999999"], ["--before", "yesterday"], ["--before", "2026-13-01"], []],
)
def test_days_that_are_none_are_refused(tmp_path: Path, arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["expire", str(tmp_path), *arguments])
    assert ended.value.code == USAGE


def test_a_change_beside_an_intake_names_it_and_changes_nothing(
    tables: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with open_ledger(LocalFolder(tables)):
        for command in (["optimise"], ["expire", "--keep", "1"]):
            assert main([command[0], str(tables.parent / "traces"), "--tables", str(tables), *command[1:]]) == USAGE
            assert "another command is adding to the tables" in capsys.readouterr().err
    assert len(Ledger(LocalFolder(tables)).data()) == 4
