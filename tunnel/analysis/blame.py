"""What limited goodput: the time of all senders, shared out among families of causes.

Between stalls, a sender has the limits that it also has on a sound path: bytes waited for the carrier, or were in
flight. Where the trace shows a cause that made the carrier or the path slow, the time belongs to that cause.
"""

from collections import Counter
from typing import NamedTuple

from tunnel.analysis.families import OF_LIMIT, OF_STALL
from tunnel.analysis.limits import LIMITS
from tunnel.analysis.result import Analysis
from tunnel.traces.record import TraceEvent

__all__ = ["Blame", "Trouble", "blames", "lived_us", "trouble_of"]

_TROUBLE_OF_NOTE = 0.02  # least share of all requests that must fail, or be repeated, to count
_TOO_LARGE = 413
_LOSS_OF_NOTE = 0.01  # least share of all transmissions that must be lost, or repeated, to count
_COUNT_OF_NOTE = 5  # fewer losses or failed requests may be an accident
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


class _RoundTrips(NamedTuple):
    least_us: int
    median_us: int


def trouble_of(of: Analysis) -> Trouble:
    """Count the exchanges that failed."""
    numbers: Counter[str] = Counter()
    statuses: Counter[int] = Counter()
    for row in of.exchanges:
        numbers[row["event"]] += row["n"]
        if row["event"] == TraceEvent.EXCHANGE_ANSWERED and row["status"] != 200:
            statuses[row["status"]] += row["n"]
    sent, repeats = numbers[TraceEvent.EXCHANGE_SENT], numbers[TraceEvent.EXCHANGE_REPEATED]
    broken = numbers[TraceEvent.EXCHANGE_FAILED]
    refused = statuses.total()
    unanswered = max(broken, repeats - refused)
    if unanswered:
        statuses[0] = unanswered
    failed = refused + unanswered
    # If there are more failures than requests, some endpoints recorded only their failures.
    requests = sent + repeats if sent and sent + repeats >= failed else None
    return Trouble(requests, failed, dict(statuses), of.absences, broken)


def lived_us(of: Analysis) -> int:
    """Return the time of all senders: every stall, and every time with a limit."""
    stalled: int = sum(row["us"] for row in of.stalls)
    limited: int = sum(of.limits.get(name, 0) for name in LIMITS)
    return stalled + limited


def blames(of: Analysis) -> list[Blame]:
    """Return the families that took time, the largest first. Their times add up to `lived_us`."""
    found: dict[str, list[int]] = {}
    for name in LIMITS:
        if us := of.limits.get(name):
            family = _explained(of, "writer" if name == "awaiting" and _writes_slowly(of) else OF_LIMIT[name])
            found.setdefault(family, [0, 0])[0] += us
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
    paced = of.limits.get("idle", 0) + of.limits.get("all_sent", 0)
    return bool(2 * paced >= of.limits["awaiting"])


def _is_narrow(of: Analysis) -> bool:
    """Whether bytes queue on the path: a packet usually waits for much longer than the path itself takes.

    Requests are then repeated because their answers are late, and no request fails for another reason.
    """
    trips, trouble = _round_trips(of), trouble_of(of)
    is_queue = trips is not None and trips.median_us >= _QUEUE_US and trips.median_us >= 4 * trips.least_us
    return is_queue and not trouble.broken and not set(trouble.statuses) - {0}


def _is_troubled(of: Analysis) -> bool:
    return trouble_of(of).is_of_note


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
