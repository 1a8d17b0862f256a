"""The part of a trace that a report is about: a time, the connections over one relay, or one connection."""

import re
from datetime import UTC, datetime
from typing import NamedTuple

from tunnel.analysis.engines.engine import Engine, Rows
from tunnel.analysis.engines.failures import QueryError
from tunnel.analysis.engines.queries import query
from tunnel.analysis.results.result import Analysis

__all__ = ["Moment", "Selection", "moment_of", "select"]

_UNITS_US = {"us": 1, "ms": 1_000, "s": 1_000_000, "min": 60_000_000, "h": 3_600_000_000}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min|h)")


class Moment(NamedTuple):
    """A time in microseconds: of the wall clock (since 1970), or since the trace began."""

    us: int
    is_wall: bool


class Selection(NamedTuple):
    """What is asked for. An empty selection is the whole trace."""

    since: Moment | None = None
    until: Moment | None = None
    relay: str = ""
    connection: int = 0

    def text(self) -> str:
        """Return the selection for people; empty for the whole trace."""
        parts = [f"relay {self.relay}"] if self.relay else []
        parts += [f"connection {self.connection:08x}"] if self.connection else []
        parts += ["a part of the time"] if self.since or self.until else []
        return ", ".join(parts)


def moment_of(text: str) -> Moment:
    """Read a time: 90s since the trace began, or 2026-11-01T10:00 in UTC. Raise ValueError if it is none."""
    found = _SPAN.fullmatch(text.strip())
    if found is not None:
        return Moment(round(float(found[1]) * _UNITS_US[found[2]]), is_wall=False)
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        raise ValueError(
            f"{text!r} is no time: write 90s or 5min since the trace began, or a date as in 2026-11-01T10:00 (UTC)"
        ) from None
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return Moment(round(moment.timestamp() * 1e6), is_wall=True)


def select(selection: Selection, result: Analysis, engine: Engine) -> None:
    """Let `events` be those that were selected, and let the files of the result end where the time does.

    The report of a part of the time is that of a trace which was recorded for this time only: what is cut off is
    unknown, and not lost. Raise QueryError if nothing is left.
    """
    since_us, until_us = _bounds(selection, result)
    for row in result.files:
        if row["begin_us"] is None or row["begin_us"] > until_us or row["end_us"] < since_us:
            row["begin_us"] = row["end_us"] = None
        else:
            row["begin_us"], row["end_us"] = max(row["begin_us"], since_us), min(row["end_us"], until_us)
    # A relay is known from the attachment, which may be before that time.
    attachments = engine.rows(query("attachments"))
    engine.table("attachments", "node_id bigint, relay string, last_us bigint", attachments)
    bounds = {"since_us": since_us, "until_us": until_us}
    engine.view("whole", query("events"))
    if not selection.relay and not selection.connection:
        engine.view("events", query("events_between", **bounds))
        return
    nodes = [row for row in attachments if row["relay"] == selection.relay]
    if selection.relay and not nodes:
        known = ", ".join(sorted({row["relay"] for row in attachments})[:5]) or "none"
        raise QueryError(f"no node was attached to the relay {selection.relay}: the trace has {known}")
    ids: Rows = [{"node_id": row["node_id"]} for row in nodes]
    engine.table("attached_nodes", "node_id bigint", ids)
    engine.view("wanted", query("wanted", id=selection.connection))
    if not engine.rows("select id from wanted limit 1"):
        what = f"connection {selection.connection:08x}" if selection.connection else "connections over that relay"
        raise QueryError(f"the trace has no {what}: the table in the report's section on connections has their names")
    engine.view("wanted_nodes", query("wanted_nodes"))
    took_part = {row["writer"] for row in engine.rows(query("wanted_writers"))}
    result.deaths = [row for row in result.deaths if row["writer"] in took_part]
    engine.view("events", query("events_wanted", **bounds))


def _bounds(selection: Selection, result: Analysis) -> tuple[int, int]:
    """Return the bounds in the common time of all writers. Raise QueryError if the trace does not tell them."""
    begin_us, end_us = result.begin_us, result.end_us
    found = []
    for moment, otherwise in ((selection.since, begin_us), (selection.until, end_us)):
        if moment is None:
            found.append(otherwise)
        elif not moment.is_wall:
            found.append(begin_us + moment.us)
        elif result.wall_us is None:
            raise QueryError("the trace does not tell the wall clock: give times since it began, as in --from 90s")
        else:
            found.append(moment.us - result.wall_us)
    if found[0] > end_us or found[1] < begin_us:
        raise QueryError("the trace has no records of that time: look at the times in a report of the whole trace")
    if found[0] > found[1]:
        raise QueryError("--from is later than --to")
    return found[0], found[1]
