"""What limited goodput: the time for which streams lived, shared out among families of causes.

Between stalls, a sender has the limits that it also has on a sound path: bytes waited for the carrier, or were in
flight. Where the trace shows a cause that made the carrier or the path slow, the time belongs to that cause. While
bytes that have arrived wait for the application, it is the reader that everybody waits for, whatever the sender does.
"""

from collections import Counter
from typing import NamedTuple

from tunnel.analysis.results.limits import LIMITS
from tunnel.analysis.results.result import Analysis, Rows
from tunnel.analysis.verdicts.families import OF_LIMIT, OF_STALL
from tunnel.analysis.words import process_of
from tunnel.traces.record import TraceEvent

__all__ = [
    "Blame",
    "Place",
    "Trouble",
    "blames",
    "explained_us",
    "life_us",
    "main_place",
    "mean_body_bytes",
    "trouble_of",
]

_TROUBLE_OF_NOTE = 0.02  # least share of all requests that must fail, or be repeated, to count
_TOO_LARGE = 413
_SENT = (TraceEvent.EXCHANGE_SENT, TraceEvent.EXCHANGE_REPEATED)
# While these last, bytes that wait for the application are not the reason: its process stood still, or it has not
# accepted the connection.
_NOT_THE_READERS = ("loop_lag", "peer_loop_lag", "relay_loop_lag", "connecting")
_SIDE = dict.fromkeys(("reader", "window", "peer_loop"), "receiver") | dict.fromkeys(
    ("http", "edge", "relay_loop", "polls"), "relay"
)
"""Whose place tells more than the sender's."""
_SMALL_BYTES = 32 * 1024  # mean body of requests; a sender on a long path that may choose takes ten times as much
_LOSS_OF_NOTE = 0.01  # least share of all transmissions that must be lost, or repeated, to count
_COUNT_OF_NOTE = 5  # fewer losses or failed requests may be an accident
_FAR_US = 50_000  # a shorter round trip rarely limits a stream
_QUEUE_US = 200_000  # a shorter wait is rarely one behind other bytes on the path
_DEADLINE_US = 500_000  # the shortest deadline of a request (PROTOCOL 7.8)
_WINDOW_BYTES = 128 * 1024  # half of the window with which a connection usually begins


class Blame(NamedTuple):
    """A family of causes, and the time of senders that it took."""

    family: str
    us: int
    stalled_us: int
    """The part of it in which senders were stalled."""


class Trouble(NamedTuple):
    """The exchanges that did not succeed at once."""

    requests: int | None
    """None if it is unknown: a trace of the level "connection" does not record requests that succeed at once. If only
    some endpoints traced at that level, the recorded requests may be fewer than the failures."""
    failed: int
    statuses: dict[int, int]
    """The number of exchanges that ended with each HTTP status other than 200; status 0: no answer."""
    absences: int
    broken: int
    """The requests whose connection failed."""

    @property
    def share(self) -> float | None:
        """The share of requests that failed, or had to be repeated; None if it is unknown."""
        return self.failed / self.requests if self.requests else None

    @property
    def is_of_note(self) -> bool:
        """Whether the failures may have limited goodput.

        One body that was too large (413) suffices, because all later bodies are smaller. It also suffices that an
        endpoint once lost its relay, or could not reach it.
        """
        has_many_failures = self.failed >= _COUNT_OF_NOTE if self.share is None else self.share >= _TROUBLE_OF_NOTE
        return has_many_failures or _TOO_LARGE in self.statuses or self.absences > 0


class Place(NamedTuple):
    """Where a family took most of its time."""

    side: str
    """sender, receiver or relay."""
    name: str
    share: float
    """Of the family's time."""
    places: int
    """The number of all places that had a part in it."""


class _RoundTrips(NamedTuple):
    least_us: int
    median_us: int


def trouble_of(of: Analysis) -> Trouble:
    """Count the exchanges that failed."""
    found = _trouble_in(of.exchanges, sum(one.statuses.get(0, 0) for one in _by_relay(of).values()))
    return found._replace(absences=of.absences)


def _by_relay(of: Analysis) -> dict[str, Trouble]:
    """Count the exchanges that failed at each relay that is known."""
    rows: dict[str, Rows] = {}
    for row in of.refusals:
        rows.setdefault(row["relay"], []).append(row)
    return {name: _trouble_in(of_relay) for name, of_relay in rows.items()}


def _trouble_in(rows: Rows, unanswered_least: int = 0) -> Trouble:
    """Count the exchanges that failed. A request without an answer may be repeated, or have failed, or both."""
    numbers: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for row in rows:
        numbers[row["event"]] += row["n"]
        if row["event"] == TraceEvent.EXCHANGE_ANSWERED and row["status"] != 200:
            statuses[row["status"]] += row["n"]
    sent, repeats = numbers[TraceEvent.EXCHANGE_SENT], numbers[TraceEvent.EXCHANGE_REPEATED]
    broken = numbers[TraceEvent.EXCHANGE_FAILED]
    refused = statuses.total()
    unanswered = max(broken, repeats - refused, unanswered_least)
    if unanswered:
        statuses[0] = unanswered
    failed = refused + unanswered
    # If there are more failures than requests, some endpoints recorded only their failures.
    requests = sent + repeats if sent and sent + repeats >= failed else None
    return Trouble(requests, failed, dict(statuses), 0, broken)


def explained_us(of: Analysis) -> int:
    """Return the part of the life of all streams that has a cause."""
    limited: int = sum(of.limits.get(name) or 0 for name in LIMITS)
    stalled: int = sum(row["us"] for row in of.stalls)
    return limited + stalled + _unexplained_us(of.unread)


def _unexplained_us(unread: Rows) -> int:
    """Return the time in which bytes waited for the application, and the sender neither had a limit nor was stalled."""
    return sum(row["us"] if row["of"] == "whole" else -row["us"] for row in unread)


def life_us(of: Analysis) -> int:
    """Return the time for which all streams lived. Streams that carry little count only while they are busy or read."""
    lived: int = of.life.get("us", 0)
    return max(lived + _unexplained_us([row for row in of.unread if not row["is_main"]]), explained_us(of))


def blames(of: Analysis) -> list[Blame]:
    """Return the families that took time, the largest first."""
    found: dict[str, list[int]] = {}

    def add(family: str, us: int, stalled_us: int) -> None:
        sums = found.setdefault(family, [0, 0])
        sums[0] += us
        sums[1] += stalled_us

    for (kind, name), us in _times(of).items():
        if us:
            add(_family(of, kind, name), us, us if kind == "stall" else 0)
    for row in of.unread:
        if row["of"] == "stall" and row["name"] not in _NOT_THE_READERS:
            add("reader", 0, row["us"])
    shared = [Blame(family, us, stalled_us) for family, (us, stalled_us) in found.items() if us]
    return sorted(shared, key=lambda blame: (-blame.us, blame.family))


def _times(of: Analysis) -> dict[tuple[str, str], int]:
    """Return all times, each once: (limit, stall or unread; its name) -> microseconds."""
    times = {("limit", name): of.limits.get(name) or 0 for name in LIMITS}
    times |= {("stall", row["why"]): row["us"] for row in of.stalls}
    unread = 0
    for row in of.unread:
        if row["of"] == "whole":
            unread += row["us"]
        elif row["name"] in _NOT_THE_READERS:
            unread -= row["us"]
        else:
            times[row["of"], row["name"]] -= row["us"]
    times["unread", ""] = unread
    for kind, us in (("limit", of.life.get("asked_us", 0)), ("stall", of.life.get("asked_stalled_us", 0))):
        if us:
            times[kind, "connecting"] -= us
            times[kind, "asked"] = us
    return times


def _family(of: Analysis, kind: str, name: str) -> str:
    """Return the family to which a time belongs, given the evidence."""
    if kind == "unread":
        return "reader"
    if name == "asked":
        return "delay"
    if kind == "stall":
        return _explained(of, OF_STALL[name])
    return _explained(of, "writer" if name == "awaiting" and _writes_slowly(of) else OF_LIMIT[name])


def main_place(of: Analysis, family: str) -> Place | None:
    """Return where a family took most of its time; None if the trace does not tell."""
    side = _SIDE.get(family, "sender")
    sums: Counter[str] = Counter()
    for row in of.places:
        if row["side"] == side and _family(of, row["of"], row["name"]) == family:
            sums[row["place"]] += row["us"]
    if not sums:
        return None
    name = min(sums, key=lambda place: (-sums[place], place))
    shown = process_of(name) if side == "receiver" else name
    return Place(side, shown, sums[name] / sums.total(), len(sums))


def failing_relay(of: Analysis) -> tuple[str, tuple[int, int], tuple[int, int]] | None:
    """Return the relay at which the largest share of requests failed, the numbers of its failures and requests, and the
    same of all others. Return None if only one relay is known."""
    found = _by_relay(of)
    if len(found) < 2:
        return None
    name = min(found, key=lambda one: (-(found[one].share or 0.0), one))
    others = [one for other, one in found.items() if other != name]
    rest = sum(one.failed for one in others), sum(one.requests or 0 for one in others)
    return name, (found[name].failed, found[name].requests or 0), rest


def _explained(of: Analysis, family: str) -> str:
    """Return the family that explains a time of this family, by the first rule that applies."""
    for about, holds, instead in _RULES:
        if family in about and holds(of):
            return instead
    return family


def _writes_slowly(of: Analysis) -> bool:
    """Whether the application wrote at its own pace: while bytes were in flight, or after a pause.

    An application that waits until everything is acknowledged writes right after that: the path is slow, not the
    application.
    """
    paced = of.limits.get("idle", 0) + of.limits.get("all_sent", 0)
    return bool(2 * paced >= of.limits["awaiting"])


def _is_narrow(of: Analysis) -> bool:
    """Whether bytes queue on the path: a packet usually waits for much longer than the path itself takes.

    Requests are then repeated because their answers are late, and no request fails for another reason.
    """
    trips, trouble = _round_trips(of), trouble_of(of)
    is_queue = trips is not None and trips.median_us >= max(_QUEUE_US, 4 * trips.least_us)
    is_queue = is_queue and of.trips["us"][1] >= _DEADLINE_US
    return is_queue and not trouble.broken and not set(trouble.statuses) - {0}


def _is_troubled(of: Analysis) -> bool:
    return trouble_of(of).is_of_note


def _has_small_bodies(of: Analysis) -> bool:
    """Whether each request took a long round trip and carried little, and none failed but for its size."""
    body, trouble = mean_body_bytes(of), trouble_of(of)
    others = trouble.failed - trouble.statuses.get(_TOO_LARGE, 0)
    is_sound = not trouble.requests or others < _TROUBLE_OF_NOTE * trouble.requests
    return body is not None and body <= _SMALL_BYTES and is_sound and not trouble.absences and _is_far(of)


def mean_body_bytes(of: Analysis) -> float | None:
    """Return the mean size of the bodies that carried packets to the relay; None if the trace has no such requests."""
    sent = [row for row in of.exchanges if row["kind"] == "push" and row["event"] in _SENT]
    size_bytes: int = sum(row.get("bytes", 0) for row in sent)
    return size_bytes / sum(row["n"] for row in sent) if size_bytes else None


def _loses(of: Analysis) -> bool:
    return _is_loss_of_note(of.totals["lost"], of.totals["judged"])


def _repeats(of: Analysis) -> bool:
    """Whether senders repeated many packets, in a trace without a receiver that shows which of them were lost."""
    resent = of.totals["packets"] - of.totals["unique_packets"]
    return _is_loss_of_note(resent, of.totals["packets"]) and not of.totals["judged"]


def _is_far(of: Analysis) -> bool:
    """Whether round trips are long although nothing queues: the median is near the least."""
    trips = _round_trips(of)
    return trips is not None and trips.least_us >= _FAR_US and 2 * trips.least_us >= trips.median_us


def _has_large_windows(of: Analysis) -> bool:
    most: int | None = of.limits.get("granted_most")
    return most is not None and most >= _WINDOW_BYTES


def _round_trips(of: Analysis) -> _RoundTrips | None:
    """Return the shortest and the median round trip, or None if none was measured."""
    quantiles = of.trips.get("us")
    return _RoundTrips(of.trips["us_min"], quantiles[0]) if quantiles else None


def _is_loss_of_note(part: int, whole: int) -> bool:
    return part >= _COUNT_OF_NOTE and part >= _LOSS_OF_NOTE * whole


_RULES = (
    (("http", "delay", "rate", "loss"), _is_narrow, "rate"),
    (("rate",), _has_small_bodies, "bodies"),
    # Failed requests explain a carrier that takes nothing, and acknowledgements that are late.
    (("rate", "delay", "polls"), _is_troubled, "http"),
    # They also explain why packets that were not lost were sent again: the acknowledgements could not come.
    (("loss",), lambda of: _is_troubled(of) and not _loses(of) and not _repeats(of), "http"),
    (("rate", "delay"), _loses, "loss"),
    (("rate", "delay"), _repeats, "loss"),
    (("rate",), _is_far, "delay"),
    # If a window is as large as usual, and still full of bytes in flight, the path is the cause.
    (("window",), lambda of: _has_large_windows(of) and (_loses(of) or _repeats(of)), "loss"),
    (("window",), lambda of: _has_large_windows(of) and _is_far(of), "delay"),
    (("window",), _has_large_windows, "rate"),
)
"""(the families whose time may have another cause, the evidence for it, the family of that cause)"""
