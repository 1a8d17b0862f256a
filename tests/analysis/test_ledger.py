"""The ledger: a record is there or is not, and one process at a time adds to it."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.analysis.plain import compressed, plain, rows_of, take_in
from tunnel.analysis.folders import LocalFolder
from tunnel.analysis.ledger import Entry, Ledger, LedgerError, TraceFile, key_of, open_ledger

STEPS_MIN = 20


def test_an_intake_that_is_killed_at_any_step_is_completed_by_the_next(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.analysis.killing", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-3000:]
    assert int(done.stdout) >= STEPS_MIN


def test_the_second_of_two_processes_is_told_which_one_is_the_first(tmp_path: Path) -> None:
    with (
        open_ledger(LocalFolder(tmp_path)),
        pytest.raises(LedgerError, match=rf"process {os.getpid()} on .*run this one again"),
        open_ledger(LocalFolder(tmp_path)),
    ):
        raise AssertionError
    with open_ledger(LocalFolder(tmp_path)):
        assert (tmp_path / "lock").read_text().startswith(f"process {os.getpid()} on ")


def test_a_lock_without_a_name_is_a_lock(tmp_path: Path) -> None:
    with (tmp_path / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(LedgerError, match="not written its name yet"), open_ledger(LocalFolder(tmp_path)):
            raise AssertionError


def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, sys\nfrom tunnel.analysis.folders import LocalFolder\n"
        "from tunnel.analysis.ledger import open_ledger\n"
        "with open_ledger(LocalFolder(pathlib.Path(sys.argv[1]))): os.kill(os.getpid(), 9)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)]).returncode == -9
    assert (tmp_path / "lock").read_text()
    with open_ledger(LocalFolder(tmp_path)):
        pass


def test_the_record_of_another_process_is_not_replaced(tmp_path: Path) -> None:
    """Two processes may add at once where a file system does not honour locks."""
    with open_ledger(LocalFolder(tmp_path)) as ledger:
        other = Ledger(LocalFolder(tmp_path))
        other.commit([Entry(TraceFile("a", 1, 1))])
        with pytest.raises(LedgerError, match="another process has added"):
            ledger.commit([Entry(TraceFile("b", 1, 1))])
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


def test_only_our_own_leftovers_are_removed(tmp_path: Path) -> None:
    """The folder for the tables may hold other things of the user."""
    compressed(tmp_path / "traces", "a")
    mine = [tmp_path / "events" / "party", tmp_path / "staged" / "plays", tmp_path / "commits" / ".hidden"]
    left = [tmp_path / "events" / "00000007-0123abcd", tmp_path / "staged" / "00000007-0123abcd"]
    for path in mine + left:
        path.mkdir(parents=True)
    for _ in range(2):
        take_in(tmp_path / "traces", tmp_path)
    assert all(path.exists() for path in mine)
    assert not any(path.exists() for path in left)
    assert len(rows_of(tmp_path)) == 3


def test_data_that_is_missing_is_an_error_and_not_fewer_rows(tmp_path: Path) -> None:
    compressed(tmp_path, "a")
    work = tmp_path / "_tables"
    take_in(tmp_path, work)
    shutil.rmtree(work / Ledger(LocalFolder(work)).data()[0])
    with pytest.raises(LedgerError, match=r"incomplete, because .* delete"):
        rows_of(work)


def test_a_damaged_record_is_an_error(tmp_path: Path) -> None:
    plain(tmp_path, "a.jsonl")
    take_in(tmp_path, tmp_path / "_tables")
    (tmp_path / "_tables" / "commits" / "00000001.json").write_text("{")
    with pytest.raises(LedgerError, match=r"00000001.json is no commit record .* delete"):
        Ledger(LocalFolder(tmp_path / "_tables"))


def test_tables_without_a_ledger_are_refused(tmp_path: Path) -> None:
    (tmp_path / "intake.json").write_text("{}")
    with pytest.raises(LedgerError, match="an earlier version, which could lose events: delete"):
        Ledger(LocalFolder(tmp_path))


def test_a_file_keeps_its_key_when_it_is_finished() -> None:
    assert [key_of(name) for name in ("_a", "a", "x/_a", "_x/a")] == ["a", "a", "x/a", "_x/a"]
