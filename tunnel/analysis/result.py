"""The result of all analyses: plain values, which need no Spark."""

from typing import Any

import msgspec

__all__ = ["BUCKET_US", "Analysis", "Rows"]

Rows = list[dict[str, Any]]
BUCKET_US = 10_000_000  # the width of a bucket of time, unless the trace is short or very long


class Analysis(msgspec.Struct):
    """The results that the report shows and `--json` prints; each table is a list of rows."""

    begin_us: int = 0
    end_us: int = 0
    bucket_us: int = BUCKET_US
    """The width of the buckets of time: ten seconds, less for a short trace and more for one of hours."""
    wall_us: int | None = None
    """The wall clock (microseconds since 1970) when the common clock of all times was at zero."""
    problems: Rows = []
    """The files with problems."""
    files: Rows = []
    writers: Rows = []
    retransmissions: Rows = []
    goodput: Rows = []
    exchanges: Rows = []
    absences: int = 0
    """How often an endpoint lost its relay."""
    batches: Rows = []
    moved: Rows = []
    faults: Rows = []
    totals: dict[str, Any] = {}
    gilbert: dict[str, Any] = {}
    bursts: Rows = []
    spurious: Rows = []
    recovery: Rows = []
    loss_stages: Rows = []
    lost_ranges: Rows = []
    trips: dict[str, Any] = {}
    """For all streams together: round trips, from sending to acknowledgement."""
    receipts: dict[str, Any] = {}
    """For all streams together: times from receipt to acknowledgement, from which the transport computes its RTO."""
    trip_values: Rows = []
    trips_over_time: Rows = []
    timers: Rows = []
    limits: dict[str, Any] = {}
    """For all streams together: the time outside stalls, by the limit that applied, and the largest window."""
    stalls: Rows = []
    longest_stalls: Rows = []
    worst: Rows = []
    points: dict[str, Rows] = {}
    """The points of the time–sequence graphs of the worst streams, by stream."""
