"""What every process measures of itself: descriptors, memory, processor, garbage, its log, its trace, its loop."""

import asyncio
import gc
import os
import platform
import resource
import time
from collections.abc import Iterator
from pathlib import Path

from tunnel import TraceWriter, __version__
from tunnel.logs.setup import log_counts
from tunnel.metrics.metric import Histogram, Metric, Sample
from tunnel.traces.record import TraceSink

__all__ = ["PROCESS_METRICS", "LoopLag", "process_samples"]

_GENERATIONS = ("0", "1", "2")
_LAG_EVERY_S = 0.25  # a wake-up costs about 50 us, so that this takes 0.02 % of a processor
_FDS = Path("/proc/self/fd")
_STATM = Path("/proc/self/statm")
_START_S = time.time()

_BUILD_INFO = Metric.gauge("tunnel_build_info", "Always 1; the labels say what runs.", version=(), python=())
_OPEN_FDS = Metric.gauge("process_open_fds", "Open descriptors (Linux).")
_MAX_FDS = Metric.gauge("process_max_fds", "The limit of open descriptors.")
_RESIDENT = Metric.gauge("process_resident_memory_bytes", "Memory that the process occupies (Linux).")
_CPU = Metric.counter("process_cpu_seconds_total", "Processor time of the process.")
_START = Metric.gauge("process_start_time_seconds", "When the process began, in seconds since 1970.")
_COLLECTIONS = Metric.counter(
    "tunnel_garbage_collections_total", "Runs of Python's garbage collector, by generation.", generation=_GENERATIONS
)
_LAG = Metric.histogram("tunnel_loop_lag_seconds", "How late the event loop ran a timer, measured four times a second.")
_LOG_WRITTEN = Metric.counter("tunnel_log_lines_written_total", "Lines that were written to the log.")
_LOG_DROPPED = Metric.counter(
    "tunnel_log_lines_dropped_total", "Lines that were lost: the log was not read or not writable."
)
_LOG_SUPPRESSED = Metric.counter(
    "tunnel_log_lines_suppressed_total", "Lines of the log beyond the limit for their kind and source."
)
_TRACE_WRITTEN = Metric.counter(
    "tunnel_trace_records_written_total", "Records that were written to the trace. Only with a trace."
)
_TRACE_DROPPED = Metric.counter(
    "tunnel_trace_records_dropped_total", "Records that were lost: the disk was slow or full. Only with a trace."
)
_TRACE_FILES = Metric.counter(
    "tunnel_trace_files_removed_total", "Trace files that were removed at their limit. Only with a trace."
)

PROCESS_METRICS = (
    *(_BUILD_INFO, _OPEN_FDS, _MAX_FDS, _RESIDENT, _CPU, _START, _COLLECTIONS, _LAG),
    *(_LOG_WRITTEN, _LOG_DROPPED, _LOG_SUPPRESSED, _TRACE_WRITTEN, _TRACE_DROPPED, _TRACE_FILES),
)


class LoopLag:
    """Measures how late the running event loop is. Call `start` and `close` in the loop."""

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start measuring."""
        loop = asyncio.get_running_loop()
        due_s = loop.time() + _LAG_EVERY_S
        self._timer = loop.call_at(due_s, self._measure, due_s)

    def close(self) -> None:
        """Stop measuring."""
        if self._timer is not None:
            self._timer.cancel()

    def _measure(self, due_s: float) -> None:
        self.seconds.observe(max(0.0, asyncio.get_running_loop().time() - due_s))
        self.start()


def process_samples(trace: TraceSink | None, lag: LoopLag | None) -> Iterator[Sample]:
    """Yield the samples of this process, without those that the system does not tell."""
    yield _BUILD_INFO.sample(1, version=__version__, python=platform.python_version())
    descriptors = _descriptors()
    if descriptors is not None:
        yield _OPEN_FDS.sample(descriptors)
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield _MAX_FDS.sample(float("inf") if most == resource.RLIM_INFINITY else most)
    if _STATM.exists():
        yield _RESIDENT.sample(int(_STATM.read_text().split()[1]) * resource.getpagesize())
    yield _CPU.sample(time.process_time())
    yield _START.sample(_START_S)
    for generation, counts in zip(_GENERATIONS, gc.get_stats(), strict=False):
        yield _COLLECTIONS.sample(counts["collections"], generation=generation)
    if lag is not None:
        yield _LAG.sample(lag.seconds)
    log = log_counts()
    yield _LOG_WRITTEN.sample(log.written)
    yield _LOG_DROPPED.sample(log.dropped)
    yield _LOG_SUPPRESSED.sample(log.suppressed)
    if isinstance(trace, TraceWriter):
        yield _TRACE_WRITTEN.sample(trace.written)
        yield _TRACE_DROPPED.sample(trace.records_dropped)
        yield _TRACE_FILES.sample(trace.removed_files)


def _descriptors() -> int | None:
    """Return the number of open descriptors. The kernel tells it since version 6.2; before, they are counted, which
    takes a millisecond for a thousand of them."""
    try:
        return _FDS.stat().st_size or len(os.listdir(_FDS))
    except OSError:
        return None
