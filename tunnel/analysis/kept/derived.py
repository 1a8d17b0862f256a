"""The tables that a report makes of streams, stored beside the events: one more file costs about as much as it adds.

A row of these tables belongs to one stream, and depends on the events of that stream, on the clocks, and on the times
for which a writer has no records. So the next report computes only the streams that have new events, and those whose
packets were on their way when the trace ended. All others it takes over. If a clock, an earlier time without records or
the code has changed, or if days have left the tables, it computes everything again.

A large trace is divided by stream, so that what an engine holds at once is bounded.
"""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import pairwise

import msgspec

from tunnel.analysis.engines.engine import DUCKDB, Engine
from tunnel.analysis.engines.folders import Folder
from tunnel.analysis.kept.ledger import DERIVED, DERIVED_META, Ledger

__all__ = ["EVENTS_MIN", "SLICE_EVENTS", "STORED", "Basis", "Keep", "Stored", "derived", "latest"]

EVENTS_MIN = 500_000
"""Of fewer events, everything is computed each time: that costs less than to store it."""
SLICE_EVENTS = 4_000_000
"""DuckDB computes streams of about this number of events together."""
STORED = ("troubled", "streams", "unread", "steps", "samples", "connects", "least_trips")
"""The queries whose rows are stored."""

Keep = Callable[[str], AbstractContextManager[None]]
"""Keeps the tables of the streams for which a condition of SQL holds, while its context lasts."""


class Basis(msgspec.Struct):
    """All that the rows of streams depend on, besides the events."""

    code: str
    """A digest of the code, the queries and the engine."""
    writers: dict[str, tuple[int, int]]
    """Of each writer, its id and by how much its clock is ahead of the common time (us)."""
    spans: dict[str, tuple[int, list[tuple[int, int]]]]
    """Of each writer, the time of its last record and the times for which it has no records (us)."""

    def continues(self, earlier: "Basis") -> bool:
        """Return whether the rows of settled streams are the same as on an earlier basis: traces only went on."""

        def same_span(name: str, of: tuple[int, list[tuple[int, int]]]) -> bool:
            now = self.spans.get(name)
            return now is not None and now[0] >= of[0] and now[1] == of[1]

        return (
            self.code == earlier.code
            and all(self.writers.get(name) == of for name, of in earlier.writers.items())
            and all(same_span(name, of) for name, of in earlier.spans.items())
        )


class Stored(msgspec.Struct):
    """Tables that were stored."""

    basis: Basis
    data: list[str]
    """The folders of events of which they were made, by the names that these had at first."""
    parts: int
    """The number of folders of each table."""


def latest(folder: Folder) -> tuple[str, Stored] | None:
    """Return the name of the newest tables that were stored, and what they are; None if there are none."""
    for name in reversed([name for name in folder.names(DERIVED) if DERIVED_META in folder.names(f"{DERIVED}/{name}")]):
        try:
            return f"{DERIVED}/{name}", msgspec.msgpack.decode(
                folder.read(f"{DERIVED}/{name}/{DERIVED_META}"), type=Stored
            )
        except (OSError, msgspec.DecodeError):  # of another version, or another command has removed it just now
            continue
    return None


@contextmanager
def derived(engine: Engine, ledger: Ledger, basis: Basis, events: int, keep: Keep) -> Iterator[None]:
    """Store the tables on this basis. While the context lasts, their names are those of the stored rows."""
    folder = ledger.folder
    name = f"{DERIVED}/{time.time_ns():020d}-{secrets.token_hex(4)}"
    before = latest(folder)
    added = None if before is None else _added(ledger, basis, before[1])
    if before is not None and added is not None:
        parts = _continue(engine, folder, name, before, added, keep)
    else:
        conditions = _slices(events) if engine.name.lower().startswith(DUCKDB) else ["true"]
        for part, condition in enumerate(conditions):
            with keep(condition):
                _store(engine, folder, name, part, "select * from {}")
        parts = len(conditions)
    data = sorted(ledger.state.origins())
    folder.put_if_absent(f"{name}/{DERIVED_META}", msgspec.msgpack.encode(Stored(basis, data, parts)))
    with ExitStack() as loaded:
        for table in STORED:
            loaded.enter_context(engine.load(table, folder, _places(name, table, parts)))
        yield


def _continue(
    engine: Engine, folder: Folder, name: str, before: tuple[str, Stored], added: list[str], keep: Keep
) -> int:
    """Store the earlier rows of streams that are as they were, and new rows of the others. Return the parts."""
    engine.read(folder, added, "added")
    with ExitStack() as loaded:
        for table in STORED:
            places = _places(before[0], table, before[1].parts)
            loaded.enter_context(engine.load(f"stored_{table}", folder, places))
        on_their_way = "select stream from stored_streams where open_packets > 0"
        affected = f"select stream from added where stream >= 0 union {on_their_way}"
        loaded.enter_context(engine.keep("affected", affected))
        _store(engine, folder, name, 0, "select * from stored_{} where stream not in (select stream from affected)")
        with keep("stream in (select stream from affected)"):
            _store(engine, folder, name, 1, "select * from {}")
    return 2


def _added(ledger: Ledger, basis: Basis, before: Stored) -> list[str] | None:
    """Return the folders with events that stored tables lack; None if these tables do not fit."""
    covered = set(before.data)
    if not basis.continues(before.basis) or not covered <= ledger.state.origins():
        return None
    return [each for each in ledger.data() if not ledger.state.origins(each) <= covered]


def _slices(events: int) -> list[str]:
    """Return conditions that divide the streams. Their names are connection ids: random numbers below 2^32."""
    count = -(-events // SLICE_EVENTS) or 1
    borders = [number * (1 << 32) // count for number in range(count)]
    conditions = [f"stream >= {low} and stream < {high}" for low, high in pairwise(borders)]
    return [*conditions, f"stream >= {borders[-1]}"]


def _store(engine: Engine, folder: Folder, name: str, part: int, text: str) -> None:
    for table in STORED:
        folder.make(f"{name}/{table}")
        engine.store(text.format(table), folder, f"{name}/{table}/{part}")


def _places(name: str, table: str, parts: int) -> list[str]:
    return [f"{name}/{table}/{part}" for part in range(parts)]
