"""Small tables without Spark: how they treat rows that are missing, unknown or equal."""

from typing import Any

import pytest

from tunnel.analysis import tables
from tunnel.traces import TraceEvent


def detail(of: str, name: str, **changes: Any) -> dict[str, Any]:
    empty = {"event": "", "status": 0, "where": "", "n": 1, "bytes": 0, "latency": [5, 9], "latency_us_max": 9}
    return {"of": of, "name": name, "last_us": 0, **empty, **changes}


def total(event: TraceEvent, **changes: Any) -> dict[str, Any]:
    empty = {"relay": "", "carrier": "poll", "bucket": 0, "cause": "", "numbered": True, "repeated": False}
    return {"event": event, "n": 1, "bytes": 10, "counted": 0, **empty, **changes}


def test_a_node_belongs_to_the_relay_of_its_last_attachment() -> None:
    rows = [
        detail("attached", "new", where="a", last_us=2),
        detail("attached", "old", where="a", last_us=1),
        detail("attached", "old", where="b", last_us=3),
        detail("timer", "rto"),
    ]
    assert tables.relays_of(rows) == [("a", "new"), ("b", "old")]


def test_details_are_sorted_into_their_tables() -> None:
    rows = [
        detail("timer", "pto"),
        detail("batch", "", where="link", event="batch_receipted"),
        detail("exchange", "push", event="exchange_answered", status=200, bytes=7),
        detail("exchange", "pull", event="exchange_failed"),
        detail("timer", "ack"),
        detail("timer", "rto", n=2),
    ]
    assert [row["timer"] for row in tables.timers(rows)] == ["rto", "ack", "pto"]
    assert [(row["carrier"], row["latency_us_p99"]) for row in tables.batches(rows)] == [("link", 9)]
    assert [(row["kind"], row["status"], row["bytes"]) for row in tables.exchanges(rows)] == [
        ("pull", 0, 0),
        ("push", 200, 7),
    ]


def test_a_first_transmission_has_no_cause_and_a_repeat_without_one_is_unknown() -> None:
    rows = [
        total(TraceEvent.PACKET_SENT, repeated=True),
        total(TraceEvent.PACKET_SENT, n=3),
        total(TraceEvent.PACKET_SENT, n=4),
        total(TraceEvent.PACKET_SENT, numbered=False),
    ]
    found = [(row["cause"], row["packets"], row["bytes"]) for row in tables.retransmissions(rows)]
    assert found == [(None, 7, 20), ("unknown", 1, 10)]


def test_a_bucket_in_which_nothing_was_sent_has_a_row() -> None:
    rows = [
        total(TraceEvent.FAULT_INJECTED, bucket=2, numbered=False),
        total(TraceEvent.PACKET_RECEIVED),
        total(TraceEvent.PACKET_SENT, repeated=True),
        total(TraceEvent.PACKET_SENT),
    ]
    assert tables.goodput_over_time(rows) == [
        {"bucket": 0, "sent_bytes": 20, "first_bytes": 10, "received_bytes": 10},
        {"bucket": 2, "sent_bytes": 0, "first_bytes": 0, "received_bytes": 0},
    ]


@pytest.mark.parametrize(
    ("counts", "p", "r", "burst_ratio"),
    [
        ((None, None, None, None), None, None, None),
        ((10, 0, 0, 0), 0.0, None, None),
        ((95, 5, 5, 5), 0.05, 0.5, (1 - 0.05 / 0.55) / 0.5),
        ((0, 0, 0, 3), None, 0.0, None),
    ],
)
def test_a_model_is_fitted_as_far_as_the_losses_allow(
    counts: tuple[int | None, ...], p: float | None, r: float | None, burst_ratio: float | None
) -> None:
    fit = tables.fitted(dict(zip(("n00", "n01", "n10", "n11"), counts, strict=True)))
    assert (fit["p"], fit["r"]) == (p, r)
    assert fit["burst_ratio"] == (burst_ratio if burst_ratio is None else pytest.approx(burst_ratio))


def test_there_is_no_round_trip_without_samples() -> None:
    assert tables.trips_of_all([], "trip")["samples"] == 0
    assert tables.trips_over_time([]) == []
    assert tables.trip_values([{"of": "trip", "us": 4, "rto_over_us": None, "n": 2}]) == [
        {"of": "trip", "class": 4, "n": 2}
    ]


def test_the_kinds_of_samples_share_a_row_for_each_time() -> None:
    rows: list[dict[str, Any]] = [
        {"of": "trip", "bucket": 1, "us": [5, 6, 7], "rto": [None]},
        {"of": "receipt", "bucket": 1, "us": [2, 3, 4], "rto": [9]},
        {"of": "receipt", "bucket": None, "us": [2, 3, 4], "rto": [9]},
        {"of": "receipt", "bucket": 0, "us": [1, 1, 1], "rto": [8]},
    ]
    assert tables.trips_over_time(rows) == [
        {"bucket": 0, "trip_us_p50": None, "trip_us_p99": None, "receipt_us_p50": 1, "rto_us_p50": 8},
        {"bucket": 1, "trip_us_p50": 5, "trip_us_p99": 7, "receipt_us_p50": 2, "rto_us_p50": 9},
    ]
