"""The ledger of the tables: which trace files they contain, and which data belongs to them.

The ledger consists of commit records. A record is put in place in one step, after the data that it names is complete,
and is never changed. Data that no record names does not exist for readers, and the next process removes it. All
knowledge of a file is derived from the records. A process can therefore be killed at any moment without harm.

A checkpoint is what the records up to its number say together. It appears in one step, too, and the records that it
replaces are removed afterwards. A reader takes the newest checkpoint, and the records after it.

A record may also say that folders of earlier ones no longer belong to the tables. Commands that began before may still
read them, so they are removed when no command reads the tables any more.

One process at a time may change the tables: it holds the lock of their folder.
"""

import re
import secrets
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import msgspec
import zstandard

from tunnel.analysis.engines.folders import Folder, HeldError

__all__ = [
    "DERIVED",
    "DERIVED_META",
    "FOLD",
    "Commit",
    "Entry",
    "Intake",
    "Ledger",
    "LedgerError",
    "Part",
    "State",
    "TraceFile",
    "key_of",
    "open_ledger",
]

DERIVED = "derived"
"""The folder of the tables that reports have stored (`tunnel.analysis.kept.derived`)."""
DERIVED_META = "meta.msgpack"
"""The file that such tables get last."""
FOLD = 32
"""The number of records that a checkpoint replaces."""

_COMMITS = "commits"
_CHECKPOINTS = "checkpoints"
_EVENTS = "events"
_STAGED = "staged"
_STORED = re.compile(r"\d{20}-[0-9a-f]{8}")
_OURS = re.compile(r"\d{8}-[0-9a-f]{8}")  # folders of data and of staged files
_RECORD = re.compile(r"(\d{8,})\.json")
_CHECKPOINT = re.compile(r"(\d{8,})\.msgpack\.zst")
# records and checkpoints that still have their temporary names
_WRITTEN = re.compile(r"\.\d{8}\.(?:json|msgpack\.zst)-[0-9a-f]{8}")
_OLD = "intake.json"  # a file of tables that were written before there was a ledger
_FORMAT = 3
_READ_FOR_NS = 24 * 3600 * 1_000_000_000  # no command reads for longer, where the file system cannot tell who reads
_TRIES = 5  # to read while another process replaces records by checkpoints
_CHECKPOINT_BYTES_MAX = 1 << 32


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
    """One of empty, truncated, corrupt, duplicate, open and died; an empty text if the file is whole."""
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
    """The parts of its content. The tables contain all of them, or had them before they expired."""
    day: str = ""
    """The day of these rows (YYYY-MM-DD, UTC)."""
    found: list[dict[str, Any]] = []
    """The rows of the query `health` for these rows, one for each writer; empty when they have expired."""


class Commit(msgspec.Struct):
    """A commit record."""

    entries: list[Entry]
    data: list[str] = []
    """The folders with the rows that this commit added, one for each day."""
    rows: int = 0
    gone: list[str] = []
    """Folders of earlier commits that no longer belong to the tables."""
    expired: str = ""
    """The rows of days before this one are gone."""
    at_ns: int = 0
    format: int = _FORMAT


class _Formatted(msgspec.Struct):
    format: int


class State(msgspec.Struct):
    """The sum of records; a checkpoint."""

    number: int = 0
    """The number of the last record."""
    entries: list[Entry] = []
    data: list[str] = []
    """The folders with the rows of the tables."""
    gone: dict[str, int] = {}
    """Folders that no longer belong to the tables, and when they were taken from them (ns since 1970)."""
    expired: str = ""
    merged: dict[str, list[str]] = {}
    """Of each folder into which others were merged, the names of those that new events came in."""
    format: int = _FORMAT

    def origins(self, name: str = "") -> set[str]:
        """Return the folders in which the rows of a folder, or of all folders, came at first."""
        names = [name.removeprefix(f"{_EVENTS}/")] if name else self.data
        return {origin for each in names for origin in self.merged.get(each, [each])}

    def add(self, commit: Commit) -> None:
        """Add what a record says."""
        self.number += 1
        if commit.expired:
            self.expired = max(self.expired, commit.expired)
            for entry in self.entries:
                if entry.day < commit.expired:
                    entry.found = []
        origins = sorted({origin for name in commit.gone for origin in self.merged.pop(name, [name])})
        if commit.gone and commit.data:
            self.merged |= dict.fromkeys(commit.data, origins)
        self.entries += commit.entries
        self.data = [name for name in self.data if name not in set(commit.gone)] + commit.data
        self.gone |= dict.fromkeys(commit.gone, commit.at_ns)


class Intake(msgspec.Struct):
    """The findings about all files so far."""

    files: list[TraceFile] = []
    found: list[dict[str, Any]] = []
    """The rows of the query `health` of all rows in the tables; `file` is the name of the file."""

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
        self.state = self._read_all()
        self._folded = self._newest_checkpoint()

    def _read_all(self) -> State:
        for _ in range(_TRIES):
            number = self._newest_checkpoint()
            with suppress(FileNotFoundError):  # a newer checkpoint has replaced what was about to be read
                state = self._checkpoint(number) if number else State()
                for record, name in _numbered(self.folder.names(_COMMITS), _RECORD):
                    if record == state.number + 1:
                        state.add(self._record(f"{_COMMITS}/{name}"))
                if self._newest_checkpoint() == number:
                    return state
        raise LedgerError(f"another process changes the tables in {self.place} all the time: run the command again")

    def _newest_checkpoint(self) -> int:
        return max((number for number, _ in _numbered(self.folder.names(_CHECKPOINTS), _CHECKPOINT)), default=0)

    def _checkpoint(self, number: int) -> State:
        name = _checkpoint_name(number)
        try:
            content = zstandard.ZstdDecompressor().decompress(self.folder.read(name), _CHECKPOINT_BYTES_MAX)
            self._require_format(name, msgspec.msgpack.decode(content, type=_Formatted))
            return msgspec.msgpack.decode(content, type=State)
        except (ValueError, zstandard.ZstdError) as error:
            place = self.folder.place(name)
            raise LedgerError(f"{place} is no checkpoint ({error}): {self._start_again()}") from error

    def _record(self, name: str) -> Commit:
        content = self.folder.read(name)
        try:
            self._require_format(name, msgspec.json.decode(content, type=_Formatted))
            return msgspec.json.decode(content, type=Commit)
        except ValueError as error:
            place = self.folder.place(name)
            raise LedgerError(f"{place} is no commit record ({error}): {self._start_again()}") from error

    def _require_format(self, name: str, found: _Formatted) -> None:
        if found.format != _FORMAT:
            raise LedgerError(
                f"{self.folder.place(name)} has the format {found.format} of another version, and this one reads "
                f"format {_FORMAT}: {self._start_again()}"
            )

    def _start_again(self) -> str:
        return f"delete {self.place}, and run the command again while the trace files exist"

    @property
    def entries(self) -> list[Entry]:
        """All entries, the oldest first."""
        return self.state.entries

    @property
    def intake(self) -> Intake:
        """The findings about each file, from its latest entry."""
        latest = {key_of(entry.file.name): entry.file for entry in self.entries}
        found = [{"file": latest[key_of(entry.file.name)].name, **row} for entry in self.entries for row in entry.found]
        return Intake(list(latest.values()), found)

    def data(self) -> list[str]:
        """Return the names of the folders that hold the rows. Raise LedgerError if one of them is missing."""
        names = [f"{_EVENTS}/{name}" for name in self.state.data]
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
        name = f"{self.state.number + 1:08d}-{secrets.token_hex(4)}"
        self.folder.make(f"{_STAGED}/{name}")
        self.folder.make(_EVENTS)
        return f"{_STAGED}/{name}", f"{_EVENTS}/{name}"

    def commit(
        self,
        entries: list[Entry],
        data: list[str] | None = None,
        rows: int = 0,
        *,
        gone: list[str] | None = None,
        expired: str = "",
    ) -> None:
        """Add a record in one step. Raise LedgerError if another process has added one meanwhile.

        `data` are folders in the one that `begin` has named, and `gone` are names of `data()`.
        """
        added, dropped = ([name.removeprefix(f"{_EVENTS}/") for name in names] for names in (data or [], gone or []))
        record = Commit(entries, added, rows, dropped, expired, time.time_ns())
        self.folder.make(_COMMITS)
        for name in sorted({name.partition("/")[0] for name in added}):
            self.folder.sync(f"{_EVENTS}/{name}")
        number = self.state.number + 1
        content = msgspec.json.encode(record)
        try:
            self.folder.put_if_absent(f"{_COMMITS}/{number:08d}.json", content)
        except FileExistsError:
            raise self._overtaken() from None
        if self._newest_checkpoint() >= number:  # readers do not look at the record
            raise self._overtaken()
        self.state.add(record)
        if self.state.number - self._folded >= FOLD:
            self._fold()

    def _overtaken(self) -> LedgerError:
        return LedgerError(
            f"another process has added to the tables in {self.place} meanwhile, so this one added nothing: run the "
            "command again"
        )

    def _fold(self) -> None:
        """Replace all records by a checkpoint."""
        state = self.state
        state.gone = {name: at_ns for name, at_ns in state.gone.items() if self.folder.is_folder(f"{_EVENTS}/{name}")}
        self.folder.make(_CHECKPOINTS)
        content = zstandard.ZstdCompressor(level=3, write_content_size=True).compress(msgspec.msgpack.encode(state))
        self.folder.put_if_absent(_checkpoint_name(state.number), content)
        self._folded = state.number
        self._remove_folded()

    def _remove_folded(self) -> None:
        for number, name in _numbered(self.folder.names(_COMMITS), _RECORD):
            if number <= self._folded:
                self.folder.remove(f"{_COMMITS}/{name}")
        for number, name in _numbered(self.folder.names(_CHECKPOINTS), _CHECKPOINT):
            if number < self._folded:
                self.folder.remove(f"{_CHECKPOINTS}/{name}")

    def clean(self) -> None:
        """Remove the remains of processes that were killed, or whose job failed. Folders that are not ours stay.

        Data that no longer belongs to the tables is removed, too, if no command reads the tables.
        """
        self._remove_folded()
        self._remove_gone()
        self._remove_derived()
        known = {name.partition("/")[0] for name in (*self.state.data, *self.state.gone)}
        left = [f"{_STAGED}/{name}" for name in self.folder.names(_STAGED) if _OURS.fullmatch(name)]
        data = [name for name in self.folder.names(_EVENTS) if _OURS.fullmatch(name)]
        left += [f"{_EVENTS}/{name}" for name in data if name not in known]
        for folder in (_COMMITS, _CHECKPOINTS):
            left += [f"{folder}/{name}" for name in self.folder.names(folder) if _WRITTEN.fullmatch(name)]
        for name in left:
            self.folder.remove(name)

    def _remove_derived(self) -> None:
        """Remove all tables that reports have stored, but the newest that are complete."""
        found = [name for name in self.folder.names(DERIVED) if _STORED.fullmatch(name)]
        whole = [name for name in found if DERIVED_META in self.folder.names(f"{DERIVED}/{name}")]
        old = [name for name in found if name not in whole[-1:]]
        if old:
            with self.folder.unread() as is_unread:
                for name in old:
                    is_old = time.time_ns() - int(name.partition("-")[0]) > _READ_FOR_NS
                    if is_unread or (is_unread is None and is_old):
                        self.folder.remove(f"{DERIVED}/{name}")

    def _remove_gone(self) -> None:
        left = {name for name in self.state.gone if self.folder.is_folder(f"{_EVENTS}/{name}")}
        if left:
            with self.folder.unread() as is_unread:
                now_ns = time.time_ns()
                for name in sorted(left):
                    is_old = now_ns - self.state.gone[name] > _READ_FOR_NS
                    if is_unread or (is_unread is None and is_old):
                        self.folder.remove(f"{_EVENTS}/{name}")
                        left.discard(name)
        self.state.gone = {name: at_ns for name, at_ns in self.state.gone.items() if name in left}


def _numbered(names: list[str], pattern: re.Pattern[str]) -> list[tuple[int, str]]:
    """Return those names that match, with their numbers, in order."""
    return sorted((int(found[1]), name) for name in names if (found := pattern.fullmatch(name)))


def _checkpoint_name(number: int) -> str:
    return f"{_CHECKPOINTS}/{number:08d}.msgpack.zst"


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
