"""Bounds on the figures of a report, as a check in CI states them: `loss > 1%`."""

import operator
import re
from collections.abc import Callable
from typing import NamedTuple

from tunnel.analysis.results import measures
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.words import bits, duration, percent

__all__ = ["FIGURES", "Bound", "bound_of", "failures"]

_SHARES = {"%": 0.01}
_TIMES = {"us": 1.0, "ms": 1e3, "s": 1e6}
_RATES = {"bit/s": 1 / 8, "kbit/s": 1e3 / 8, "mbit/s": 1e6 / 8, "gbit/s": 1e9 / 8}
_COMPARED = {">": operator.gt, ">=": operator.ge, "<": operator.lt, "<=": operator.le}
_BOUND = re.compile(r"\s*([a-z_0-9]+)\s*([<>]=?)\s*(\d+(?:\.\d+)?)\s*([a-z/%]*)\s*", re.IGNORECASE)


class _Figure(NamedTuple):
    value: Callable[[Analysis], float | None]
    units: dict[str, float]
    text: Callable[[float | None], str]


FIGURES = {
    "loss": _Figure(measures.loss, _SHARES, percent),
    "repeats": _Figure(measures.repeats, _SHARES, percent),
    "needless": _Figure(measures.needless, _SHARES, percent),
    "stalled": _Figure(measures.stalled, _SHARES, percent),
    "efficiency": _Figure(measures.efficiency, _SHARES, percent),
    "round_trip": _Figure(measures.round_trip, _TIMES, duration),
    "round_trip_p99": _Figure(lambda of: measures.round_trip(of, 2), _TIMES, duration),
    "goodput": _Figure(measures.goodput, _RATES, bits),
}
"""The figures that can be bounded, each with its units."""


class Bound(NamedTuple):
    """A bound that a report fails if the comparison holds."""

    text: str
    figure: str
    fails: Callable[[float, float], bool]
    limit: float


def bound_of(text: str) -> Bound:
    """Read a bound. Raise ValueError, whose text says what is wrong, if it is none."""
    found = _BOUND.fullmatch(text)
    if found is None or found[1].lower() not in FIGURES:
        raise ValueError(f"{text!r} is no bound: write FIGURE > NUMBER UNIT, as in 'loss > 1%', with >, >=, < or <=; "
                         f"the figures are {', '.join(FIGURES)}")  # fmt: skip
    name, unit = found[1].lower(), found[4].lower()
    units = FIGURES[name].units
    if unit not in units:
        has = f"the unit {found[4]}" if unit else "no unit"
        raise ValueError(f"{text!r} has {has}: {name} is given in {', '.join(units)}")
    return Bound(" ".join(text.split()), name, _COMPARED[found[2]], float(found[3]) * units[unit])


def failures(of: Analysis, bounds: list[Bound]) -> list[str]:
    """Return a sentence for each bound that the report fails. A figure that the trace does not tell fails, too."""
    found = []
    for bound in bounds:
        figure = FIGURES[bound.figure]
        value = figure.value(of) if of.totals.get("streams") else None
        if value is None:
            unknown = f"{bound.figure} is unknown, so it may be that {bound.text}"
            found.append(f"{unknown}: trace packets, at both ends, and for longer")
        elif bound.fails(value, bound.limit):
            found.append(f"{bound.figure} is {figure.text(value)}, so the bound {bound.text} is exceeded")
    return found
