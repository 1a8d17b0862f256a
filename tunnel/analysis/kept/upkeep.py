"""Upkeep of the tables: small folders are merged, and old days leave. Both are commits, as new traces are.

A command that is killed has changed the tables as a whole or not at all. A command that reads them goes on reading the
folders that it began with: these are removed when no command reads the tables any more.
"""

from collections import defaultdict
from dataclasses import dataclass

from tunnel.analysis.engines.engine import Engine
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.kept.ledger import Ledger

__all__ = ["MERGED_BYTES", "Changed", "expire", "optimise"]

MERGED_BYTES = 256_000_000
"""Folders are merged up to this size: to sort a larger one would take more memory and disk than a report."""


@dataclass(frozen=True, slots=True)
class Changed:
    """What became of the tables."""

    days: int
    """Days that changed."""
    before: int
    """Folders of the tables before."""
    after: int
    """Folders of the tables now."""


def optimise(engine: Engine, ledger: Ledger) -> Changed:
    """Merge the small folders of each day, with the rows of a stream side by side.

    Raise SetupError or JobError if the engine could not write a folder; then the folders that follow are as before.
    """
    before = ledger.data()
    groups = _groups({name: _size_bytes(ledger, name) for name in before})
    for names in groups:
        day = _day_of(names[0])
        staged, data = ledger.begin()
        merged = f"{data}/{day}"
        try:
            engine.merge(names, ledger.folder, merged)
            rows, expected = (_rows(engine, ledger, folders) for folders in ([merged], names))
        except Exception as error:  # the classes differ between versions of the engines, and some are of Java
            raise engine.failure_of(error, f"the tables in {ledger.place} of {day} are as before") from error
        if rows != expected:
            raise SetupError(
                f"{rows} of {expected} events of {day} were written, so the tables in {ledger.place} are as before: "
                "check that Spark's driver and workers, if it runs, have the tables under the same path, and run the "
                "command again"
            )
        ledger.commit([], [merged], rows, gone=names)
        ledger.folder.remove(staged)
    ledger.clean()
    return Changed(len({_day_of(names[0]) for names in groups}), len(before), len(ledger.data()))


def _groups(sizes: dict[str, int]) -> list[list[str]]:
    """Return the folders that are merged with each other: of one day, and together not larger than MERGED_BYTES."""
    by_day: dict[str, list[str]] = defaultdict(list)
    for name, size_bytes in sizes.items():
        if size_bytes < MERGED_BYTES:
            by_day[_day_of(name)].append(name)
    groups: list[list[str]] = []
    for day in sorted(by_day):
        left = 0
        for name in sorted(by_day[day], key=lambda name: (sizes[name], name)):
            if sizes[name] >= left:
                groups.append([])
                left = MERGED_BYTES
            groups[-1].append(name)
            left -= sizes[name]
    return [names for names in groups if len(names) > 1]


def _size_bytes(ledger: Ledger, name: str) -> int:
    return sum(ledger.folder.status(f"{name}/{file}").size_bytes for file in ledger.folder.names(name))


def expire(ledger: Ledger, before_day: str) -> Changed:
    """Take the rows of days before this one (YYYY-MM-DD) from the tables. The trace files stay as they are.

    Their content stays known, so the next command does not add it again.
    """
    before = ledger.data()
    gone = [name for name in before if _day_of(name) < before_day]
    if gone:
        ledger.commit([], gone=gone, expired=before_day)
        ledger.clean()
    return Changed(len(set(map(_day_of, gone))), len(before), len(before) - len(gone))


def _day_of(name: str) -> str:
    return name.rpartition("/")[2]


def _rows(engine: Engine, ledger: Ledger, folders: list[str]) -> int:
    engine.read(ledger.folder, folders)
    (row,) = engine.rows("select count(*) as n from stored")
    return int(row["n"])
