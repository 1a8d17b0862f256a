"""The verdict: a few sentences that say what limited goodput, and what the main causes were."""

from typing import Any

from tunnel.analysis.analyse import Analysis
from tunnel.analysis.words import CAUSES, STALLS, count, duration, percent, size

__all__ = ["unknowns", "verdict"]

_SHARE_OF_NOTE = 0.05  # of the total time of all streams
_RATE_OF_NOTE = 0.001


def verdict(of: Analysis) -> list[str]:
    """Return sentences for the reader of the report, the most important first."""
    if not of.totals or not of.totals.get("streams"):
        return ["The trace has no packets: record with --trace-level packet, or for longer.", *_trace(of)]
    return [_limit(of), *_loss(of), *_repeats(of), *_trace(of)]


def _limit(of: Analysis) -> str:
    busy_us = of.totals["duration_us"] or 0
    if not of.totals["packets"]:
        return "The senders of the streams were not traced, so the trace does not tell what limited goodput."
    stalled_us = sum(row["us"] for row in of.stalls)
    if not busy_us or stalled_us < _SHARE_OF_NOTE * busy_us:
        share = percent(stalled_us / busy_us if busy_us else 0.0)
        return (
            f"Stalls did not limit goodput: senders were stalled for only {share} of their time. Goodput was limited "
            "by how much the applications wrote, and by the rate of the path."
        )
    first = of.stalls[0]
    name, meaning = STALLS.get(first["why"], (first["why"], ""))
    text = (
        f"The main limit of goodput was: {name} ({meaning}). It caused {percent(first['us'] / stalled_us, 0)} of all "
        f"stalled time: {duration(first['us'])} (stalls: {count(first['stalls'])}, streams: "
        f"{count(first['streams'])}). In total, senders were stalled for "
        f"{percent(stalled_us / busy_us, 0)} of their time."
    )
    if len(of.stalls) > 1:
        second = of.stalls[1]
        text += f" The second cause was: {STALLS.get(second['why'], (second['why'],))[0]}, {duration(second['us'])}."
    return text


def unknowns(totals: dict[str, Any]) -> list[str]:
    """Return sentences about that of which the trace does not tell whether it arrived."""
    both, streams = totals["both_ends"], totals["streams"]
    sentences = []
    if not both:
        sentences.append(
            "No stream was traced at both ends, so the trace does not tell which transmissions were lost, and which "
            "repeats were needless. To know that, trace both ends."
        )
    elif both < streams:
        sentences.append(
            f"Only {count(both)} of {count(streams)} streams were traced at both ends. Losses of the other streams "
            "are unknown, and are not counted."
        )
    if totals["in_doubt"]:
        sentences.append(
            f"Packets of which it is unknown whether they were lost, because records of their receiver are missing: "
            f"{count(totals['in_doubt'])}."
        )
    return sentences


def _loss(of: Analysis) -> list[str]:
    totals, fit = of.totals, of.gilbert
    unknown = unknowns(totals)
    if not totals["judged"]:
        return unknown
    if not totals["lost"]:
        return ["No transmission was lost." if not unknown else "No loss is known.", *unknown]
    rate = totals["lost"] / totals["judged"]
    text = f"{count(totals['lost'])} of {count(totals['judged'])} transmissions were lost ({percent(rate, 2)})"
    if fit.get("mean_burst"):
        kind = "in bursts" if fit["burst_ratio"] and fit["burst_ratio"] > 1.5 else "one by one"
        text += f", {kind}: {fit['mean_burst']:.2g} packets at a time on average"
    if of.loss_stages:
        text += f". Most were lost here: {of.loss_stages[0]['stage']}"
    never = totals["never_arrived"]
    if never:
        text += f". Packets that never arrived, not even by a later attempt: {count(never)}."
    elif unknown or totals["open_packets"]:
        text += ". No packet is known that did not arrive in the end, by another attempt."
    else:
        text += ". Every packet arrived in the end, by another attempt."
    return [text, *unknown]


def _repeats(of: Analysis) -> list[str]:
    totals = of.totals
    resent = totals["packets"] - totals["unique_packets"]
    if resent <= _RATE_OF_NOTE * totals["packets"]:
        return []
    causes: dict[str, int] = {}
    for row in of.retransmissions:
        if row["cause"]:
            causes[row["cause"]] = causes.get(row["cause"], 0) + row["packets"]
    text = f"{percent(resent / totals['packets'])} of all transmissions were repeats, {size(totals['resent_bytes'])}"
    if causes:
        top = max(causes, key=lambda cause: (causes[cause], cause))
        text += f"; the most frequent cause was: {CAUSES.get(top, (top,))[0]}"
    if totals["needless"]:
        text += f". {count(totals['needless'])} of the repeats were needless: an earlier attempt arrived"
    return [text + "."]


def _trace(of: Analysis) -> list[str]:
    missing = sum(row["missing"] for row in of.writers)
    sentences = []
    if missing:
        sentences.append(
            f"Records missing from the trace itself: {count(missing)}. What happened meanwhile is unknown, and is "
            "counted neither as a loss nor as a stall."
        )
    if of.problems:
        names = sorted({row["file"] for row in of.problems})
        which = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        sentences.append(f"Files with problems: {count(len(names))} ({which}). See 'The trace itself' in the report.")
    return sentences
