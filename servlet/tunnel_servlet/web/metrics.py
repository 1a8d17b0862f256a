"""The metrics of a relay process as a page that Prometheus reads: losses of its log and trace, changed rules, rates,
and packets that it did not deliver.

The page has the text format 0.0.4 (prometheus.io/docs/instrumenting/exposition_formats).
"""

from collections.abc import Iterator

from tunnel import TraceWriter
from tunnel.logs.setup import log_counts
from tunnel.traces.record import TraceSink
from tunnel_servlet.switch.stats import Counters, RateWait, Undelivered
from tunnel_servlet.web.reloading import Reloads

__all__ = ["METRICS_TYPE", "render_metrics"]

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


def render_metrics(trace: TraceSink | None, reloads: Reloads, counts: Counters, rates: list[RateWait]) -> str:
    """Return the page. A relay that writes no trace has no metrics of it."""
    log = log_counts()
    counters = [
        ("tunnel_log_lines_written_total", "Lines that were written to the log.", log.written),
        ("tunnel_log_lines_dropped_total", "Lines that were lost: the log was not read or not writable.", log.dropped),
        ("tunnel_log_lines_suppressed_total", "Lines beyond the limit for their kind and source.", log.suppressed),
    ]
    counters += [
        ("tunnel_reloads_applied_total", "Times that changed rules and tokens were applied.", reloads.applied),
        ("tunnel_reloads_failed_total", "Times that they could not be used.", reloads.failed),
        ("tunnel_routes_denied_total", "Connections that changed rules or tokens ended.", counts.routes_denied),
        ("tunnel_listeners_denied_total", "Services that changed rules ended.", counts.listeners_denied),
        (
            "tunnel_attachments_denied_total",
            "Endpoints that changed tokens or roles ended.",
            counts.attachments_denied,
        ),
    ]
    if isinstance(trace, TraceWriter):
        counters += [
            ("tunnel_trace_records_written_total", "Records that were written to the trace.", trace.written),
            ("tunnel_trace_records_dropped_total", "Records that were lost: the disk was slow or full.", trace.dropped),
            ("tunnel_trace_files_removed_total", "Trace files that were removed at the limit.", trace.removed_files),
        ]
    plain = (f"# HELP {name} {help_}\n# TYPE {name} counter\n{name} {value}\n" for name, help_, value in counters)
    return "".join([*plain, *_undelivered(counts), *_rates(rates)])


def _undelivered(counts: Counters) -> Iterator[str]:
    name = "tunnel_packets_undelivered_total"
    yield f"# HELP {name} Packets that the relay did not deliver.\n# TYPE {name} counter\n"
    for why in Undelivered:
        yield f'{name}{{reason="{why.name.lower()}"}} {getattr(counts, why.value)}\n'


def _rates(rates: list[RateWait]) -> Iterator[str]:
    """Render the time that each user has waited for each rate; nothing if there are no rates."""
    if rates:
        name = "tunnel_rate_waited_seconds_total"
        yield f"# HELP {name} Time for which connections of a user waited for a rate.\n# TYPE {name} counter\n"
        for each in rates:
            labels = f'user="{_label(each.user)}",rule="{_label(each.rule)}",direction="{each.direction}"'
            yield f"{name}{{{labels}}} {each.waited_ms / 1000}\n"


def _label(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
