"""The queries of the report: files of SQL that both engines read.

They keep to what Spark's SQL and DuckDB's have in common. The four functions of which one engine knows nothing are
defined for it by the engine's module: `struct`, `xxhash64`, `in_hole` and `last_known`. A name after a colon is a
parameter: a whole number, which is put into the text.
"""

import re
from collections.abc import Iterable
from functools import cache
from importlib.resources import files

__all__ = ["KEPT", "TABLES", "needed", "query"]

TABLES = ("events", "packets", "streams", "steps", "stalls")
"""What a query of a user may read."""

KEPT = (
    "flow",
    "packets",
    "troubled",
    "streams",
    "unread",
    "steps",
    "samples",
    "connects",
    "least_trips",
    "silences",
    "meanwhile",
    "lags",
    "stalls",
)
"""The queries whose rows other queries read, each after those that it reads itself."""

_READ = re.compile(r"\b(?:from|join) (\w+)")
_PARAMETER = re.compile(r":([a-z_]+)")
_COMMENT = re.compile(r"^--.*\n", re.MULTILINE)


def query(name: str, **parameters: int) -> str:
    """Return the text of the query in the file of this name, with its parameters. The file's first lines explain it."""
    text, unused = _text(name), set(parameters)

    def value(found: re.Match[str]) -> str:
        unused.discard(found[1])
        return str(int(parameters[found[1]]))

    filled = _PARAMETER.sub(value, text)
    if unused:
        raise TypeError(f"the query {name} has no parameter {min(unused)}")
    return filled


def needed(names: Iterable[str]) -> list[str]:
    """Return those of these queries whose rows others read, and those that they read themselves, in order."""
    found, left = set[str](), set(names) & set(KEPT)
    while left:
        name = left.pop()
        found.add(name)
        left |= set(_READ.findall(_text(name))) & set(KEPT) - found
    return [name for name in KEPT if name in found]


@cache
def _text(name: str) -> str:
    return _COMMENT.sub("", (files("tunnel.analysis") / "sql" / f"{name}.sql").read_text(encoding="utf-8"))
