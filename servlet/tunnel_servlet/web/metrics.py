"""The metrics of a relay process as a page that Prometheus reads: what was lost of its log and of its trace.

The page has the text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
"""

from tunnel import TraceWriter
from tunnel.logs.setup import log_counts
from tunnel.traces.record import TraceSink

__all__ = ["METRICS_TYPE", "render_metrics"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(trace: TraceSink | None) -> str:
    """Return the page. A relay that writes no trace has no metrics of it."""
    log = log_counts()
    counters = [
        ("tunnel_log_lines_written_total", "Lines that were written to the log.", log.written),
        ("tunnel_log_lines_dropped_total", "Lines that were lost: the log was not read or not writable.", log.dropped),
        ("tunnel_log_lines_suppressed_total", "Lines beyond the limit for their kind and source.", log.suppressed),
    ]
    if isinstance(trace, TraceWriter):
        counters += [
            ("tunnel_trace_records_written_total", "Records that were written to the trace.", trace.written),
            ("tunnel_trace_records_dropped_total", "Records that were lost: the disk was slow or full.", trace.dropped),
            ("tunnel_trace_files_removed_total", "Trace files that were removed at the limit.", trace.removed_files),
        ]
    return "".join(f"# HELP {name} {help_}\n# TYPE {name} counter\n{name} {value}\n" for name, help_, value in counters)
