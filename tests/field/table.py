"""The table of the results: as text for a terminal, and as Markdown."""

from collections.abc import Sequence

from tests.field.results import Outcome, Result, complaints, judge, known_reason
from tests.field.rows import ROWS, Row

__all__ = ["COLUMNS", "cells", "render_markdown", "render_text"]

COLUMNS = (
    "intermediary",
    "asked, in use",
    "MB/s up",
    "MB/s down",
    "of bare up/down",
    "echo p50",
    "after idling",
    "kill of the relay",
    "doctor",
    "outcome",
)
_ROWS = {row.name: row for row in ROWS}
_NO = "no"


def _rate(bps: float | None) -> str:
    return _NO if bps is None else f"{bps / 1e6:.1f}" if bps < 1e7 else f"{bps / 1e6:.0f}"


def _ms(value: float | None) -> str:
    return _NO if value is None else f"{value:.1f} ms" if value < 100 else f"{value:.0f} ms"


def _shares(result: Result) -> str:
    if result.bare is None or result.up_bps is None or result.down_bps is None:
        return ""
    return f"{result.up_bps / result.bare.up_bps:.1%} / {result.down_bps / result.bare.down_bps:.1%}"


def _doctor(result: Result) -> str:
    doctor = result.doctor
    if doctor is None:
        return ""
    named = [f"problem: {', '.join(doctor.problems)}"] if doctor.problems else []
    named += [f"note: {', '.join(doctor.notes)}"] if doctor.notes else []
    return f"{doctor.code}; {'; '.join(named)}" if named else str(doctor.code)


def _outcome(row: Row, result: Result) -> str:
    found = [
        f"{part}: {text}" + (f" ({reason})" if (reason := known_reason(row, result.carrier, part)) else "")
        for part, text in complaints(row, result)
    ]
    return ": ".join([judge(row, result).value, *(["; ".join(found)] if found else [])])


def cells(result: Result) -> tuple[str, ...]:
    """The cells of one result, one for each of COLUMNS."""
    row = _ROWS[result.row]
    carrier = f"{result.carrier}, {result.used}" if result.used else result.carrier
    head = (row.title, carrier)
    if judge(row, result) is Outcome.REFUSED:
        refusal = f"refused, exit code {result.code}"
        return (*head, "", "", "", "", "", "", _doctor(result), refusal)
    figures = (_rate(result.up_bps), _rate(result.down_bps), _shares(result), _ms(result.echo_ms))
    kill = _NO if result.kill_s is None else f"{result.kill_s:.1f} s"
    return (*head, *figures, _ms(result.idle_ms), kill, _doctor(result), _outcome(row, result))


def render_text(results: Sequence[Result]) -> str:
    """The table in columns, for a terminal. The last column is not padded: it may hold a sentence."""
    lines = [COLUMNS, *map(cells, results)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(COLUMNS) - 1)]
    padded = [[cell.ljust(width) for cell, width in zip(line, widths, strict=False)] + [line[-1]] for line in lines]
    return "\n".join("  ".join(line).rstrip() for line in padded)


def render_markdown(results: Sequence[Result]) -> str:
    """The table for a document."""
    lines = [COLUMNS, ("---",) * len(COLUMNS), *map(cells, results)]
    return "\n".join(f"| {' | '.join(cell.replace('|', '/') for cell in line)} |" for line in lines)
