"""Opens a trace for a program, which passes it to `attach` and closes it at the end."""

from pathlib import Path

from tunnel.traces.record import TraceLevel
from tunnel.traces.writer import TraceWriter

__all__ = ["LEVELS", "TraceWriter", "open_trace"]

LEVELS = tuple(level.name.lower() for level in TraceLevel)  # the values of open_trace's `level` and of --trace-level


def open_trace(directory: str | Path, level: str = "packet", *, name: str = "") -> TraceWriter | None:
    """Open a trace in `directory`, which is created if it does not exist.

    Use it as `with open_trace("traces") as trace: attach(..., trace=trace)`. `level`: "packet" records everything,
    "connection" little; "off" returns None, which means no trace. `name` becomes part of the file names. Raise OSError
    when the directory cannot be written.
    """
    chosen = TraceLevel[level.upper()] if level in LEVELS else None
    if chosen is None:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    return None if chosen is TraceLevel.OFF else TraceWriter(directory, level=chosen, name=name)
