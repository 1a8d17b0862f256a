"""The report's section in which a connection is chosen from a table, and drawn. Without the script it is a table."""

from functools import cache
from importlib.resources import files

from tunnel.analysis.page.data import as_script, streams_of
from tunnel.analysis.page.pieces import Column, Section, table
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.words import count, duration, size

__all__ = ["connections"]

_FILTERS = (("relay", "relay"), ("node", "node"), ("user", "user"))


def connections(of: Analysis) -> Section | None:
    """Return the section, or None if there are no streams."""
    if not of.worst:
        return None
    streams = streams_of(of)
    columns = [
        Column("stream", lambda row: row["id"], "the sender's id of the connection; choose one", is_number=False),
        Column("from", lambda row: row["from"] or "–", is_number=False),
        Column("to", lambda row: row["to"] or "–", is_number=False),
        Column("relay", lambda row: ", ".join(row["relays"]) or "–", "as the ends call it; all if it moved", False),
        Column("user", lambda row: row["user"] or "–", is_number=False),
        Column("begins", lambda row: duration(_us(row["begin"])), "since the trace began"),
        Column("bytes", lambda row: size(row["bytes"])),
        Column("lost", lambda row: count(row["lost"])),
        Column("stalled", lambda row: duration(row["stalled"])),
    ]
    choices = "".join(
        f'<label>{name} <select data-filter="{key}"><option value="">all</option></select></label>'
        for key, name in _FILTERS
    )
    filters = (
        f'<form class="filters" hidden>{choices}'
        '<label>connection <input data-filter="id" size="9" placeholder="id"></label>'
        '<label>from <input data-filter="since" size="5" inputmode="decimal" placeholder="s"></label>'
        '<label>to <input data-filter="until" size="5" inputmode="decimal" placeholder="s"></label></form>'
    )
    drawing = (
        '<div class="drawing" hidden><h3></h3><p class="legend"></p><canvas role="img"></canvas>'
        '<p class="hint">Drag over a time to enlarge it. <button type="button">Whole connection</button></p></div>'
    )
    what = (
        f"The {count(len(streams))} streams that were stalled for longest or lost most, of "
        f"{count(of.totals['streams'])}. A stream is one direction of a connection."
    )
    listed = table("Streams.", columns, streams).replace("<table>", '<table class="streams">')
    body = (
        f'{filters}{listed}{drawing}<script type="application/json" id="drawn-streams">{as_script(streams)}</script>'
        f"<script>{_script()}</script>"
    )
    return Section("connections", "Connections", what, body)


def _us(seconds: float | None) -> float | None:
    return None if seconds is None else seconds * 1e6


@cache
def _script() -> str:
    return (files("tunnel.analysis") / "page" / "draw.js").read_text(encoding="utf-8")
