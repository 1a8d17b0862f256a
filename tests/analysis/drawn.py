"""Clocks and graphs of the streams of `tests.analysis.ends`, whose receivers' clocks are far ahead."""

from __future__ import annotations

from typing import Any

import msgspec
from pyspark.sql import DataFrame

from tests.analysis.ends import ENDS, stream_of
from tunnel.analysis import alignment, clocks, counts, flow, graphs, tables

__all__ = ["KILLED", "Drawn", "draw"]

KILLED = next(stream_of(ends) for ends in ENDS if ends.name == "receiver killed")


class Drawn(msgspec.Struct):
    """The results."""

    clocks: dict[str, tuple[int, str]]
    """For each writer, by how much its clock is ahead of the common time, and how that is known."""
    points: list[dict[str, Any]]
    """The points of the stream KILLED, whose packets are repeated."""
    among_others: list[dict[str, Any]]
    """The same, from a query for more streams."""


def draw(events: DataFrame) -> Drawn:
    """Align the clocks of all writers, and make points of graphs."""
    files = [row.asDict() for row in counts.file_health(events).collect()]
    walls = tables.walls(files)
    delays = [row.asDict() for row in alignment.delays_of(events, sum(row["events"] for row in files)).collect()]
    known = clocks.clocks_of(walls, delays)
    table = flow.flow_of(alignment.aligned(events, known)).cache()

    def points(*streams: int) -> list[dict[str, Any]]:
        found = [row.asDict() for row in graphs.points_of(table, list(streams)).collect()]
        chosen = (row for row in found if row["stream"] == KILLED)
        return sorted(chosen, key=lambda row: (row["t"], row["kind"], row["sequence"], row["attempt"]))

    drawn = Drawn(
        clocks={name: (clock.ahead_us, clock.known_by) for name, clock in known.items()},
        points=points(KILLED),
        among_others=points(*[stream_of(ends) for ends in ENDS]),
    )
    table.unpersist()
    return drawn
