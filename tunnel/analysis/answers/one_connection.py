"""What happened to one connection, in lines for a terminal."""

from tunnel.analysis.results.result import Analysis, Rows
from tunnel.analysis.verdicts.verdict import verdict
from tunnel.analysis.words import MOVES, STALLS, aligned, count, duration, size

__all__ = ["lines_of"]


def lines_of(of: Analysis) -> list[str]:
    """Return the verdict, the two directions, the moves and the longest stalls of a connection that was selected."""
    columns = (
        "stream",
        "from",
        "to",
        "begins",
        "lasts",
        "bytes",
        "packets",
        "repeats",
        "lost",
        "round trip",
        "stalled",
    )
    lines = [*verdict(of), "", *aligned(columns, [_direction(of, row) for row in of.worst])]
    if of.moves:
        lines += ["", *aligned(("moved at", "connection", "end", "relays", "why", "meaning"), _moves(of))]
    if of.longest_stalls:
        titles = ("stall at", "for", "stream", "cause", "meaning")
        lines += ["", *aligned(titles, _stalls(of, of.longest_stalls))]
    return lines


def _direction(of: Analysis, row: dict[str, object]) -> tuple[str, ...]:
    def number(name: str) -> int | None:
        value = row[name]
        return value if isinstance(value, int) else None

    begin_us, packets, unique = number("begin_us"), number("packets"), number("unique_packets")
    return (
        f"{row['stream']:08x}",
        str(row["sender"] or "–"),
        str(row["receiver"] or "–"),
        duration(None if begin_us is None else begin_us - of.begin_us),
        duration(number("duration_us")),
        size(number("unique_bytes")),
        count(packets),
        count(None if packets is None or unique is None else packets - unique),
        count(number("lost") if row["judged"] else None),
        duration(number("trip_us_p50")),
        duration(number("stalled_us") or 0),
    )


def _moves(of: Analysis) -> list[tuple[str, ...]]:
    return [
        (
            duration(row["t"] - of.begin_us),
            f"{row['id']:08x}",
            row["node"],
            row["relays"],
            *MOVES.get(row["why"], (row["why"], "")),
        )
        for row in of.moves[:20]
    ]


def _stalls(of: Analysis, rows: Rows) -> list[tuple[str, ...]]:
    return [
        (
            duration(row["start_us"] - of.begin_us),
            duration(row["gap_us"]),
            f"{row['stream']:08x}",
            *STALLS.get(row["why"], (row["why"], "")),
        )
        for row in rows[:10]
    ]
