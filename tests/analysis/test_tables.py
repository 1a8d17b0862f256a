"""Small tables without Spark: how they treat rows that are missing, unknown or equal."""

from typing import Any

import pytest

from tunnel.analysis.results import tables
from tunnel.traces import TraceEvent


def detail(of: str, name: str, **changes: Any) -> dict[str, Any]:
    empty = {
        "event": "",
        "status": 0,
        "place": "",
        "n": 1,
        "bytes": 0,
        "latency_us_p50": 5,
        "latency_us_p99": 9,
        "latency_us_max": 9,
    }
    return {"of": of, "name": name, **empty, **changes}


def total(event: TraceEvent, **changes: Any) -> dict[str, Any]:
    empty = {"relay": "", "carrier": "poll", "bucket": 0, "cause": "", "numbered": True, "repeated": False}
    return {"event": event, "n": 1, "bytes": 10, "counted": 0, **empty, **changes}


def test_details_are_sorted_into_their_tables() -> None:
    rows = [
        detail("timer", "pto"),
        detail("batch", "", place="link", event="batch_receipted"),
        detail("exchange", "push", event="exchange_answered", status=200, bytes=7),
        detail("exchange", "pull", event="exchange_failed"),
        detail("timer", "ack"),
        detail("timer", "rto", n=2),
    ]
    assert [row["timer"] for row in tables.timers(rows)] == ["rto", "ack", "pto"]
    assert [(row["carrier"], row["latency_us_p50"]) for row in tables.batches(rows)] == [("link", 5)]
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
    assert tables.trip_values([{"of": "trip", "us_class": 4, "rto_class": None, "samples": 2}]) == [
        {"of": "trip", "class": 4, "n": 2}
    ]


def test_the_kinds_of_samples_share_a_row_for_each_time() -> None:
    rows: list[dict[str, Any]] = [
        {"of": "trip", "bucket": 1, "us_p50": 5, "us_p99": 7, "rto_us_p50": None},
        {"of": "receipt", "bucket": 1, "us_p50": 2, "us_p99": 4, "rto_us_p50": 9},
        {"of": "receipt", "bucket": None, "us_p50": 2, "us_p99": 4, "rto_us_p50": 9},
        {"of": "receipt", "bucket": 0, "us_p50": 1, "us_p99": 1, "rto_us_p50": 8},
    ]
    rows = [row | {"samples": 100, "rto_over_us_p99": None} for row in rows]
    assert tables.trips_over_time(rows) == [
        {"bucket": 0, "trip_us_p50": None, "trip_us_p99": None, "receipt_us_p50": 1, "rto_us_p50": 8},
        {"bucket": 1, "trip_us_p50": 5, "trip_us_p99": 7, "receipt_us_p50": 2, "rto_us_p50": 9},
    ]


def file_of(writer: str, **changes: Any) -> dict[str, Any]:
    return {"writer": writer, "events": 10, "last": 10, "dropped": None, "wall_us": None, **changes}


def test_records_are_missing_where_a_writer_counted_further_than_it_wrote() -> None:
    files = [
        file_of("b", events=4, last=10, dropped=3),
        file_of("a", events=10, last=10),
        file_of("b", events=5, last=12, dropped=2),
        file_of("a", events=10, last=9),  # a copy, so there are more events than numbers: none are missing
        file_of("", events=7),  # names no writer
        file_of("c", last=None),  # no record of it has a number
    ]
    assert tables.writers(files) == [
        {"writer": "a", "events": 20, "dropped": 0, "missing": 0},
        {"writer": "b", "events": 9, "dropped": 5, "missing": 3},
    ]


def test_the_wall_clock_of_a_writer_is_known_if_one_of_its_files_has_it() -> None:
    files = [
        file_of("a"),
        file_of("a", wall_us=5),
        file_of("a", wall_us=9),
        file_of("a", wall_us=7),
        file_of("b"),
        file_of("", wall_us=3),
    ]
    assert tables.walls(files) == {"a": 9, "b": None}


def test_absences_are_counted_and_attachments_are_not() -> None:
    rows = [detail("detached", "", n=2), detail("attached", "new", n=7), detail("detached", "", n=3)]
    assert tables.absences(rows) == 5
    assert tables.absences([]) == 0


def test_each_table_has_its_figures_in_order() -> None:
    rows = [
        detail("exchange", "push", event="exchange_sent", status=503, n=100, bytes=8),
        detail("exchange", "push", event="exchange_sent", status=200),
        detail("exchange", "push", event="exchange_answered", status=900),
        detail("batch", "", place="poll", event="batch_receipted", n=99),
        detail("batch", "", place="poll", event="batch_given_up"),
        detail("batch", "", place="link", event="batch_receipted"),
        detail("timer", "rto", n=300, latency_us_max=77),
    ]
    assert tables.exchanges(rows)[2] == {
        "kind": "push", "event": "exchange_sent", "status": 503, "n": 100, "bytes": 8,
        "latency_us_p50": 5, "latency_us_p99": 9,
    }  # fmt: skip
    assert [row["status"] for row in tables.exchanges(rows)] == [900, 200, 503]
    assert tables.batches(rows)[2] == {
        "carrier": "poll", "event": "batch_receipted", "n": 99, "latency_us_p50": 5, "latency_us_p99": None
    }  # fmt: skip
    assert [(row["carrier"], row["event"]) for row in tables.batches(rows)][:2] == [
        ("link", "batch_receipted"),
        ("poll", "batch_given_up"),
    ]
    assert tables.timers(rows) == [
        {"timer": "rto", "fired": 300, "lag_us_p50": 5, "lag_us_p99": 9, "lag_us_max": 77}
    ]  # fmt: skip


def test_retransmissions_are_told_apart_by_place_time_and_cause() -> None:
    rows = [
        total(TraceEvent.PACKET_SENT, repeated=True, cause="pto_probe", relay=relay, carrier=carrier, bucket=bucket)
        for relay in ("b", "a")
        for carrier in ("poll", "link")
        for bucket in (1, 0)
    ]
    rows += [total(TraceEvent.PACKET_SENT, relay="a", cause="ignored"), total(TraceEvent.PACKET_RECEIVED, relay="a")]
    rows += [total(TraceEvent.PACKET_SENT, relay="a", carrier="link", repeated=True, cause="loss", n=2, bytes=30)]
    found = tables.retransmissions(rows)
    assert found[:3] == [
        {"relay": "a", "carrier": "link", "bucket": 0, "cause": "loss", "packets": 2, "bytes": 30},
        {"relay": "a", "carrier": "link", "bucket": 0, "cause": "pto_probe", "packets": 1, "bytes": 10},
        {"relay": "a", "carrier": "link", "bucket": 1, "cause": "pto_probe", "packets": 1, "bytes": 10},
    ]
    assert [(row["relay"], row["carrier"], row["bucket"], row["cause"]) for row in found[3:]] == [
        ("a", "poll", 0, None),
        ("a", "poll", 0, "pto_probe"),
        ("a", "poll", 1, "pto_probe"),
        ("b", "link", 0, "pto_probe"),
        ("b", "link", 1, "pto_probe"),
        ("b", "poll", 0, "pto_probe"),
        ("b", "poll", 1, "pto_probe"),
    ]


def test_bytes_over_time_add_up() -> None:
    rows = [total(TraceEvent.PACKET_RECEIVED, bytes=size) for size in (3, 4)]
    rows += [total(TraceEvent.PACKET_RECEIVED, bytes=100, numbered=False)]
    rows += [total(TraceEvent.PACKET_SENT, bytes=size) for size in (5, 6)]
    assert tables.goodput_over_time(rows) == [{"bucket": 0, "sent_bytes": 11, "first_bytes": 11, "received_bytes": 7}]


def test_totals_and_faults_are_added_by_cause() -> None:
    rows = [
        total(TraceEvent.STREAM_DATA_MOVED, cause="y", n=2, bytes=5, counted=7),
        total(TraceEvent.STREAM_DATA_MOVED, cause="x"),
        total(TraceEvent.STREAM_DATA_MOVED, cause="y", n=1, bytes=1, counted=1),
        total(TraceEvent.FAULT_INJECTED, cause="b", n=2, bytes=9),
        total(TraceEvent.FAULT_INJECTED, cause="c"),
        total(TraceEvent.FAULT_INJECTED, cause="a", n=2),
    ]
    assert tables.moved(rows) == [
        {"cause": "x", "streams": 1, "bytes": 10, "packets": 0},
        {"cause": "y", "streams": 3, "bytes": 6, "packets": 8},
    ]
    assert tables.faults(rows) == [
        {"cause": "a", "n": 2, "bytes": 10},
        {"cause": "b", "n": 2, "bytes": 9},
        {"cause": "c", "n": 1, "bytes": 10},
    ]


def test_samples_are_counted_by_class_and_their_rto_ratios_only_where_known() -> None:
    rows = [
        {"of": "trip", "us_class": 4, "rto_class": None, "samples": 2},
        {"of": "receipt", "us_class": 4, "rto_class": 7, "samples": 3},
        {"of": "receipt", "us_class": 2, "rto_class": 7, "samples": 1},
        {"of": "receipt", "us_class": 4, "rto_class": 6, "samples": 5},
    ]
    assert tables.trip_values(rows) == [
        {"of": "receipt", "class": 2, "n": 1},
        {"of": "receipt", "class": 4, "n": 8},
        {"of": "rto_over_receipt", "class": 6, "n": 5},
        {"of": "rto_over_receipt", "class": 7, "n": 4},
        {"of": "trip", "class": 4, "n": 2},
    ]


def test_bursts_are_sorted_by_length_and_places_of_losses_by_their_packets() -> None:
    counts = {"bytes": 9, "never_arrived": 1}
    rows: list[dict[str, Any]] = [
        {"of": "burst", "key": 10, "stage": None, "packets": 1},
        {"of": "burst", "key": 2, "stage": None, "packets": 4},
        {"of": "stage", "key": None, "stage": "before", "packets": 2, **counts},
        {"of": "stage", "key": None, "stage": "after", "packets": 2, **counts},
        {"of": "stage", "key": None, "stage": "unknown", "packets": 3, **counts},
        {"of": "cause", "key": 1, "stage": None, "packets": 5},
    ]
    assert tables.bursts(rows) == [{"length": 2, "bursts": 4}, {"length": 10, "bursts": 1}]
    assert [row["stage"] for row in tables.loss_stages(rows)] == ["unknown", "after", "before"]
    assert tables.loss_stages(rows)[0] == {"stage": "unknown", "packets": 3, **counts}


def test_the_row_without_a_bucket_has_the_figures_of_all_samples() -> None:
    row: dict[str, Any] = {"us_min": 1, "us_p50": 1, "us_p95": 2, "us_p99": 3, "jitter_us": 4}
    row |= {"rto_us_p50": 5, "rto_over_us_p50": 0.5, "rto_over_us_p99": 9.5}
    rows: list[dict[str, Any]] = [
        {"of": "receipt", "bucket": None, "samples": 100, **row},
        {"of": "trip", "bucket": 0, "samples": 1, **row},
        {"of": "trip", "bucket": None, "samples": 99, **row},
    ]
    figures = {"us_min": 1, "us": [1, 2, 3], "jitter_us": 4}
    assert tables.trips_of_all(rows, "receipt") == {"samples": 100, **figures, "rto_over_us": [0.5, 9.5]}
    assert tables.trips_of_all(rows, "trip") == {"samples": 99, **figures, "us": [1, 2, None], "rto_over_us": None}
    nothing = dict.fromkeys(("us_min", "us", "jitter_us", "rto_over_us"))
    assert tables.trips_of_all(rows[:2], "trip") == {"samples": 0, **nothing}


def repair(key: object, **changes: Any) -> dict[str, Any]:
    empty = {
        "packets": 1,
        "attempts": 0,
        "needless": 0,
        "hits": 0,
        "false_alarms": 0,
        "missed": 0,
        "took_us_p50": 5,
        "took_us_p99": 9,
    }
    return {"of": "cause", "key": key, **empty, **changes}


def test_causes_with_repeats_have_a_rate_of_needless_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "CAUSES", [f"cause {key}" for key in range(4)])
    rows = [
        repair(1),
        repair(3, packets=4, attempts=8, needless=2, hits=3, false_alarms=1, missed=2),
        repair(2),
        repair(2, of="attempts"),
    ]
    nothing = {"attempts": 0, "needless": 0, "hits": 0, "false_alarms": 0, "missed": 0}
    assert tables.spurious(rows) == [
        {
            "cause": "cause 3", "packets": 4, "attempts": 8, "needless": 2, "hits": 3, "false_alarms": 1, "missed": 2,
            "rate": 0.25, "precision": 0.75, "recall": 0.6,
        },
        {"cause": "cause 1", "packets": 1, **nothing, "rate": None, "precision": None, "recall": None},
        {"cause": "cause 2", "packets": 1, **nothing, "rate": None, "precision": None, "recall": None},
    ]  # fmt: skip


def test_recovery_has_a_row_for_each_number_of_attempts() -> None:
    rows = [repair(3, of="attempts", packets=100), repair(2, of="attempts", took_us_p50=1, took_us_p99=2), repair(1)]
    assert tables.recovery(rows) == [
        {"attempts": 2, "packets": 1, "us_p50": 1, "us_p99": None},
        {"attempts": 3, "packets": 100, "us_p50": 5, "us_p99": 9},
    ]


def test_a_model_has_its_counts_the_share_of_losses_and_the_length_of_bursts() -> None:
    counts = {"n00": 95, "n01": 5, "n10": 5, "n11": 15}
    fit = tables.fitted(counts)
    assert {name: fit[name] for name in counts} == counts
    assert (fit["p"], fit["r"], fit["mean_burst"]) == (0.05, 0.25, 4.0)
    assert fit["loss"] == pytest.approx(1 / 6)
    assert fit["burst_ratio"] == pytest.approx(10 / 3)
    assert tables.fitted(dict.fromkeys(counts, 0))["mean_burst"] is None


def test_the_99th_percentile_of_fewer_than_100_samples_is_not_published() -> None:
    rows = [{"p": 7, "n": number} for number in (None, 0, 99, 100)]
    assert [row["p"] for row in tables.without_few(rows, "p", "n")] == [None, None, None, 7]


def test_processes_that_died_are_named_with_their_last_record_the_first_to_die_first() -> None:
    def file(name: str, writer: str, end_us: int | None, died: bool = False) -> dict[str, Any]:
        return {"file": name, "writer": writer, "end_us": end_us, "died": died}

    files = [
        file("b-1", "b", 30),
        file("_b-2", "b", 50),  # its process is gone
        file("a-1", "a", 60, died=True),  # another process repaired it and said so
        file("_c-1", "c", 70),  # still being written
        file("d-1", "d", None, died=True),  # no record of it can be read
        file("e-1", "e", 80),
    ]
    problems = [{"file": "_b-2", "problem": "died"}, {"file": "_c-1", "problem": "open"}]
    assert tables.deaths(files, problems) == [{"writer": "b", "end_us": 50}, {"writer": "a", "end_us": 60}]
