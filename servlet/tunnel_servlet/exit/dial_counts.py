"""The counts of an exit: its dials and lookups by outcome, how long they took, and its open connections."""

from collections.abc import Iterator

from tunnel.errors import RejectReason
from tunnel.metrics.metric import Histogram, Metric, Sample

__all__ = ["EXIT_METRICS", "DialCounts"]

_OPENED = "opened"
_DIAL_OUTCOMES = (_OPENED, *(reason.name.lower() for reason in RejectReason))
_LOOKUP_OUTCOMES = ("found", "not_found", "failed")

_DIALS = Metric.counter(
    "tunnel_dials_total", "Connections that an exit was asked for: opened, or why not.", outcome=_DIAL_OUTCOMES
)
_DIAL_SECONDS = Metric.histogram(
    "tunnel_dial_seconds", "Time from the request to the answer of the target or the refusal, with lookups."
)
_LOOKUPS = Metric.counter("tunnel_lookups_total", "Lookups of names at an exit.", outcome=_LOOKUP_OUTCOMES)
_LOOKUP_SECONDS = Metric.histogram(
    "tunnel_lookup_seconds", "Time of lookups, with the wait for the turn of their user."
)
_CONNECTIONS = Metric.gauge("tunnel_exit_connections", "Connections of an exit that are dialled or open.")

EXIT_METRICS = (_DIALS, _DIAL_SECONDS, _LOOKUPS, _LOOKUP_SECONDS, _CONNECTIONS)


class DialCounts:
    """Counts the dials and lookups of one exit."""

    def __init__(self) -> None:
        self.dials: dict[str, int] = {}
        self.dial_seconds = Histogram()
        self.lookups: dict[str, int] = {}
        self.lookup_seconds = Histogram()

    def note_dial(self, refusal: RejectReason | None, seconds: float | None = None) -> None:
        """Count a dial. `refusal` is None if the target accepted, `seconds` if nothing was dialled."""
        outcome = _OPENED if refusal is None else refusal.name.lower()
        self.dials[outcome] = self.dials.get(outcome, 0) + 1
        if seconds is not None:
            self.dial_seconds.observe(seconds)

    def note_lookup(self, outcome: str, seconds: float) -> None:
        """Count a lookup with one of the outcomes *found*, *not_found* and *failed*."""
        self.lookups[outcome] = self.lookups.get(outcome, 0) + 1
        self.lookup_seconds.observe(seconds)

    def samples(self, connections: int) -> Iterator[Sample]:
        """Yield the samples of this exit, which has this number of connections."""
        for outcome in _DIAL_OUTCOMES:
            yield _DIALS.sample(self.dials.get(outcome, 0), outcome=outcome)
        yield _DIAL_SECONDS.sample(self.dial_seconds)
        for outcome in _LOOKUP_OUTCOMES:
            yield _LOOKUPS.sample(self.lookups.get(outcome, 0), outcome=outcome)
        yield _LOOKUP_SECONDS.sample(self.lookup_seconds)
        yield _CONNECTIONS.sample(connections)
