"""The report's tables that are computed in plain Python, from the few rows of the queries."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

from tunnel.analysis.results.result import CAUSES
from tunnel.traces.record import TraceEvent

__all__ = [
    "SAMPLES_MIN",
    "absences",
    "batches",
    "bursts",
    "deaths",
    "exchanges",
    "faults",
    "fitted",
    "goodput_over_time",
    "loss_stages",
    "moved",
    "moves_by_cause",
    "recovery",
    "retransmissions",
    "spurious",
    "timers",
    "trip_values",
    "trips_of_all",
    "trips_over_time",
    "walls",
    "without_few",
    "writers",
]

SAMPLES_MIN = 100
"""Of fewer samples, the 99th percentile is the largest one, and nothing is published as it."""

Row = dict[str, Any]
Rows = list[Row]


def writers(files: Rows) -> Rows:
    """Return what each writer wrote and what is missing of it: losses of the trace itself, not of the network."""
    found: dict[str, Row] = {}
    for row in files:
        if row["writer"] and row["last"] is not None:
            empty = {"writer": row["writer"], "events": 0, "last": row["last"], "dropped": 0}
            of = found.setdefault(row["writer"], empty)
            of["events"] += row["events"]
            of["last"] = max(of["last"], row["last"])
            of["dropped"] += row["dropped"] or 0
    for of in found.values():
        of["missing"] = max(0, of.pop("last") - of["events"])
    return [found[name] for name in sorted(found)]


def deaths(files: Rows, problems: Rows) -> Rows:
    """Return the writers whose process died without closing its trace, with the time of the last record of each."""
    left = {row["file"] for row in problems if row["problem"] == "died"}
    dead = {row["writer"] for row in files if row.get("died") or row["file"] in left}
    ends: dict[str, int] = {}
    for row in files:
        if row["writer"] in dead and row["end_us"] is not None:
            ends[row["writer"]] = max(ends.get(row["writer"], row["end_us"]), row["end_us"])
    return [{"writer": writer, "end_us": ends[writer]} for writer in sorted(ends, key=lambda name: (ends[name], name))]


def without_few(rows: Rows, p99: str, samples: str) -> Rows:
    """Return the rows without the 99th percentile, in this column, of fewer than SAMPLES_MIN samples."""
    return [row | {p99: row.get(p99) if (row.get(samples) or 0) >= SAMPLES_MIN else None} for row in rows]


def walls(files: Rows) -> dict[str, int | None]:
    """Return what the wall clock said when the clock of each writer was at zero; None if it was not recorded."""
    found: dict[str, int | None] = {}
    for row in files:
        if row["writer"]:
            known = [wall for wall in (found.get(row["writer"]), row["wall_us"]) if wall is not None]
            found[row["writer"]] = max(known, default=None)
    return found


# tables made from the rows of `details`


def absences(details: Rows) -> int:
    """Return how often an endpoint noticed that its relay did not know it, or could not be reached."""
    return sum(row["n"] for row in details if row["of"] == "detached")


def moves_by_cause(details: Rows) -> dict[str, int]:
    """Return how often a connection moved to another relay, as one of its ends recorded it, by cause."""
    return {row["name"]: row["n"] for row in details if row["of"] == "moved"}


def exchanges(details: Rows) -> Rows:
    """Return the outcomes of exchanges, by kind, event and status, with their latency."""
    found = [
        {"kind": row["name"], "event": row["event"], "status": row["status"], "n": row["n"], "bytes": row["bytes"]}
        | _latency(row)
        for row in details
        if row["of"] == "exchange"
    ]
    return sorted(found, key=lambda row: (row["kind"], row["event"], row["status"]))


def batches(details: Rows) -> Rows:
    """Return the outcomes of batches, receipted or given up, by carrier, with their latency."""
    found = [
        {"carrier": row["place"], "event": row["event"], "n": row["n"]} | _latency(row)
        for row in details
        if row["of"] == "batch"
    ]
    return sorted(found, key=lambda row: (row["carrier"], row["event"]))


def timers(details: Rows) -> Rows:
    """Return how often each timer fired, and how late."""
    found = [
        {
            "timer": row["name"],
            "fired": row["n"],
            "lag_us_p50": row["latency_us_p50"],
            "lag_us_p99": row["latency_us_p99"],
            "lag_us_max": row["latency_us_max"],
        }
        for row in without_few(details, "latency_us_p99", "n")
        if row["of"] == "timer"
    ]
    return sorted(found, key=lambda row: (-row["fired"], row["timer"]))


def _latency(row: Row) -> Row:
    (known,) = without_few([row], "latency_us_p99", "n")
    return {name: known[name] for name in ("latency_us_p50", "latency_us_p99")}


# tables made from the rows of `sums`


def retransmissions(sums: Rows) -> Rows:
    """Return the transmissions of numbered packets by relay, carrier, time bucket and cause.

    The cause of a first transmission is None.
    """

    def cause(row: Row) -> str | None:
        return (row["cause"] or "unknown") if row["repeated"] else None

    sent = (row for row in sums if row["event"] == TraceEvent.PACKET_SENT and row["numbered"])
    added = _added(sent, lambda row: (row["relay"], row["carrier"], row["bucket"], cause(row)))
    rows: Rows = [
        {"relay": relay, "carrier": carrier, "bucket": bucket, "cause": why, "packets": n, "bytes": size}
        for (relay, carrier, bucket, why), (n, size, _) in added.items()
    ]
    return sorted(rows, key=lambda row: (row["relay"], row["carrier"], row["bucket"], row["cause"] or ""))


def goodput_over_time(sums: Rows) -> Rows:
    """Return the bytes of numbered packets that were sent and received, by time bucket."""
    found: dict[int, Row] = {}
    for row in sums:
        empty = {"bucket": row["bucket"], "sent_bytes": 0, "first_bytes": 0, "received_bytes": 0}
        of = found.setdefault(row["bucket"], empty)
        if not row["numbered"]:
            continue
        if row["event"] == TraceEvent.PACKET_RECEIVED:
            of["received_bytes"] += row["bytes"]
        else:
            of["sent_bytes"] += row["bytes"]
            of["first_bytes"] += 0 if row["repeated"] else row["bytes"]
    return [found[bucket] for bucket in sorted(found)]


def moved(sums: Rows) -> Rows:
    """Return the totals that ended connections had moved between application, transport and network."""
    ended = (row for row in sums if row["event"] == TraceEvent.STREAM_DATA_MOVED)
    added = _added(ended, lambda row: row["cause"])
    return [
        {"cause": cause, "streams": n, "bytes": size, "packets": packets}
        for cause, (n, size, packets) in sorted(added.items())
    ]


def faults(sums: Rows) -> Rows:
    """Return the faults that a test injected, by kind."""
    injected = (row for row in sums if row["event"] == TraceEvent.FAULT_INJECTED)
    added = _added(injected, lambda row: row["cause"])
    rows: Rows = [{"cause": cause, "n": n, "bytes": size} for cause, (n, size, _) in added.items()]
    return sorted(rows, key=lambda row: (-row["n"], row["cause"]))


def _added(rows: Iterable[Row], key: Callable[[Row], Any]) -> dict[Any, list[int]]:
    added: dict[Any, list[int]] = defaultdict(lambda: [0, 0, 0])
    for row in rows:
        for index, name in enumerate(("n", "bytes", "counted")):
            added[key(row)][index] += row[name]
    return added


# tables made from the rows of `network`


def bursts(network: Rows) -> Rows:
    """Return the number of bursts of losses of each length."""
    found = [{"length": row["key"], "bursts": row["packets"]} for row in network if row["of"] == "burst"]
    return sorted(found, key=lambda row: row["length"])


def loss_stages(network: Rows) -> Rows:
    """Return where first attempts were lost."""
    names = ("stage", "packets", "bytes", "never_arrived")
    found = [{name: row[name] for name in names} for row in network if row["of"] == "stage"]
    return sorted(found, key=lambda row: (-row["packets"], row["stage"]))


def spurious(network: Rows) -> Rows:
    """Return needless repeats by the cause of a packet's first repeat: as both ends prove, and as the sender judged."""
    counted = ("packets", "attempts", "needless", "hits", "false_alarms", "missed")
    found = [
        {"cause": CAUSES[row["key"]]}
        | {name: row[name] for name in counted}
        | {
            "rate": _ratio(row["needless"], row["attempts"]),
            "precision": _ratio(row["hits"], row["hits"] + row["false_alarms"]),
            "recall": _ratio(row["hits"], row["hits"] + row["missed"]),
        }
        for row in network
        if row["of"] == "cause"
    ]
    return sorted(found, key=lambda row: (-row["packets"], row["cause"]))


def recovery(network: Rows) -> Rows:
    """Return the time from first transmission to acknowledgement of repeated packets, by number of attempts."""
    found = [
        {"attempts": row["key"], "packets": row["packets"], "us_p50": row["took_us_p50"], "us_p99": row["took_us_p99"]}
        for row in without_few(network, "took_us_p99", "packets")
        if row["of"] == "attempts"
    ]
    return sorted(found, key=lambda row: row["attempts"])


# tables made from other rows


def trip_values(classes: Rows) -> Rows:
    """Return the number of samples in each class of times, and in each class of RTO/time, from `trips`."""
    found: dict[tuple[str, int], int] = defaultdict(int)
    for row in classes:
        found[row["of"], row["us_class"]] += row["samples"]
        if row["rto_class"] is not None:
            found["rto_over_receipt", row["rto_class"]] += row["samples"]
    return [{"of": of, "class": number, "n": n} for (of, number), n in sorted(found.items())]


def trips_of_all(times: Rows, of: str) -> Row:
    """Return the figures over all samples of one kind of all streams, from `trips`."""
    for row in without_few(without_few(times, "us_p99", "samples"), "rto_over_us_p99", "samples"):
        if row["of"] == of and row["bucket"] is None:
            return {
                "samples": row["samples"],
                "us_min": row["us_min"],
                "us": [row["us_p50"], row["us_p95"], row["us_p99"]],
                "jitter_us": row["jitter_us"],
                "rto_over_us": None if of == "trip" else [row["rto_over_us_p50"], row["rto_over_us_p99"]],
            }
    return {"samples": 0} | dict.fromkeys(("us_min", "us", "jitter_us", "rto_over_us"))


def trips_over_time(times: Rows) -> Rows:
    """Return round trips, times from receipt to acknowledgement, and RTOs, by time bucket: `trips`."""
    found: dict[int, Row] = {}
    for row in without_few(times, "us_p99", "samples"):
        if row["bucket"] is None:
            continue
        names = ("trip_us_p50", "trip_us_p99", "receipt_us_p50", "rto_us_p50")
        of = found.setdefault(row["bucket"], {"bucket": row["bucket"]} | dict.fromkeys(names))
        of[f"{row['of']}_us_p50"] = row["us_p50"]
        if row["of"] == "trip":
            of["trip_us_p99"] = row["us_p99"]
        else:
            of["rto_us_p50"] = row["rto_us_p50"]
    return [found[bucket] for bucket in sorted(found)]


def fitted(transitions: Row) -> Row:
    """Fit the Gilbert model of first attempts to the counts of transitions between arrived (0) and lost (1).

    p is the probability that a burst of losses begins, r that it ends.
    """
    fit: Row = {name: transitions[name] for name in ("n00", "n01", "n10", "n11")}
    n00, n01, n10, n11 = (count or 0 for count in fit.values())
    p = _ratio(n01, n00 + n01)
    r = _ratio(n10, n10 + n11)
    loss = None if p is None or r is None else _ratio(p, p + r)
    fit |= {"p": p, "r": r, "loss": loss, "mean_burst": _ratio(1.0, r)}
    # Compare with independent losses, whose expected burst length is 1 / (1 - loss).
    return fit | {"burst_ratio": None if loss is None else _ratio(1 - loss, r)}


def _ratio(part: float, whole: float | None) -> float | None:
    return part / whole if whole else None
