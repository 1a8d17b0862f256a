"""What runs the queries: DuckDB within this process (`duck`), or Spark on one machine or many (`spark`)."""

from contextlib import AbstractContextManager
from typing import Any, Protocol

from tunnel.analysis.engines.folders import Folder

__all__ = ["DUCKDB", "SPARK", "Engine", "Rows"]

DUCKDB, SPARK = "duckdb", "spark"

Rows = list[dict[str, Any]]


class Engine(Protocol):
    """Tables by name, and queries over them. Its methods may be called by several threads.

    Texts of queries come from `queries.query`. Errors of the engine keep their own classes, which differ between
    versions; `failure_of` makes a sentence of them.
    """

    name: str
    """The engine and its version, for people."""

    def folder(self, place: str) -> Folder:
        """Return a folder, from its path or URI."""

    def append(self, files: list[str], folder: Folder, data: str) -> dict[str, str]:
        """Write the lines of these files (URIs) to a new folder, named `data`, in another one.

        The rows are near others of their stream. Return the value of the column `source` of each file's rows.
        """

    def merge(self, folders: list[str], folder: Folder, data: str) -> None:
        """Write the rows in folders of another one to a new folder in it, in the order of their streams."""

    def read(self, folder: Folder, folders: list[str], name: str = "stored") -> None:
        """Name the events in folders of another one."""

    def store(self, text: str, folder: Folder, data: str) -> None:
        """Write the rows of a query to a new folder, named `data`, in another one."""

    def load(self, name: str, folder: Folder, folders: list[str]) -> AbstractContextManager[None]:
        """Name the rows that `store` has written to folders of another one, while the context lasts."""

    def table(self, name: str, columns: str, rows: Rows) -> None:
        """Make a small table of these rows. `columns` are names and types, as in a `create table` of Spark."""

    def view(self, name: str, text: str) -> None:
        """Name a query. It is computed again by each query that reads it."""

    def keep(self, name: str, text: str) -> AbstractContextManager[None]:
        """Name a query whose rows are computed once, and kept while the context lasts."""

    def rows(self, text: str) -> Rows:
        """Run a query, and return its rows, which must be few."""

    def failure_of(self, error: Exception, result: str) -> Exception:
        """Return an error of the engine as one with a text of one line. `result` says what became of the work."""
