"""The ledger of the tables: which trace files they contain, and which data belongs to them.

The ledger consists of commit records. A record is put in place in one step, after the data that it names is complete,
and is never changed. Data that no record names does not exist for readers, and the next process removes it. All
knowledge of a file is derived from the records. A process may therefore be killed at any moment.

One process at a time may add to the tables. It holds a lock of the operating system, which ends with the process.
"""

import fcntl
import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import msgspec

__all__ = ["Commit", "Entry", "Intake", "Ledger", "LedgerError", "TraceFile", "key_of", "open_ledger"]

_COMMITS = "commits"
_EVENTS = "events"
_STAGED = "staged"
_LOCK = "lock"
_OURS = re.compile(r"\d{8}-[0-9a-f]{8}")  # folders of data and of staged files
_WRITTEN = re.compile(r"\.\d{8}\.json-[0-9a-f]{8}")  # a record that has no name yet
_OLD = "intake.json"  # of tables that were written before there was a ledger


class LedgerError(Exception):
    """The tables cannot be used as they are. The text says what to do."""


class TraceFile(msgspec.Struct):
    """A trace file, and what was found in it."""

    name: str
    size_bytes: int
    changed_ns: int
    digest: str = ""
    frames: int = 0
    corrupt_frames: int = 0
    problem: str = ""
    """One of empty, truncated, corrupt, duplicate and open; an empty text if the file is whole."""
    same_as: str = ""


class Entry(msgspec.Struct):
    """A file in a commit record."""

    file: TraceFile
    source: str = ""
    """The value of the column `source` in the rows that this commit added for the file; empty if it added none."""
    parts: list[str] = []
    """The digests of the parts of its content that the tables contain: of each frame, or of all plain lines."""
    plain_bytes: int = 0
    """The length of the plain lines; 0 for a compressed file."""


class Commit(msgspec.Struct):
    """A commit record."""

    entries: list[Entry]
    data: str = ""
    """The folder with the rows that this commit added; empty if it added none."""
    rows: int = 0
    format: int = 1


class Intake(msgspec.Struct):
    """The findings about all files so far."""

    files: list[TraceFile] = []
    sources: dict[str, str] = {}
    """The name of the file to which each value of the column `source` belongs."""

    @property
    def problems(self) -> list[TraceFile]:
        """The files with problems."""
        return [file for file in self.files if file.problem]


def key_of(name: str) -> str:
    """Return the name that a file has when it is finished: without the `_` of a file that is being written."""
    folder, slash, base = name.rpartition("/")
    return f"{folder}{slash}{base.removeprefix('_')}"


class Ledger:
    """The commit records below a folder. `open_ledger` returns one that may add to them."""

    def __init__(self, work: Path) -> None:
        """Read the records. Raise LedgerError if they cannot be used."""
        self.work = work
        if (work / _OLD).exists():
            raise LedgerError(
                f"the tables in {work} were written by an earlier version, which could lose events: delete {work}, "
                "and run the command again while the trace files exist"
            )
        self.commits: list[Commit] = []
        decoder = msgspec.json.Decoder(Commit)
        for path in sorted((work / _COMMITS).glob("[0-9]*.json")):
            try:
                self.commits.append(decoder.decode(path.read_bytes()))
            except ValueError as error:
                raise LedgerError(
                    f"{path} is no commit record ({error}): delete {work}, and run the command again while the trace "
                    "files exist"
                ) from error

    @property
    def entries(self) -> list[Entry]:
        """All entries, the oldest first."""
        return [entry for commit in self.commits for entry in commit.entries]

    @property
    def intake(self) -> Intake:
        """The findings about each file, from its latest entry."""
        latest = {key_of(entry.file.name): entry.file for entry in self.entries}
        sources = {entry.source: latest[key_of(entry.file.name)].name for entry in self.entries if entry.source}
        return Intake(list(latest.values()), sources)

    def data(self) -> list[Path]:
        """Return the folders that hold the rows. Raise LedgerError if one of them is missing."""
        folders = [self.work / _EVENTS / commit.data for commit in self.commits if commit.data]
        for folder in folders:
            if not folder.is_dir():
                raise LedgerError(
                    f"the tables in {self.work} are incomplete, because {folder} is missing: delete {self.work}, and "
                    "run the command again while the trace files exist"
                )
        return folders

    # under the lock

    def begin(self) -> tuple[Path, Path]:
        """Return two new folders: an existing one for staged files, and the name of one for data."""
        name = f"{len(self.commits) + 1:08d}-{secrets.token_hex(4)}"
        staged = self.work / _STAGED / name
        staged.mkdir(parents=True)
        (self.work / _EVENTS).mkdir(exist_ok=True)
        return staged, self.work / _EVENTS / name

    def commit(self, entries: list[Entry], data: Path | None = None, rows: int = 0) -> None:
        """Add a record in one step. Raise LedgerError if another process has added one meanwhile."""
        record = Commit(entries, "" if data is None else data.name, rows)
        folder = self.work / _COMMITS
        folder.mkdir(exist_ok=True)
        if data is not None:
            _sync_tree(data)
        target = folder / f"{len(self.commits) + 1:08d}.json"
        written = folder / f".{target.name}-{secrets.token_hex(4)}"
        with written.open("wb") as file:
            file.write(msgspec.json.format(msgspec.json.encode(record)))
            file.flush()
            os.fsync(file.fileno())
        try:
            _put_if_absent(written, target)
        except FileExistsError:
            raise LedgerError(
                f"another process has added to the tables in {self.work} meanwhile, so this one added nothing: run "
                "the command again"
            ) from None
        finally:
            written.unlink(missing_ok=True)
        _sync(folder)
        self.commits.append(record)

    def clean(self) -> None:
        """Remove what processes left that were killed, or whose job failed. Folders that are not ours stay."""
        known = {commit.data for commit in self.commits}
        left = list((self.work / _STAGED).glob("*"))
        left += [path for path in (self.work / _EVENTS).glob("*") if path.name not in known]
        for path in left:
            if _OURS.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for path in (self.work / _COMMITS).glob(".*"):
            if _WRITTEN.fullmatch(path.name):
                path.unlink(missing_ok=True)


@contextmanager
def open_ledger(work: Path) -> Iterator[Ledger]:
    """Lock the tables below `work`, and yield their ledger. Raise LedgerError if another process holds the lock."""
    work.mkdir(parents=True, exist_ok=True)
    with (work / _LOCK).open("a+b") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise LedgerError(
                f"another command is adding to the tables in {work} ({_holder(lock)}): run this one again when that "
                "one has ended, or name other tables with --tables"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}".encode())
        lock.flush()
        ledger = Ledger(work)
        ledger.clean()
        yield ledger


def _holder(lock: BinaryIO) -> str:
    lock.seek(0)
    return lock.read(200).decode(errors="replace") or "it has not written its name yet"


def _put_if_absent(written: Path, target: Path) -> None:
    try:
        os.link(written, target)
    except FileExistsError:
        raise
    except OSError:  # a file system without links; the lock keeps other processes out
        if target.exists():
            raise FileExistsError(target) from None
        written.rename(target)


def _sync_tree(folder: Path) -> None:
    """Bring a folder and the files in it to disk, so that they survive a crash of the machine as the record does."""
    for path in folder.rglob("*"):
        _sync(path)
    _sync(folder)
    _sync(folder.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
