"""The key figures, which the report shows first. A figure that the trace does not tell is shown as a dash."""

from tunnel.analysis.results import measures
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.words import bits, count, duration, percent

__all__ = ["key_figures"]

Figure = tuple[str, str, str]


def key_figures(of: Analysis) -> list[Figure]:
    """Return the name, the value and the meaning of each key figure."""
    if not of.totals or not of.totals.get("streams"):
        return [("Events", count(sum(row["events"] for row in of.files)), "records that could be read")]
    return [*_rates(of), *_repeats(of), *_times(of), *_streams(of)]


def _rates(of: Analysis) -> list[Figure]:
    totals = of.totals
    span_us, busy_us = of.end_us - of.begin_us, totals["busy_us"]
    payload = totals["payload_bytes"]
    whole = bits(payload * 1e6 / span_us if span_us else None)
    return [
        (
            "Goodput",
            bits(measures.goodput(of)),
            "payload that arrived, each byte once, over "
            + (
                f"the {duration(busy_us)} in which a sender had bytes in flight or waiting; over the whole trace: "
                f"{whole}"
                if busy_us
                else "the time of the whole trace, because the trace has no sender"
            ),
        ),
        (
            "Efficiency",
            percent(measures.efficiency(of), 2),
            "bytes of packets that arrived, each counted once, as a share of all bytes sent, including repeats",
        ),
    ]


def _repeats(of: Analysis) -> list[Figure]:
    fit = of.gilbert
    return [
        (
            "Repeats",
            percent(measures.repeats(of), 2),
            "transmissions that were not the first of their packet",
        ),
        (
            "Needless repeats",
            percent(measures.needless(of)),
            "share of the repeats whose packet arrived by an earlier attempt, as the receiver's trace proves",
        ),
        (
            "Loss",
            percent(measures.loss(of), 2),
            "transmissions that did not arrive at the other end, as far as the trace tells",
        ),
        (
            "Burst of losses",
            f"{fit['mean_burst']:.2f} packets" if fit.get("mean_burst") else "–",
            "mean length (1 / r of the Gilbert model); close to 1 if losses are independent and rare",
        ),
    ]


def _times(of: Analysis) -> list[Figure]:
    trips, receipts = (found.get("us") or [None, None, None] for found in (of.trips, of.receipts))
    return [
        (
            "Round trip",
            duration(trips[0]),
            f"from sending to acknowledgement: the median{_below(trips[2])}",
        ),
        (
            "Receipt to acknowledgement",
            duration(receipts[0]),
            f"the part of a round trip that sets the timeout: the median{_below(receipts[2])}",
        ),
        ("Jitter", duration(of.trips.get("jitter_us")), "mean difference between one round trip and the next"),
        (
            "Stalled",
            percent(measures.stalled(of)),
            "share of the life of all streams in which their senders were silent although they had work to do",
        ),
    ]


def _below(us: float | None) -> str:
    """Return what 99 % are below; of fewer than 100 samples, nothing."""
    return "" if us is None else f"; 99 % are below {duration(us)}"


def _streams(of: Analysis) -> list[Figure]:
    totals = of.totals
    parts = [f"{totals['both_ends']} of them traced at both ends"]
    if totals["one_end"]:
        parts.append(f"{totals['one_end']} at one end")
    if totals["unknown_ends"]:
        parts.append(f"for {totals['unknown_ends']} it is unknown")
    return [("Streams", count(totals["streams"]), f"directions of connections; {', '.join(parts)}")]
