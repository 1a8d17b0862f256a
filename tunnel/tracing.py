"""Opens a trace for a program, which passes it to `attach` and closes it at the end."""

from collections.abc import Callable
from pathlib import Path

from tunnel.traces.folder import FOLDER_BYTES_MAX
from tunnel.traces.record import TraceLevel
from tunnel.traces.writer import TraceWriter

__all__ = ["LEVELS", "TraceWriter", "open_trace"]

LEVELS = tuple(level.name.lower() for level in TraceLevel)  # the values of open_trace's `level` and of --trace-level


def open_trace(
    directory: str | Path,
    level: str = "packet",
    *,
    name: str = "",
    bytes_max: int = FOLDER_BYTES_MAX,
    tell: Callable[[str], None] = lambda text: None,
) -> TraceWriter | None:
    """Open a trace in `directory`, which is created if it does not exist. Only its owner can read the files.

    Use it as `with open_trace("traces") as trace: attach(..., trace=trace)`. `level`: "packet" records everything,
    "connection" little; "off" returns None, which means no trace. `name` becomes part of the file names.

    When all trace files in the directory reach `bytes_max`, the oldest are removed. `tell` gets a sentence for the log
    the first time that this happens, or that the disk is full; it is called in another thread. Raise OSError when the
    directory cannot be written.
    """
    chosen = TraceLevel[level.upper()] if level in LEVELS else None
    if chosen is None:
        raise ValueError(f"level must be one of {', '.join(LEVELS)}, not {level!r}")
    return (
        None
        if chosen is TraceLevel.OFF
        else TraceWriter(directory, level=chosen, name=name, bytes_max=bytes_max, tell=tell, reads_clock=True)
    )
