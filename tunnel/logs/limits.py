"""Limits the lines of a log: how many of one kind, about one source, are written in a second, and how many bytes about
one source in the long run. No I/O and no clock.

The lines beyond a limit are counted. One line says how many they were when their second is over; it counts as the first
line of the next second, so that a flood never causes more lines than its limit.
"""

import enum
from collections import OrderedDict
from typing import NamedTuple

__all__ = [
    "BYTES_AT_ONCE",
    "BYTES_PER_SECOND",
    "INTERVAL_US",
    "LINES_PER_SECOND",
    "LineLimits",
    "Source",
    "SourceKind",
    "Suppressed",
]

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
# In the long run, all kinds together: a disk must not be filled by what one source makes the process say. 10 KiB/s are
# 0.9 GB in a day. The process itself has no limit, since no other machine decides how much it says.
BYTES_PER_SECOND = {
    SourceKind.USER: 10 * 1024,
    SourceKind.ADDRESS: 1024,
    SourceKind.UNAUTHENTICATED: 10 * 1024,
    SourceKind.LIBRARY: 1024,
}
BYTES_AT_ONCE = 60  # after a silence, the bytes of this number of seconds may come at once


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


class _Volume:
    """The bytes that were written about each source of late, as the time at which its rate has made up for them."""

    def __init__(self) -> None:
        self._even_us: dict[Source, int] = {}
        self._sweep_at = _INTERVALS_MAX  # entries

    def __len__(self) -> int:
        return len(self._even_us)

    def has_room(self, source: Source, now: int) -> bool:
        """Whether another line may be written about the source."""
        return self._even_us.get(source, now) - now < BYTES_AT_ONCE * INTERVAL_US

    def add(self, source: Source, count: int, now: int) -> None:
        """Note the bytes of a line that was written."""
        rate = BYTES_PER_SECOND.get(source.kind)
        if rate is None:
            return
        if len(self._even_us) >= self._sweep_at:
            self._even_us = {each: even for each, even in self._even_us.items() if even > now}
            self._sweep_at = max(_INTERVALS_MAX, 2 * len(self._even_us))
        self._even_us[source] = max(self._even_us.get(source, now), now) + count * INTERVAL_US // rate


class LineLimits:
    """Decides which lines are written. Ask `passes` for each line, tell `wrote` the size of each line that was
    written, and call `poll_suppressed` when `next_timeout` has come."""

    def __init__(self) -> None:
        self.suppressed = 0  # lines, since the start
        self._intervals: OrderedDict[tuple[str, Source], _Interval] = OrderedDict()  # in the order in which they began
        self._silent = 0  # intervals with suppressed lines
        self._volume = _Volume()

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
        if (kind, source) in self._intervals and self._volume.has_room(_UNAUTHENTICATED, now):
            return self._take(kind, source, level, now)
        return self._take(kind, _UNAUTHENTICATED, level, now) and self._take(kind, source, level, now)

    def wrote(self, source: Source, count: int, now: int) -> None:
        """Note the bytes of a line about this source."""
        self._volume.add(source, count, now)
        if source.kind is SourceKind.ADDRESS:
            self._volume.add(_UNAUTHENTICATED, count, now)

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
            if not interval.suppressed:
                continue
            self._silent -= 1
            is_address = source.kind is SourceKind.ADDRESS
            if self._volume.has_room(source, now) and not (
                is_address and not self._volume.has_room(_UNAUTHENTICATED, now)
            ):
                after = self._intervals[kind, source] = _Interval(now)
                after.lines = 1
                return Suppressed(kind, source, interval.level, interval.suppressed)
            # A line that says so would be beyond the limit, too. Very many addresses would fill the table.
            self._add_suppressed(kind, _UNAUTHENTICATED if is_address else source, interval, now)
        return None

    def _add_suppressed(self, kind: str, source: Source, earlier: _Interval, now: int) -> None:
        """Let lines that were suppressed before be said at the end of the source's present second."""
        interval = self._intervals.setdefault((kind, source), _Interval(now))
        self._silent += not interval.suppressed
        interval.suppressed += earlier.suppressed
        interval.level = earlier.level

    def _take(self, kind: str, source: Source, level: str, now: int) -> bool:
        interval = self._intervals.get((kind, source))
        if interval is None:
            if len(self._intervals) >= _INTERVALS_MAX:
                self.suppressed += 1
                return False
            interval = self._intervals[kind, source] = _Interval(now)
        if interval.lines < LINES_PER_SECOND[source.kind] and self._volume.has_room(source, now):
            interval.lines += 1
            return True
        self.suppressed += 1
        self._silent += not interval.suppressed
        interval.suppressed += 1
        interval.level = level
        return False
