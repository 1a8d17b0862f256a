"""Reads the files of the audit: the events that somebody asks for, and sums over them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec

from tunnel_servlet.audit.event import AuditEvent, Kind, decode_event, time_text
from tunnel_servlet.audit.files import files_of

__all__ = ["REFUSALS", "Events", "Query", "Totals", "Usage", "totals_of", "when"]

REFUSALS = frozenset({Kind.CONNECTION_REFUSED, Kind.SERVICE_REFUSED, Kind.TARGET_REFUSED, Kind.TOKEN_REFUSED})
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days"}
_NAMES_MAX = 10_000  # of targets and rules, in sums; a user can make up any number
_OTHERS = "(others)"


class Query(msgspec.Struct, frozen=True):
    """Which events somebody asks for; an empty field asks for all. Times are as in events."""

    user: str = ""
    since: str = ""
    until: str = ""
    kinds: frozenset[Kind] = frozenset()
    target: str = ""

    def wants(self, event: AuditEvent) -> bool:
        """Whether this event is asked for. Those of a user are also those of the people who come to his services."""
        return (
            (not self.user or self.user in (event.user, event.owner))
            and (not self.kinds or event.event in self.kinds)
            and (not self.since or event.time >= self.since)
            and (not self.until or event.time < self.until)
            and (not self.target or self.target in (event.target, event.service, event.target.rpartition(":")[0]))
        )


class Events:
    """The events of an audit, in the order in which they were written. After iterating, it says what was not there.

    Raise OSError if a file cannot be read.
    """

    def __init__(self, path: Path, query: Query) -> None:
        self.unreadable = 0  # lines that are no events, such as one that was cut off when the relay was killed
        self._path = path
        self._query = query
        self._numbers: dict[str, list[int]] = {}  # by run: the lowest and the highest number, and how many there are

    def __iter__(self) -> Iterator[AuditEvent]:
        for path in files_of(self._path):
            stamp = path.name.removeprefix(f"{self._path.name}.")
            if path != self._path and stamp < self._query.since.replace("-", "").replace(":", ""):
                continue  # the stamp is the time of its last event
            try:
                with path.open("rb") as file:
                    yield from filter(self._query.wants, self._read(file))
            except FileNotFoundError:
                continue  # it was removed, or renamed, meanwhile

    def _read(self, lines: Iterable[bytes]) -> Iterator[AuditEvent]:
        for line in lines:
            event = decode_event(line)
            if event is None:
                self.unreadable += bool(line.strip())
                continue
            found = self._numbers.setdefault(event.run, [event.number, event.number, 0])
            found[0], found[1] = min(found[0], event.number), max(found[1], event.number)
            found[2] += 1
            yield event

    @property
    def missing(self) -> int:
        """The number of events between others that are in no file: they were lost, or somebody has removed them."""
        return sum(highest - lowest + 1 - count for lowest, highest, count in self._numbers.values())


class Usage(msgspec.Struct):
    """What one user did."""

    user: str
    connections: int = 0
    refused: int = 0
    sent_bytes: int = 0
    received_bytes: int = 0
    seconds: float = 0.0


class Totals(msgspec.Struct):
    """Sums over events: by user, by the rule that allowed connections, and by target and reason of those refused."""

    users: list[Usage]
    rules: list[tuple[str, int]]
    refused: list[tuple[str, int]]


def totals_of(events: Iterable[AuditEvent]) -> Totals:
    """Return sums over these events, those with most first. Refusals that were only counted are in the users' sums."""
    users: dict[str, Usage] = {}
    rules: Counter[str] = Counter()
    refused: Counter[str] = Counter()
    for event in events:
        name = event.owner or event.user
        user = users.setdefault(name, Usage(name))
        match event.event:
            case Kind.CONNECTION_ALLOWED:
                user.connections += 1
                _count(rules, event.rule)
            case Kind.CONNECTION_REFUSED:
                user.refused += 1
                _count(refused, f"{event.target or event.service} {event.reason}")
            case Kind.CONNECTION_ENDED:
                user.sent_bytes += event.sent_bytes or 0
                user.received_bytes += event.received_bytes or 0
                user.seconds += event.seconds or 0.0
            case Kind.EVENTS_SUMMED:
                kind = Kind.CONNECTION_REFUSED.value
                user.refused += sum(count for what, count in event.counts.items() if what.startswith(kind))
    used = [user for user in users.values() if user.connections or user.refused or user.sent_bytes]
    used.sort(key=lambda user: -(user.sent_bytes + user.received_bytes))
    return Totals(used, rules.most_common(), refused.most_common())


def _count(counter: Counter[str], name: str) -> None:
    counter[name if name in counter or len(counter) < _NAMES_MAX else _OTHERS] += 1


def when(text: str, now: datetime) -> str:
    """Return the time, as in events, that a person writes: a span before now, such as 90s, 30m, 1h or 2d, or a date or
    time in ISO 8601, of UTC if it names no zone. Raise ValueError if it is neither."""
    span = _SPAN.fullmatch(text)
    if span:
        moment = now - timedelta(**{_UNITS[span[2]]: int(span[1])})
    else:
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise ValueError(f"{text!r} is no time: write 90s, 30m, 1h, 2d, or 2026-11-29T16:30") from None
        moment = moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    return time_text(round(moment.timestamp() * 1_000_000))
