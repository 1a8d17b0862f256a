"""The figures that the page shows first, as numbers: None where the trace does not tell."""

from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import life_us

__all__ = ["efficiency", "goodput", "loss", "needless", "repeats", "round_trip", "stalled"]


def goodput(of: Analysis) -> float | None:
    """Return the payload that arrived, in bytes per second of the time in which a sender was busy.

    If the trace has no sender, the time is that of the whole trace.
    """
    return _ratio(of.totals["payload_bytes"] * 1e6, of.totals["busy_us"] or of.end_us - of.begin_us)


def efficiency(of: Analysis) -> float | None:
    """Return the bytes of packets that arrived, each counted once, as a share of all bytes sent."""
    return _ratio(of.totals["useful_bytes"], of.totals["known_bytes"])


def repeats(of: Analysis) -> float | None:
    """Return the share of transmissions that were not the first of their packet."""
    packets = of.totals["packets"]
    return _ratio(packets - of.totals["unique_packets"], packets)


def needless(of: Analysis) -> float | None:
    """Return the share of repeats whose packet arrived by an earlier attempt."""
    if not of.totals["both_ends"]:
        return None
    return _ratio(of.totals["needless"], of.totals["judged_repeats"]) or 0.0


def loss(of: Analysis) -> float | None:
    """Return the share of transmissions that did not arrive, of those whose fate is known."""
    return _ratio(of.totals["lost"], of.totals["judged"])


def round_trip(of: Analysis, place: int = 0) -> float | None:
    """Return the round trip in microseconds: the median, or the percentile at another place (1: 95 %, 2: 99 %)."""
    quantiles: list[float] | None = of.trips.get("us")
    return quantiles[place] if quantiles else None


def stalled(of: Analysis) -> float | None:
    """Return the share of the life of all streams in which their senders were stalled."""
    return _ratio(sum(row["us"] for row in of.stalls), life_us(of))


def _ratio(part: float | None, whole: float | None) -> float | None:
    return (part or 0) / whole if whole else None
