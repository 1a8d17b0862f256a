"""The ledger of the tables: which trace files they contain, and which data belongs to them.

The ledger consists of commit records. A record is put in place in one step, after the data that it names is complete,
and is never changed. Data that no record names does not exist for readers, and the next process removes it. All
knowledge of a file is derived from the records. A process can therefore be killed at any moment without harm.

One process at a time may add to the tables: it holds the lock of their folder.
"""

import re
import secrets
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import msgspec

from tunnel.analysis.folders import Folder, HeldError

__all__ = ["Commit", "Entry", "Intake", "Ledger", "LedgerError", "Part", "TraceFile", "key_of", "open_ledger"]

_COMMITS = "commits"
_EVENTS = "events"
_STAGED = "staged"
_OURS = re.compile(r"\d{8}-[0-9a-f]{8}")  # folders of data and of staged files
_RECORD = re.compile(r"\d{8,}\.json")
_WRITTEN = re.compile(r"\.\d{8}\.json-[0-9a-f]{8}")  # a record that still has its temporary name
_OLD = "intake.json"  # a file of tables that were written before there was a ledger
_FORMAT = 2


class LedgerError(Exception):
    """The tables cannot be used as they are. The text says what to do."""


class TraceFile(msgspec.Struct):
    """A trace file, and what was found in it."""

    name: str
    size_bytes: int
    changed_ns: int
    frames: int = 0
    corrupt_frames: int = 0
    problem: str = ""
    """One of empty, truncated, corrupt, duplicate and open; an empty text if the file is whole."""
    same_as: str = ""


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Lines that came together, known by their digests: a compressed frame, or uncompressed lines new to one run."""

    digest: str
    first: str
    """The digest of the first line. It serves to find other content that begins with this part."""
    size_bytes: int


class Entry(msgspec.Struct):
    """A file in a commit record."""

    file: TraceFile
    source: str = ""
    """The value of the column `source` in the rows that this commit added for the file; empty if it added none."""
    parts: list[Part] = []
    """The parts of its content. The tables contain all of them."""


class Commit(msgspec.Struct):
    """A commit record."""

    entries: list[Entry]
    data: str = ""
    """The folder with the rows that this commit added; empty if it added none."""
    rows: int = 0
    format: int = _FORMAT


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
    """The commit records in a folder of tables. `open_ledger` returns one that may add to them."""

    def __init__(self, folder: Folder) -> None:
        """Read the records. Raise LedgerError if they cannot be used."""
        self.folder = folder
        self.place = folder.place()
        if _OLD in folder.names(""):
            raise LedgerError(
                f"the tables in {self.place} were written by an earlier version, which could lose events: "
                f"{self._start_again()}"
            )
        names = [name for name in folder.names(_COMMITS) if _RECORD.fullmatch(name)]
        self.commits = [self._read(f"{_COMMITS}/{name}") for name in names]

    def _read(self, name: str) -> Commit:
        place = self.folder.place(name)
        try:
            commit = msgspec.json.decode(self.folder.read(name), type=Commit)
        except ValueError as error:
            raise LedgerError(f"{place} is no commit record ({error}): {self._start_again()}") from error
        if commit.format != _FORMAT:
            raise LedgerError(
                f"{place} has the format {commit.format} of another version, and this one reads format {_FORMAT}: "
                f"{self._start_again()}"
            )
        return commit

    def _start_again(self) -> str:
        return f"delete {self.place}, and run the command again while the trace files exist"

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

    def data(self) -> list[str]:
        """Return the names of the folders that hold the rows. Raise LedgerError if one of them is missing."""
        names = [f"{_EVENTS}/{commit.data}" for commit in self.commits if commit.data]
        for name in names:
            if not self.folder.is_folder(name):
                raise LedgerError(
                    f"the tables in {self.place} are incomplete, because {self.folder.place(name)} is missing: "
                    f"{self._start_again()}"
                )
        return names

    # under the lock

    def begin(self) -> tuple[str, str]:
        """Return the names of two new folders: one for staged files, which is made here, and one for data."""
        name = f"{len(self.commits) + 1:08d}-{secrets.token_hex(4)}"
        self.folder.make(f"{_STAGED}/{name}")
        self.folder.make(_EVENTS)
        return f"{_STAGED}/{name}", f"{_EVENTS}/{name}"

    def commit(self, entries: list[Entry], data: str = "", rows: int = 0) -> None:
        """Add a record in one step. Raise LedgerError if another process has added one meanwhile."""
        record = Commit(entries, data.removeprefix(f"{_EVENTS}/"), rows)
        self.folder.make(_COMMITS)
        if data:
            self.folder.sync(data)
        content = msgspec.json.format(msgspec.json.encode(record))
        try:
            self.folder.put_if_absent(f"{_COMMITS}/{len(self.commits) + 1:08d}.json", content)
        except FileExistsError:
            raise LedgerError(
                f"another process has added to the tables in {self.place} meanwhile, so this one added nothing: run "
                "the command again"
            ) from None
        self.commits.append(record)

    def clean(self) -> None:
        """Remove the remains of processes that were killed, or whose job failed. Folders that are not ours stay."""
        known = {commit.data for commit in self.commits}
        left = [f"{_STAGED}/{name}" for name in self.folder.names(_STAGED) if _OURS.fullmatch(name)]
        data = [name for name in self.folder.names(_EVENTS) if _OURS.fullmatch(name)]
        left += [f"{_EVENTS}/{name}" for name in data if name not in known]
        left += [f"{_COMMITS}/{name}" for name in self.folder.names(_COMMITS) if _WRITTEN.fullmatch(name)]
        for name in left:
            self.folder.remove(name)


@contextmanager
def open_ledger(folder: Folder) -> Iterator[Ledger]:
    """Lock the folder of the tables, and yield their ledger. Raise LedgerError if another process holds the lock."""
    folder.make()
    with ExitStack() as stack:
        try:
            was_held = stack.enter_context(folder.lock())
        except HeldError as held:
            raise LedgerError(
                f"another command is adding to the tables in {folder.place()} ({held}): run this one again when that "
                "one has ended, or name other tables with --tables"
            ) from None
        ledger = Ledger(folder)
        if was_held:
            ledger.commit([])  # takes the number that the former holder would use: that process can add no record now
        ledger.clean()
        yield ledger
