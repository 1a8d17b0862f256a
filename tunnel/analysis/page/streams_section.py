"""The report's section about single streams: a table of the worst, with time–sequence graphs."""

from collections.abc import Mapping
from html import escape
from typing import Any

from tunnel.analysis.page.pieces import Column, Section, figure, table
from tunnel.analysis.page.svg import Axis, Series, plot
from tunnel.analysis.results.result import ACKED, RECEIVED, SENT, Analysis
from tunnel.analysis.words import STALLS, bits, count, duration, percent, size

__all__ = ["worst_streams"]

_LISTED, _DRAWN = 20, 6  # the section about connections has more
_FEW = 2  # packets of a stream that gets a sentence instead of a graph
_HALF, _ROUND = 1 << 31, 1 << 32


def worst_streams(of: Analysis) -> Section | None:
    """Return the section about the streams that lost the most time, or None if there are no streams."""
    if not of.worst:
        return None
    columns = [
        Column("stream", lambda row: f"{row['stream']:08x}", "the sender's id of the connection", is_number=False),
        Column("from", lambda row: row["sender"] or "–", is_number=False),
        Column("to", lambda row: row["receiver"] or "–", is_number=False),
        Column("bytes", lambda row: size(row["unique_bytes"])),
        Column("goodput", lambda row: _rate(row), "payload that arrived, over the life of the stream"),
        Column("repeats", lambda row: percent(_share(row))),
        Column("traced", lambda row: _ends(row), "at which ends", is_number=False),
        Column("lost", lambda row: count(row["lost"] if row["judged"] else None)),
        Column("round trip", lambda row: duration(row["trip_us_p50"]), "median"),
        Column("99 %", lambda row: duration(row["trip_us_p99"])),
        Column("backoff", lambda row: count(row["backoff_max"]), "how often the timeout had doubled at most"),
        Column("stalled", lambda row: duration(row["stalled_us"] or 0)),
        Column("main cause", lambda row: STALLS.get(row["stalled_by"] or "", ("–",))[0], is_number=False),
    ]
    worst = of.worst[:_LISTED]
    graphs = "".join(_graph(of, row) for row in of.worst[:_DRAWN] if str(row["stream"]) in of.points)
    what = (
        "The streams that were stalled for longest, or lost most. "
        "In the graphs, a point is a packet; a flat stretch means no progress."
    )
    body = table("The worst streams.", columns, worst) + f'<div class="pair">{graphs}</div>'
    return Section("streams", "The worst streams", what, body)


def _rate(row: Mapping[str, Any]) -> str:
    span_us = row["duration_us"] or row["receiving_us"]
    return bits(row["payload_bytes"] * 1e6 / span_us) if span_us else "–"


def _ends(row: Mapping[str, Any]) -> str:
    if row["both_ends"] is None:
        return "unknown"
    if row["both_ends"]:
        return "both"
    return "sender" if row["packets"] else "receiver"


def _share(row: Mapping[str, Any]) -> float:
    return (row["packets"] - row["unique_packets"]) / row["packets"] if row["packets"] else 0.0


def _sentence(stream: Mapping[str, Any]) -> str:
    """Return the life of a stream of one or two packets, of which a graph would show a few points."""
    packets, repeats = stream["unique_packets"], stream["packets"] - stream["unique_packets"]
    text = "one packet" if packets == 1 else f"{packets} packets"
    if repeats:
        text += f", {count(repeats)} repeats" if packets > 1 else f", sent {count(stream['packets'])} times"
    if stream["trip_us_p50"] is not None:
        text += f", acknowledged after {duration(stream['trip_us_p50'])}"
    ends = f"{stream['sender'] or '–'} to {stream['receiver'] or '–'}"
    return f"{stream['stream']:08x}, {ends}: {text}; {size(stream['unique_bytes'])}."


def _graph(of: Analysis, stream: dict[str, Any]) -> str:
    points = of.points[str(stream["stream"])]
    sent = [point for point in points if point["kind"] == SENT]
    if not sent:
        return ""
    if (stream["unique_packets"] or 0) <= _FEW:
        return f"<p>{escape(_sentence(stream))}</p>"
    first = min(sent, key=lambda point: (point["t"], point["sequence"]))
    begin_us, base = first["t"], first["sequence"]

    def places(kind: int, repeats: bool | None = None) -> list[tuple[float, float]]:
        return [
            ((point["t"] - begin_us) / 1e6, float((point["sequence"] - base + _HALF) % _ROUND - _HALF))
            for point in sorted(points, key=lambda point: (point["t"], point["sequence"]))
            if point["kind"] == kind
            and (repeats is None or (point["attempt"] > 0) == repeats)
            and (kind != ACKED or point["t"] >= begin_us)  # earlier ones are of the answer to CONNECT
        ]

    series = [
        Series("acknowledged", places(ACKED), 6, steps=True),
        Series("sent", places(SENT, repeats=False), 1, dots=True),
        Series("received", places(RECEIVED), 3, dots=True),
        Series("sent again", places(SENT, repeats=True), 2, dots=True),
    ]
    picture = plot(series, Axis("seconds", lambda v: f"{v:g}"), Axis("packet", lambda v: f"{v:g}"), y_from_0=False)
    ends = f"{stream['stream']:08x}, {stream['sender'] or '–'} to {stream['receiver'] or '–'}"
    why = STALLS.get(stream["stalled_by"] or "", ("unknown",))[0]
    stalled = f"stalled for {duration(stream['stalled_us'])}; main cause: {why}" if stream["stalled_us"] else "no stall"
    return figure(picture, f"{ends}: {stalled}.")
