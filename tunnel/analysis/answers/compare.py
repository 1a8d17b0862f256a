"""What changed between two traces, and how sure that is: the commands' figures side by side.

Shares are compared as counts of packets, of which neighbours have the same fate more often than by chance; so they
count for less than their number (the Gilbert model tells how much). Times and rates are compared as medians of
intervals, because single samples of one moment depend on each other.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from statistics import NormalDist, median
from typing import NamedTuple

from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames, life_us
from tunnel.analysis.verdicts.families import FAMILIES
from tunnel.analysis.words import bits, duration, percent

__all__ = ["Change", "changes", "sentence_of"]

_SURE, _LIKELY = 0.001, 0.05  # a difference that chance alone makes less often is certain, or likely
_INTERVALS_MIN = 5
_EXPECTED_MIN = 5.0  # events that a share must lead one to expect, for the normal approximation


class Change(NamedTuple):
    """A figure of both traces."""

    name: str
    before: str
    after: str
    confidence: str
    """certain, likely, not proven, or why nothing can be said."""
    is_more: bool | None
    """None if the figures are equal, or one is unknown."""


def changes(before: Analysis, after: Analysis) -> list[Change]:
    """Return the figures of two traces, one row for each."""
    rows = [_shares(name, part, whole, before, after) for name, part, whole in _SHARES]
    rows.append(_intervals("round trip", duration, *(_trips(of) for of in (before, after))))
    rows.append(_intervals("received per second", bits, *(_rates(of) for of in (before, after))))
    for family in _families(before, after):
        values = [_share_of(of, family) for of in (before, after)]
        is_more = None if values[0] == values[1] else values[1] > values[0]
        texts = [percent(value, 0) for value in values]
        rows.append(Change(f"time: {FAMILIES[family].title}", texts[0], texts[1], "one run each", is_more))
    return rows


def sentence_of(before: Analysis, after: Analysis) -> str:
    """Return what limited goodput in both traces."""
    first, second = (next((FAMILIES[one.family].title for one in blames(of)), "") for of in (before, after))
    if not first or not second:
        which = (
            "Neither trace tells" if first == second else f"The {'second' if first else 'first'} trace does not tell"
        )
        return f"{which} what limited goodput."
    return (
        f"Both were limited by: {first}." if first == second else f"The main limit was: {first}. Now it is: {second}."
    )


_SHARES = (
    ("loss", "lost", "judged"),
    ("repeats", "", "packets"),
    ("needless repeats", "needless", "judged_repeats"),
)


def _counts(of: Analysis, part: str, whole: str) -> tuple[int, int]:
    if not of.totals.get("streams"):
        return 0, 0
    found = of.totals[part] if part else of.totals["packets"] - of.totals["unique_packets"]
    return found or 0, of.totals[whole] or 0


def _shares(name: str, part: str, whole: str, before: Analysis, after: Analysis) -> Change:
    counts = [_counts(of, part, whole) for of in (before, after)]
    values = [found / total if total else None for found, total in counts]
    texts = [percent(value, 2) for value in values]
    if values[0] is None or values[1] is None:
        return Change(name, texts[0], texts[1], "unknown", None)
    # neighbours with the same fate make a sample worth less: by (1 + r) / (1 - r), if r is their correlation
    worth = [total / _inflation(of) for (_, total), of in zip(counts, (before, after), strict=True)]
    both = sum(value * size for value, size in zip(values, worth, strict=True) if value is not None) / sum(worth)
    confidence = "too few to tell"
    if min(worth) * both >= _EXPECTED_MIN and both < 1:
        error = math.sqrt(both * (1 - both) * (1 / worth[0] + 1 / worth[1]))
        confidence = _confidence((values[1] - values[0]) / error)
    elif values[0] == values[1]:
        confidence = "not proven"
    return Change(name, texts[0], texts[1], confidence, None if values[0] == values[1] else values[1] > values[0])


def _inflation(of: Analysis) -> float:
    p: float | None = of.gilbert.get("p")
    r: float | None = of.gilbert.get("r")
    if not p or not r:
        return 1.0
    return max(1.0, (2 - p - r) / (p + r))


def _intervals(name: str, words: Callable[[float], str], before: Sequence[float], after: Sequence[float]) -> Change:
    texts = [words(median(values)) if values else "–" for values in (before, after)]
    if not before or not after:
        return Change(name, texts[0], texts[1], "unknown", None)
    difference = median(after) - median(before)
    confidence = "too few to tell"
    if min(len(before), len(after)) >= _INTERVALS_MIN:
        confidence = _confidence(_ranked(before, after))
    return Change(name, texts[0], texts[1], confidence, None if not difference else difference > 0)


def _ranked(before: Sequence[float], after: Sequence[float]) -> float:
    """Return by how many standard deviations the ranks differ (Mann and Whitney, with ties)."""
    one, two = len(before), len(after)
    counts = Counter([*before, *after])
    ranks, below = {}, 0
    for value in sorted(counts):
        ranks[value] = below + (counts[value] + 1) / 2
        below += counts[value]
    total = one + two
    score = sum(ranks[value] for value in after) - two * (two + 1) / 2
    ties = sum(count**3 - count for count in counts.values())
    spread = one * two / 12 * (total + 1 - ties / (total * (total - 1)))
    return (score - one * two / 2) / math.sqrt(spread) if spread > 0 else 0.0


def _confidence(deviations: float) -> str:
    chance = 2 * (1 - NormalDist().cdf(abs(deviations)))
    return "certain" if chance < _SURE else "likely" if chance < _LIKELY else "not proven"


def _trips(of: Analysis) -> list[float]:
    return [row["trip_us_p50"] for row in of.trips_over_time if row["trip_us_p50"] is not None]


def _rates(of: Analysis) -> list[float]:
    return [row["received_bytes"] * 1e6 / of.bucket_us for row in of.goodput if row["sent_bytes"]]


def _families(before: Analysis, after: Analysis) -> list[str]:
    found = {one.family for of in (before, after) for one in blames(of)[:3]}
    return sorted(found, key=lambda family: (-max(_share_of(of, family) for of in (before, after)), family))


def _share_of(of: Analysis, family: str) -> float:
    whole_us = life_us(of)
    return sum(one.us for one in blames(of) if one.family == family) / whole_us if whole_us else 0.0
