"""The log of a process: limits on its lines, and a writer that keeps callers from waiting for a slow reader.

`tunnel.process.command_line` configures it; other modules log with structlog.
"""

from tunnel.logs.limits import LineLimits, Source, Suppressed
from tunnel.logs.writer import LineWriter

__all__ = ["LineLimits", "LineWriter", "Source", "Suppressed"]
