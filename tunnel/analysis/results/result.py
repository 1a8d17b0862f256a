"""The result of all queries: plain values, which need no engine."""

from typing import Any

import msgspec

from tunnel.traces.record import TraceCause

__all__ = ["ACKED", "BUCKET_US", "CAUSES", "RECEIVED", "SACKED", "SENT", "TRANSITIONS", "Analysis", "Rows"]

Rows = list[dict[str, Any]]
BUCKET_US = 10_000_000  # the width of a bucket of time, unless the trace is short or very long
SENT, RECEIVED, ACKED, SACKED = 1, 2, 3, 10
"""The kinds of points in a graph, as the query `flow` numbers them."""
CAUSES = ("unknown", *(cause.value for cause in tuple(TraceCause)[:7]))
"""The causes of a repeat; the query `packets` has the index in this list."""
TRANSITIONS = ("n00", "n01", "n10", "n11")


class Analysis(msgspec.Struct):
    """The results that the report shows and `--json` prints; each table is a list of rows."""

    engine: str = ""
    """The engine that computed this, with its version."""
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
    deaths: Rows = []
    """The writers whose process died without closing its trace, each with the time of its last record."""
    retransmissions: Rows = []
    goodput: Rows = []
    exchanges: Rows = []
    absences: int = 0
    """How often an endpoint lost its relay."""
    moves_by_cause: dict[str, int] = {}
    """How often a connection moved to another relay, as one of its ends recorded it, by cause."""
    moves: Rows = []
    """The first of these moves: when, which connection at which node, from which relay to which one, and why."""
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
    life: dict[str, Any] = {}
    """For all streams together: the time for which they lived, and what of the times of CONNECT is the path's."""
    unread: Rows = []
    """What senders did while bytes that had arrived waited for the application at the other end."""
    places: Rows = []
    """The limits and stalls by node that sends, by process that receives, and by relay of the sender."""
    refusals: Rows = []
    """The exchanges that were sent, and those that failed, by relay."""
    stalls: Rows = []
    longest_stalls: Rows = []
    worst: Rows = []
    points: dict[str, Rows] = {}
    """The points of the time–sequence graphs of the worst streams, by stream."""
