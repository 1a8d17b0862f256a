"""Limits the lines of a log: how many of one kind, about one source, are written in a second. No I/O and no clock.

The lines beyond a limit are counted. One line says how many they were when their second is over; it counts as the first
line of the next second, so that a flood never causes more lines than its limit.
"""

import enum
from collections import OrderedDict
from typing import NamedTuple

__all__ = ["INTERVAL_US", "LINES_PER_SECOND", "LineLimits", "Source", "SourceKind", "Suppressed"]

INTERVAL_US = 1_000_000
_INTERVALS_MAX = 10_000  # kinds and sources of which there were lines within a second; they hold about 3 MB


class SourceKind(enum.Enum):
    """The sorts of sources, each with a limit of its own."""

    PROCESS = "process"  # the process itself, or its operator
    USER = "user"  # a user whose token was valid
    ADDRESS = "address"  # an unauthenticated client, by its address
    UNAUTHENTICATED = "unauthenticated"  # all such clients together: one of them can have very many addresses
    LIBRARY = "library"  # a library that uses Python's own logging


LINES_PER_SECOND = {
    SourceKind.PROCESS: 100,
    SourceKind.USER: 100,
    SourceKind.ADDRESS: 1,
    SourceKind.UNAUTHENTICATED: 20,
    SourceKind.LIBRARY: 1,
}


class Source(NamedTuple):
    """The subject of a line. `name`: of the user, the address or the library."""

    kind: SourceKind
    name: str = ""


_UNAUTHENTICATED = Source(SourceKind.UNAUTHENTICATED)


class Suppressed(NamedTuple):
    """The number of lines of a kind that were left out within a second. `level` is that of the last of them."""

    kind: str
    source: Source
    level: str
    lines: int


class _Interval:
    """A second of one kind of line and one source."""

    __slots__ = ("began_us", "level", "lines", "suppressed")

    def __init__(self, began_us: int) -> None:
        self.began_us = began_us
        self.lines = 0
        self.suppressed = 0
        self.level = ""


class LineLimits:
    """Decides which lines are written. Ask `passes` for each line, and call `poll_suppressed` when `next_timeout` has
    come."""

    def __init__(self) -> None:
        self.suppressed = 0  # lines, since the start
        self._intervals: OrderedDict[tuple[str, Source], _Interval] = OrderedDict()  # in the order in which they began
        self._silent = 0  # intervals with suppressed lines

    def __len__(self) -> int:
        return len(self._intervals)

    def passes(self, kind: str, source: Source, level: str, now: int) -> bool:
        """Whether to write a line of this kind now. Lines that do not pass are counted.

        Call `poll_suppressed` before, until it returns None.
        """
        if source.kind is not SourceKind.ADDRESS:
            return self._take(kind, source, level, now)
        # The limit of the address comes first: otherwise one unauthenticated client would use up the lines of all such
        # clients. If their common limit stops a line, its address is not remembered, so they cannot fill the table.
        if (kind, source) in self._intervals:
            return self._take(kind, source, level, now)
        return self._take(kind, _UNAUTHENTICATED, level, now) and self._take(kind, source, level, now)

    def next_timeout(self) -> int | None:
        """Return the time of the next call of `poll_suppressed`, or None if no lines are suppressed."""
        return next(iter(self._intervals.values())).began_us + INTERVAL_US if self._silent else None

    def poll_suppressed(self, now: int) -> Suppressed | None:
        """Return the next number of lines that were left out in a second that is over, or None. The caller logs it."""
        while self._intervals:
            (kind, source), interval = next(iter(self._intervals.items()))
            if now - interval.began_us < INTERVAL_US:
                return None
            del self._intervals[kind, source]
            if interval.suppressed:
                self._silent -= 1
                after = self._intervals[kind, source] = _Interval(now)
                after.lines = 1
                return Suppressed(kind, source, interval.level, interval.suppressed)
        return None

    def _take(self, kind: str, source: Source, level: str, now: int) -> bool:
        interval = self._intervals.get((kind, source))
        if interval is None:
            if len(self._intervals) >= _INTERVALS_MAX:
                self.suppressed += 1
                return False
            interval = self._intervals[kind, source] = _Interval(now)
        if interval.lines < LINES_PER_SECOND[source.kind]:
            interval.lines += 1
            return True
        self.suppressed += 1
        self._silent += not interval.suppressed
        interval.suppressed += 1
        interval.level = level
        return False
