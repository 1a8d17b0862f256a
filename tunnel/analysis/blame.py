"""What limited goodput: the time of all senders, shared out among families of causes.

Between stalls, a sender has the limits that it also has on a sound path: bytes waited for the carrier, or were in
flight. Where the trace shows a cause that made the carrier or the path slow, the time belongs to that cause.
"""

from typing import Any, NamedTuple

from tunnel.analysis.analyse import Analysis
from tunnel.analysis.families import OF_LIMIT, OF_STALL
from tunnel.analysis.limits import LIMITS

__all__ = ["Blame", "Trouble", "blames", "lived_us", "trouble_of"]

_TROUBLE_OF_NOTE = 0.02  # least share of all requests that must fail, or be repeated, to count
_TOO_LARGE = 413
_LOSS_OF_NOTE = 0.01  # least share of all transmissions that must be lost, or repeated, to count
_LOSSES_OF_NOTE = 5  # fewer may be an accident
_FAR_US = 50_000  # a shorter round trip rarely limits a stream
_QUEUE_US = 500_000  # the shortest deadline of a request (PROTOCOL 7.8)
_WINDOW_BYTES = 128 * 1024  # half of the window with which a connection usually begins


class Blame(NamedTuple):
    """A family of causes, and the time of senders that it took."""

    family: str
    us: int
    stalled_us: int
    """The part of it in which senders were stalled."""


class Trouble(NamedTuple):
    """The exchanges that did not succeed at once."""

    requests: int
    failed: int
    statuses: dict[int, int]
    """The number of exchanges that ended with each HTTP status other than 200; status 0: no answer."""
    absences: int
    broken: int
    """The requests whose connection failed."""

    @property
    def share(self) -> float:
        """The share of requests that failed, or had to be repeated."""
        return self.failed / self.requests if self.requests else 0.0

    @property
    def is_of_note(self) -> bool:
        """Whether it may have limited goodput: even one refused body makes all later ones smaller."""
        return self.share >= _TROUBLE_OF_NOTE or _TOO_LARGE in self.statuses or (self.absences > 0)


def trouble_of(of: Analysis) -> Trouble:
    """Count the exchanges that failed."""
    requests = repeats = broken = 0
    statuses: dict[int, int] = {}
    for row in of.exchanges:
        event, n = row["event"], row["n"]
        requests += n if event in ("exchange_sent", "exchange_repeated") else 0
        repeats += n if event == "exchange_repeated" else 0
        broken += n if event == "exchange_failed" else 0
        if event == "exchange_answered" and row["status"] != 200:
            statuses[row["status"]] = statuses.get(row["status"], 0) + n
    refused = sum(statuses.values())
    unanswered = max(broken, repeats - refused)
    if unanswered:
        statuses[0] = unanswered
    return Trouble(max(requests, refused), refused + unanswered, statuses, of.absences, broken)


def lived_us(of: Analysis) -> int:
    """Return the time of all senders: every stall, and every time with a limit."""
    stalled: int = sum(row["us"] for row in of.stalls)
    return stalled + sum(of.limits.get(name) or 0 for name in LIMITS)


def blames(of: Analysis) -> list[Blame]:
    """Return the families that took time, the largest first. Their times add up to `lived_us`."""
    found: dict[str, list[int]] = {}
    for name in LIMITS:
        if of.limits.get(name):
            family = _explained(of, "writer" if name == "awaiting" and _writes_slowly(of) else OF_LIMIT[name])
            found.setdefault(family, [0, 0])[0] += of.limits[name]
    for row in of.stalls:
        sums = found.setdefault(_explained(of, OF_STALL[row["why"]]), [0, 0])
        sums[0] += row["us"]
        sums[1] += row["us"]
    shared = [Blame(family, us, stalled_us) for family, (us, stalled_us) in found.items()]
    return sorted(shared, key=lambda blame: (-blame.us, blame.family))


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
    paced = (of.limits.get("idle") or 0) + (of.limits.get("all_sent") or 0)
    return bool(2 * paced >= of.limits.get("awaiting", 0))


def _is_narrow(of: Analysis) -> bool:
    """Whether bytes queue on the path: a packet usually waits for much longer than the path itself takes.

    Requests are then repeated because their answers are late, and no request fails for another reason.
    """
    least, middle = of.trips.get("us_min"), (of.trips.get("us") or [None])[0]
    trouble = trouble_of(of)
    is_queue = bool(least and middle and middle >= _QUEUE_US and middle >= 4 * least)
    return is_queue and not trouble.broken and not set(trouble.statuses) - {0}


def _is_troubled(of: Analysis) -> bool:
    return trouble_of(of).is_of_note


def _loses(of: Analysis) -> bool:
    lost, judged = of.totals["lost"], of.totals["judged"]
    return lost >= _LOSSES_OF_NOTE and _share(lost, judged) >= _LOSS_OF_NOTE


def _repeats(of: Analysis) -> bool:
    """Whether senders repeated many packets, and no receiver was traced that could tell which ones were lost."""
    resent = of.totals["packets"] - of.totals["unique_packets"]
    is_of_note = resent >= _LOSSES_OF_NOTE and _share(resent, of.totals["packets"]) >= _LOSS_OF_NOTE
    return is_of_note and not of.totals["judged"]


def _is_far(of: Analysis) -> bool:
    """Whether round trips are long although nothing queues: the median is near the least."""
    least, middle = of.trips.get("us_min"), (of.trips.get("us") or [None])[0]
    return bool(least and middle and least >= _FAR_US and 2 * least >= middle)


def _has_large_windows(of: Analysis) -> bool:
    return (of.limits.get("granted_most") or 0) >= _WINDOW_BYTES


def _share(part: Any, whole: Any) -> float:
    return part / whole if whole else 0.0


_RULES = (
    (("http", "delay", "rate", "loss"), _is_narrow, "rate"),
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
