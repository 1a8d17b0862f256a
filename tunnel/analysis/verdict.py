"""What all the numbers mean, in a few sentences: what limited goodput, and which cause comes first."""

from tunnel.analysis.analyse import Analysis
from tunnel.analysis.words import CAUSES, STALLS, count, duration, percent, size

__all__ = ["verdict"]

_SHARE_OF_NOTE = 0.05  # of the time in which there was something to send
_RATE_OF_NOTE = 0.001


def verdict(of: Analysis) -> list[str]:
    """Sentences for a person, the most important first."""
    if not of.totals or not of.totals.get("streams"):
        return ["The trace holds no packets: record one with --trace-level packet, or for longer.", *_trace(of)]
    return [_limit(of), *_loss(of), *_repeats(of), *_trace(of)]


def _limit(of: Analysis) -> str:
    busy_us = of.totals["duration_us"] or 0
    stalled_us = sum(row["us"] for row in of.stalls)
    if not busy_us or stalled_us < _SHARE_OF_NOTE * busy_us:
        share = percent(stalled_us / busy_us if busy_us else 0.0)
        return (
            f"Nothing held the streams up for long: senders were stalled for {share} of their time. What limited "
            "goodput is what applications wrote, and the rate of the path."
        )
    first = of.stalls[0]
    name, meaning = STALLS.get(first["why"], (first["why"], ""))
    text = (
        f"Goodput was limited first by: {name} ({meaning}). It made up {percent(first['us'] / stalled_us, 0)} of all "
        f"stalls, {duration(first['us'])} in {count(first['stalls'])} silences on {count(first['streams'])} streams; "
        f"senders were stalled for {percent(stalled_us / busy_us, 0)} of their time in all."
    )
    if len(of.stalls) > 1:
        second = of.stalls[1]
        text += f" Next comes: {STALLS.get(second['why'], (second['why'],))[0]}, {duration(second['us'])}."
    return text


def _loss(of: Analysis) -> list[str]:
    totals, fit = of.totals, of.gilbert
    if not totals["both_ends"]:
        return ["Only one end of the streams was traced: what was lost and what was needless cannot be told apart."]
    if not totals["lost"]:
        return ["No packet that was sent failed to arrive."]
    rate = totals["lost"] / totals["packets"]
    text = f"{count(totals['lost'])} of {count(totals['packets'])} transmissions were lost ({percent(rate, 2)})"
    if fit.get("mean_burst"):
        kind = "in bursts" if fit["burst_ratio"] and fit["burst_ratio"] > 1.5 else "one by one"
        text += f", {kind}: {fit['mean_burst']:.2g} packets at a time on average"
    if of.loss_stages:
        text += f". Most were lost here: {of.loss_stages[0]['stage']}"
    never = totals["never_arrived"]
    ending = f"; {count(never)} never arrived at all, not even later." if never else "; all of them arrived in the end."
    return [text + ending]


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
        text += f"; most of them because of: {CAUSES.get(top, (top,))[0]}"
    if totals["needless"]:
        text += f". {count(totals['needless'])} of the repeats were needless: the packet had arrived before"
    return [text + "."]


def _trace(of: Analysis) -> list[str]:
    missing = sum(row["missing"] for row in of.writers)
    sentences = []
    if missing:
        sentences.append(
            f"{count(missing)} records are missing from the trace itself; where they would have been packets look "
            "lost that were not."
        )
    if of.problems:
        names = sorted({row["file"] for row in of.problems})
        which = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        sentences.append(f"Something is wrong with {count(len(names))} of the files ({which}): see below.")
    return sentences
