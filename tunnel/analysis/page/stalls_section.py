"""The report's sections about what limited the senders, and about stalls: how long they were stalled, and why."""

from collections.abc import Mapping
from typing import Any

from tunnel.analysis.page.pieces import Column, Section, figure, meanings_of, table
from tunnel.analysis.page.svg import bars
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames, life_us
from tunnel.analysis.verdicts.families import FAMILIES
from tunnel.analysis.words import CAUSES, STALLS, count, duration, percent

__all__ = ["limits", "stalls"]


def limits(of: Analysis) -> Section | None:
    """Return the section about what kept senders from sending more, or None if no sender was traced."""
    found, whole_us = blames(of), life_us(of)
    if not found:
        return None
    rest_us = whole_us - sum(one.us for one in found)
    marks = [(FAMILIES[one.family].title, float(one.us), percent(one.us / whole_us)) for one in found]
    causes = table(
        "What limited the senders.",
        [
            Column("cause", lambda row: FAMILIES[row["family"]].title, is_number=False),
            Column("time", lambda row: duration(row["us"]), "of all senders together"),
            Column("share", lambda row: percent(row["us"] / whole_us), "of the time for which streams lived"),
            Column("stalled", lambda row: duration(row["stalled_us"]), "the part of it in stalls"),
        ],
        [one._asdict() for one in found],
    )
    families = [FAMILIES[one.family] for one in found]
    meanings = meanings_of((family.title, f"{family.meaning}. {family.advice}.") for family in families)
    rest = (
        f"<p>Streams lived for {duration(whole_us)}; {percent(rest_us / whole_us)} of this time has no cause: they had "
        "nothing to send, and nothing waited to be read.</p>"
    )
    what = "What kept senders from sending more, stalled or not. Each moment of a stream belongs to one cause at most."
    picture = figure(bars(marks, tone=1, title="limits"), "Time by cause.")
    return Section("limits", "Limits", what, picture + rest + causes + meanings)


def stalls(of: Analysis) -> Section | None:
    """Return the section, or None if no sender was stalled."""
    if not of.stalls:
        return None
    marks = [
        (STALLS.get(row["why"], (row["why"],))[0], float(row["us"]), f"{duration(row['us'])} in {count(row['stalls'])}")
        for row in of.stalls
    ]
    causes = table(
        "Stalls by cause.",
        [
            Column("cause", lambda row: STALLS.get(row["why"], (row["why"],))[0], is_number=False),
            Column("stalls", lambda row: count(row["stalls"])),
            Column("total", lambda row: duration(row["us"])),
            Column("median", lambda row: duration(row["us_p50"])),
            Column("99 %", lambda row: duration(row["us_p99"])),
            Column("longest", lambda row: duration(row["us_max"])),
            Column("streams", lambda row: count(row["streams"])),
        ],
        of.stalls,
    )
    meanings = meanings_of(STALLS[row["why"]] for row in of.stalls if row["why"] in STALLS)
    longest = table(
        "The longest stalls.",
        [
            Column("at", lambda row: duration(row["start_us"] - of.begin_us), "since the trace began"),
            Column("for", lambda row: duration(row["gap_us"])),
            Column("node", lambda row: row["node"], is_number=False),
            Column("stream", lambda row: f"{row['stream']:08x}", is_number=False),
            Column("cause", lambda row: STALLS.get(row["why"], (row["why"],))[0], is_number=False),
            Column("ended by", lambda row: _ended(row), is_number=False),
        ],
        of.longest_stalls[:15],
    )
    what = (
        "In a stall, a sender that had work to do was silent for longer than the timeout, or than two round trips and "
        "the delay of acknowledgements. "
        "Each stall is assigned one cause, the first that fits; docs/ANALYSIS.md lists the causes in order."
    )
    picture = figure(bars(marks, tone=2, title="stalls"), "Time lost in stalls, by cause.")
    return Section("stalls", "Stalls", what, picture + causes + meanings + longest)


def _ended(row: Mapping[str, Any]) -> str:
    if row["is_open"]:
        return "the end of the trace"
    if not row["attempt"]:
        return "progress"
    return f"repeat: {CAUSES.get(row['cause'], (row['cause'],))[0]}" if row["cause"] else "repeat"
