"""DuckDB as the engine: within this process, for traces and tables on this machine. It needs no Java."""

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import duckdb

from tunnel.analysis.engines.engine import Rows
from tunnel.analysis.engines.failures import QueryError, failure_of
from tunnel.analysis.engines.folders import Folder, LocalFolder, local_path
from tunnel.analysis.engines.queries import TABLES
from tunnel.analysis.engines.schema import COLUMNS, KEYS, ORDER, STORED, STREAM

__all__ = ["SELECTED_MAX", "DuckEngine"]

# what the queries use of Spark's functions, and DuckDB names otherwise
_MACROS = (
    "create macro struct(first, second) as row(first, second)",
    "create macro xxhash64(value) as cast(hash(value) >> 1 as bigint)",
    """create macro in_hole(holes, since_us, until_us) as
       len(list_filter(holes, lambda hole: hole.begin_us <= until_us and hole.end_us >= since_us)) > 0""",
)
_LAST_KNOWN = re.compile(r"\blast_known\((\w+)\)")
_ARRAY = re.compile(r"array<struct<(\w+): (\w+), (\w+): (\w+)>>")
_PATTERN = re.compile(r"[\[*?]")
_MEMORY = re.compile(r"(\d+)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)
SELECTED_MAX = 100_000
"""Rows that a query of a user may return: Python holds them all, outside the memory that DuckDB counts."""

_HINT = f"in DuckDB's SQL, over the tables {', '.join(TABLES)}: docs/ANALYSIS.md explains them"
_BY_NAME = "hive_partitioning = false"  # a folder that is called node=7 says nothing of what its files hold
_ROWS_OF_GROUP = 122_880  # in a Parquet file: DuckDB's own default, which bounds the memory that a file takes to write


class DuckEngine:
    """A database in memory, which goes to `spill` when it grows beyond `memory`, as in "3g"."""

    def __init__(self, memory: str, spill: Path) -> None:
        """Open the database. Raise ValueError if `memory` is no size."""
        self.name = f"DuckDB {duckdb.__version__}"
        settings: dict[str, Any] = {
            "memory_limit": _size(memory),
            "temp_directory": str(spill),
            "preserve_insertion_order": False,  # the order of lines means nothing, and to keep it takes memory
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
        self._base = duckdb.connect(":memory:", config=settings)
        for text in _MACROS:
            self._base.execute(text)

    def close(self) -> None:
        """Close the database."""
        self._base.close()

    def folder(self, place: str) -> Folder:
        path = local_path(place)
        if path is None:
            raise ValueError(f"{place} is not on this machine")
        return LocalFolder(path)

    def append(self, files: list[str], folder: Folder, data: str) -> dict[str, str]:
        paths = {uri: str(local_path(uri)) for uri in files}
        lines = ", ".join(_quoted(_literally(path)) for path in paths.values())
        columns = ", ".join(f"{name}: '{kind}'" for name, kind in COLUMNS.items())
        keys = ", ".join(f"{value} as {name}" for name, value in KEYS.items())
        self._write(
            f"select * exclude (filename) replace ({keys}), coalesce({STREAM}, -1) as stream, md5(filename) as source "
            f"from read_json([{lines}], format = 'newline_delimited', ignore_errors = true, filename = true, "
            f"{_BY_NAME}, columns = {{{columns}}})",
            folder,
            data,
        )
        return {uri: hashlib.md5(path.encode(), usedforsecurity=False).hexdigest() for uri, path in paths.items()}

    def merge(self, folders: list[str], folder: Folder, data: str) -> None:
        self._write(self._rows_in(folder, folders), folder, data)

    def _write(self, text: str, folder: Folder, data: str) -> None:
        folder.make(data)
        self._run(
            f"copy ({text} order by {', '.join(ORDER)}) to {_quoted(folder.place(f'{data}/events.parquet'))} "
            f"(format parquet, compression zstd, row_group_size {_ROWS_OF_GROUP})"
        )

    def read(self, folder: Folder, folders: list[str], name: str = "stored") -> None:
        self.view(name, self._rows_in(folder, folders))

    def store(self, text: str, folder: Folder, data: str) -> None:
        folder.make(data)
        target = _quoted(folder.place(f"{data}/rows.parquet"))
        self._run(f"copy ({text}) to {target} (format parquet, compression zstd, row_group_size {_ROWS_OF_GROUP})")

    @contextmanager
    def load(self, name: str, folder: Folder, folders: list[str]) -> Iterator[None]:
        self.view(name, f"select * from read_parquet([{self._paths(folder, folders)}], {_BY_NAME})")
        try:
            yield
        finally:
            self._run(f"drop view {name}")

    def _paths(self, folder: Folder, folders: list[str]) -> str:
        return ", ".join(
            _quoted(_literally(folder.place(f"{data}/{name}")))
            for data in folders
            for name in folder.names(data)
            if name.endswith(".parquet")
        )

    def _rows_in(self, folder: Folder, folders: list[str]) -> str:
        paths = self._paths(folder, folders)
        if paths:
            return f"select {', '.join(STORED)} from read_parquet([{paths}], {_BY_NAME})"
        nothing = (f"cast(null as {kind}) as {name}" for name, kind in STORED.items())
        return f"select {', '.join(nothing)} where false"

    def table(self, name: str, columns: str, rows: Rows) -> None:
        own = _ARRAY.sub(r"struct(\1 \2, \3 \4)[]", columns)
        self._run(f"create or replace table {name} ({own})")
        if rows:
            marks = ", ".join("?" for _ in rows[0])
            values = [list(row.values()) for row in rows]
            self._base.cursor().executemany(f"insert into {name} values ({marks})", values)

    def view(self, name: str, text: str) -> None:
        self._run(f"create or replace view {name} as {text}")

    @contextmanager
    def keep(self, name: str, text: str) -> Iterator[None]:
        self._run(f"create or replace table {name} as {text}")
        try:
            yield
        finally:
            self._run(f"drop table {name}")

    def rows(self, text: str) -> Rows:
        found = self._run(text)
        names = [column[0] for column in found.description or ()]
        return [dict(zip(names, row, strict=True)) for row in found.fetchall()]

    def shut(self, *, with_events: bool = True) -> None:
        """Shut files, network and settings off from all later queries. `events` stays as it is now, or goes."""
        if with_events:
            self._run("create table events_kept as select * from events")
        for name in ("events_part", "events", "records", "stored"):
            self._run(f"drop view if exists {name}")
        if with_events:
            self._run("alter table events_kept rename to events")
        self._base.execute("set enable_external_access = false")
        self._base.execute("set lock_configuration = true")

    def select(self, text: str) -> tuple[list[str], list[tuple[Any, ...]]]:
        """Run a query of a user, and return its columns and rows. Raise QueryError if it is none, or if it fails."""
        try:
            statements = duckdb.extract_statements(text)
            if [statement.type for statement in statements] != [duckdb.StatementType.SELECT]:
                raise QueryError("only one query that begins with SELECT, WITH or FROM is allowed")
            found = self._base.cursor().execute(statements[0])
            rows = found.fetchmany(SELECTED_MAX + 1)
            if len(rows) > SELECTED_MAX:
                raise QueryError(f"the result has more than {SELECTED_MAX:,} rows: add LIMIT, or count instead")
            return _distinct([column[0] for column in found.description or ()]), rows
        except duckdb.Error as error:
            raise QueryError(f"{_said(error)} ({_HINT})") from error

    def failure_of(self, error: Exception, result: str) -> Exception:
        return failure_of(error, result, "DuckDB")

    def _run(self, text: str) -> duckdb.DuckDBPyConnection:
        return self._base.cursor().execute(_LAST_KNOWN.sub(r"last_value(\1 ignore nulls)", text))


def _said(error: duckdb.Error) -> str:
    """Return what is wrong with a query: without the query itself, and without a guess among DuckDB's own names."""
    lines = str(error).partition("\n\n")[0].splitlines()
    return " ".join(line for line in lines if not line.startswith("Did you mean"))


def _distinct(columns: list[str]) -> list[str]:
    """Return the names. Raise QueryError if two are equal: JSON would lose one."""
    twice = next((name for name in columns if columns.count(name) > 1), None)
    if twice is not None:
        raise QueryError(f"two columns are called {twice}: give one another name with AS")
    return columns


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


def _literally(path: str) -> str:
    """Return a path in which DuckDB takes brackets and asterisks for what they are, and not for patterns."""
    return _PATTERN.sub(r"[\g<0>]", path)


def _size(memory: str) -> str:
    """Return a size in bytes as DuckDB writes it, from one as Java writes it."""
    found = _MEMORY.fullmatch(memory)
    if found is None:
        raise ValueError(f"{memory!r} is no size")
    unit = found[2].upper()
    return f"{found[1]}{f'{unit}iB' if unit else 'B'}"
