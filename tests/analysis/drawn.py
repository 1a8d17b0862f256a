"""Clocks and graphs of the streams of `tests.analysis.ends`, whose receivers' clocks are far ahead."""

from __future__ import annotations

from typing import Any

import msgspec

from tests.analysis.ends import ENDS, stream_of
from tunnel.analysis.engines.engine import Engine
from tunnel.analysis.engines.queries import query
from tunnel.analysis.kept.ledger import Intake
from tunnel.analysis.results.analyse import GRAPH_COLUMNS, GRAPH_ROWS, begin

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


def draw(engine: Engine, intake: Intake) -> Drawn:
    """Align the clocks of all writers, and make points of graphs."""
    result = begin(engine, intake)

    def points(*streams: int) -> list[dict[str, Any]]:
        engine.table("chosen", "stream bigint", [{"stream": stream} for stream in streams])
        found = engine.rows(query("points", columns=GRAPH_COLUMNS, rows=GRAPH_ROWS))
        return [row for row in found if row["stream"] == KILLED]

    with engine.keep("flow", query("flow")):
        return Drawn(
            clocks={row["writer"]: (row["ahead_us"], row["clock"]) for row in result.writers},
            points=points(KILLED),
            among_others=points(*[stream_of(ends) for ends in ENDS]),
        )
