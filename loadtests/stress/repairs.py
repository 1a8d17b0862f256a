"""How lost packets were repaired, by the cause of each retransmission, and which kinds of repair a run must show."""

from collections import Counter
from collections.abc import Mapping, Sequence

from loadtests.harness.losses import parse_model
from loadtests.stress.shapes import Plan
from tunnel.core import ConnectionStats
from tunnel.traces.record import TraceCause

__all__ = ["KINDS", "LONG_FLIGHTS", "RepairCounter", "why_not_expected"]

LONG_FLIGHTS = ("BulkUser", "WriterUser")
KINDS: dict[str, str] = {
    TraceCause.RETRANSMIT_REORDERED: "fast retransmit",
    TraceCause.PTO_PROBE: "tail probe",
    TraceCause.RETRANSMIT_TIMEOUT: "timeout",
    TraceCause.DROPPED_BY_RELAY: "drop reported by the relay",
    TraceCause.BATCH_GIVEN_UP: "batch given up",
    TraceCause.ROUTE_RESUMED: "route resumed",
}
"""Every cause for which a lost packet is sent again, with its name for people."""
_NEVER: dict[str, str] = {
    TraceCause.DROPPED_BY_RELAY: "senders stay within the edges of the relay, so that no mailbox overflows",
    TraceCause.BATCH_GIVEN_UP: "the fault proxy loses single exchanges, and each is repeated in time",
    TraceCause.ROUTE_RESUMED: "the relay runs all the time",
}
_LOSSY_S = 2.0  # loss multiplied by seconds; with less, even a common repair may not occur
_MUCH = 0.1  # a timeout needs a packet and its tail probe to be lost


class RepairCounter:
    """Sums the retransmissions of all connections, also of those that have ended.

    What a connection repaired after the last look at it is not seen: less than a second of its life.
    """

    def __init__(self) -> None:
        self._total: Counter[str] = Counter()
        self._known: dict[int, dict[str, int]] = {}

    def look(self, connections: Mapping[int, ConnectionStats]) -> dict[str, int]:
        """Take the counters of all open connections; return the total since the beginning."""
        for number, one in connections.items():
            before = self._known.get(number, {})
            for cause, count in one.resent_by_cause.items():
                self._total[cause] += count - before.get(cause, 0)
        self._known = {number: dict(one.resent_by_cause) for number, one in connections.items()}
        return dict(self._total)


def why_not_expected(cause: str, plan: Plan, users: Sequence[str]) -> str:
    """Return why a run need not show this kind of repair; empty if it must."""
    if cause in _NEVER:
        return _NEVER[cause]
    shares = [(parse_model(loss).share, seconds) for loss, seconds in plan.losses]
    lossy_s = sum(share * seconds for share, seconds in shares)
    if lossy_s < _LOSSY_S:
        return "too few packets are lost" if lossy_s else "no packet is lost"
    if cause == TraceCause.RETRANSMIT_TIMEOUT and max(share for share, _ in shares) < _MUCH:
        return f"no loss is {_MUCH:.0%} or more, so that a tail probe repairs nearly everything"
    if cause == TraceCause.RETRANSMIT_REORDERED and not set(users) & set(LONG_FLIGHTS):
        return f"only {' and '.join(LONG_FLIGHTS)} have many packets in flight, and neither took part"
    return ""
