"""Traces: one record for each event. The simulator, the tests and Spark use the same record format, defined here.

This package exports only the record and its parts, which the sans-I/O code uses. Import a writer from its own module.
"""

from tunnel.traces.record import (
    TRACE_VERSION,
    TraceCause,
    TraceEvent,
    TraceFault,
    TraceLevel,
    TraceReason,
    TraceRecord,
    TraceSink,
    level_of,
)

__all__ = [
    "TRACE_VERSION",
    "TraceCause",
    "TraceEvent",
    "TraceFault",
    "TraceLevel",
    "TraceReason",
    "TraceRecord",
    "TraceSink",
    "level_of",
]
