"""The connections of the report as data that the page's own script draws: bounded, and safe within HTML."""

import json
from typing import Any

from tunnel.analysis.results.result import ACKED, RECEIVED, SACKED, SENT, Analysis, Rows
from tunnel.analysis.words import STALLS

__all__ = ["POINTS_MAX", "as_script", "streams_of"]

POINTS_MAX = 150_000
"""Points in a page, of all streams together: about 2 MB. Streams beyond it are listed, but cannot be drawn."""

_HALF, _ROUND = 1 << 31, 1 << 32
_UNSAFE = {ord(letter): f"\\u{ord(letter):04x}" for letter in "<>&\u2028\u2029"}  # what could end the script element


def as_script(value: object) -> str:
    """Return JSON for a script element. No text in it can end the element or begin another one."""
    return json.dumps(value, separators=(",", ":")).translate(_UNSAFE)


def streams_of(of: Analysis) -> list[dict[str, Any]]:
    """Return the listed streams, each with what the filters need and, if there is room, with its points."""
    found, room = [], POINTS_MAX
    for row in of.worst:
        points = of.points.get(str(row["stream"]), [])
        stream = _stream(of, row)
        if points and len(points) <= room:
            room -= len(points)
            stream["points"] = _places(points)
            first_us = _first(points)["t"]
            ends = (row["stream"], row["other"])
            stream["moves"] = [move["t"] - first_us for move in of.moves if move["id"] in ends]
        found.append(stream)
    return found


def _stream(of: Analysis, row: dict[str, Any]) -> dict[str, Any]:
    begin_us = row["begin_us"]
    return {
        "id": f"{row['stream']:08x}",
        "other": f"{row['other']:08x}",
        "from": row["sender"] or "",
        "to": row["receiver"] or "",
        "nodes": row.get("nodes") or [],
        "relays": row.get("relays") or [],
        "user": row.get("user") or "",
        "begin": None if begin_us is None else (begin_us - of.begin_us) / 1e6,
        "end": None if begin_us is None else (begin_us - of.begin_us + (row["duration_us"] or 0)) / 1e6,
        "bytes": row["unique_bytes"] or 0,
        "packets": row["unique_packets"] or 0,
        "repeats": (row["packets"] or 0) - (row["unique_packets"] or 0),
        "lost": row["lost"] if row["judged"] else None,
        "trip": row["trip_us_p50"],
        "stalled": row["stalled_us"] or 0,
        "why": STALLS.get(row["stalled_by"] or "", ("",))[0],
    }


def _order(point: dict[str, Any]) -> tuple[int, int, int]:
    return point["t"], point["kind"], point["sequence"]


def _first(points: Rows) -> dict[str, Any]:
    """Return the first packet that was sent, or else the first point."""
    sent = [point for point in points if point["kind"] == SENT]
    return min(sent or points, key=_order)


def _places(points: Rows) -> dict[str, list[int]]:
    """Return flat lists of numbers by kind: times in microseconds since the first packet, and positions of packets."""
    ordered, first = sorted(points, key=_order), _first(points)
    # an acknowledgement of the answer to CONNECT comes before the first packet that has a number
    ordered = [point for point in ordered if point["kind"] != ACKED or point["t"] >= first["t"]]
    kinds: dict[str, list[int]] = {name: [] for name in ("sent", "again", "received", "acked", "sacked", "bytes")}
    for point in ordered:
        t = point["t"] - first["t"]
        at = (point["sequence"] - first["sequence"] + _HALF) % _ROUND - _HALF
        kind = point["kind"]
        if kind == SACKED:
            kinds["sacked"] += [t, at, point["acked"]]
        elif kind == RECEIVED:
            kinds["received"] += [t, at]
        else:
            name = "acked" if kind == ACKED else "again" if point["attempt"] else "sent"
            kinds[name] += [t, at]
            kinds["bytes"] += [t, point["in_flight_bytes"], point["in_flight_bytes"] + point["window_bytes"]]
    return kinds
