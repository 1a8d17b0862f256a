"""The trace: one record per thing that happened, defined here once and read by the simulator, the tests and Spark.

Importing this package brings only the record (which the sans-I/O parts use); writers are imported by their own names.
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
