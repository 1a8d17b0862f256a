"""What the trace does not tell is said to be unknown: it is neither a loss nor a stall."""

from pathlib import Path
from typing import Any

import pytest

from tests.analysis.ends import BYTES, CUT, ENDS, PACKETS, PAYLOAD, RECEIPT_US, TRIP_US, stream_of
from tests.analysis.engines import analysis_of, duckdb
from tests.analysis.job import Found
from tunnel.analysis.page.figures import key_figures
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.verdict import verdict
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter

pytestmark = pytest.mark.timeout(1600)

IDS = {ends.name: stream_of(ends) for ends in ENDS}


@pytest.fixture
def rows(found: Found) -> dict[str, dict[str, Any]]:
    by_id = {row["stream"]: row for row in found.ends}
    return {name: by_id[number] for name, number in IDS.items()}


def test_both_ends_has_three_values(rows: dict[str, dict[str, Any]]) -> None:
    assert {name: row["both_ends"] for name, row in rows.items()} == {
        "whole": True,
        "receiver cut": True,
        "receiver cut and no acknowledgements": True,
        "receiver dropped records": True,
        "sender cut": True,
        "sender alone": False,
        "sender alone, with repeats": False,
        "receiver alone": False,
        "nothing acknowledged": None,
        "nothing arrived": None,
        "receiver killed": True,
        "one at a time": True,
        "given up": True,
    }


def test_records_that_are_missing_are_no_losses(rows: dict[str, dict[str, Any]]) -> None:
    lost = {name: (row["lost"], row["never_arrived"]) for name, row in rows.items()}
    known = {"whole": (2, 0), "receiver cut": (1, 0), "receiver cut and no acknowledgements": (1, 0)}
    assert lost == dict.fromkeys(rows, (0, 0)) | known | {"given up": (3_000, 1_000)}


def test_repeated_packets_that_never_arrive_are_lost_and_not_on_their_way(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["given up"]
    assert (row["open_packets"], row["in_doubt"], row["judged"]) == (0, 0, 4_000)


def test_an_acknowledgement_proves_that_a_packet_arrived(rows: dict[str, dict[str, Any]]) -> None:
    assert rows["receiver cut"]["in_doubt"] == 0
    assert rows["receiver cut"]["judged"] == PACKETS + 1
    names = ("whole", "receiver cut", "sender cut", "sender alone", "sender alone, with repeats", "receiver alone")
    assert {rows[name]["payload_bytes"] for name in names} == {BYTES}


def test_packets_that_may_have_arrived_while_records_were_lost_are_in_doubt(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["receiver cut and no acknowledgements"]
    assert (row["in_doubt"], row["judged"]) == (CUT, PACKETS - CUT + 1)
    assert rows["receiver dropped records"]["in_doubt"] == CUT


def test_packets_after_the_end_of_the_receivers_trace_are_open(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["receiver killed"]
    assert (row["open_packets"], row["judged"]) == (1_000, 1_000)
    assert row["payload_bytes"] == 1_000 * PAYLOAD


def test_no_packet_is_judged_if_only_one_end_was_traced(rows: dict[str, dict[str, Any]]) -> None:
    for name in ("sender alone", "sender alone, with repeats", "receiver alone", "nothing acknowledged"):
        assert not rows[name]["judged"]
        assert not rows[name]["judged_repeats"]


def test_no_more_arrives_than_was_sent(rows: dict[str, dict[str, Any]]) -> None:
    for row in rows.values():
        assert (row["useful_bytes"] or 0) <= (row["known_bytes"] or 0) <= row["bytes"]


def test_a_round_trip_lasts_from_sending_to_acknowledgement(rows: dict[str, dict[str, Any]]) -> None:
    for name in ("whole", "sender alone", "one at a time"):
        assert rows[name]["trip_us_p50"] == TRIP_US
        assert rows[name]["receipt_us_p50"] == RECEIPT_US
    assert rows["whole"]["trips"] >= PACKETS - 1_000
    assert rows["receiver alone"]["trip_us_p50"] is None


def test_waiting_for_an_acknowledgement_on_a_long_path_is_no_stall(found: Found) -> None:
    assert IDS["one at a time"] not in {stream for stream, _ in found.ends_stalls}


def test_a_silence_of_the_senders_trace_is_no_stall(found: Found) -> None:
    assert IDS["sender cut"] not in {stream for stream, _ in found.ends_stalls}


def test_a_simulated_path_of_300_ms_shows_round_trips_of_300_ms(found: Found) -> None:
    (row,) = [row for row in found.ends if row["stream"] not in IDS.values() and row["payload_bytes"] > 300_000]
    assert row["trips"] > 0
    assert row["trip_us_p50"] >= 300_000 > row["receipt_us_p50"]


def shown(of: Analysis) -> dict[str, tuple[str, str]]:
    return {name: (value, what) for name, value, what in key_figures(of)}


def test_the_page_of_a_sender_alone_says_what_it_does_not_know(found: Found, job_directory: Path) -> None:
    figures = shown(found.alone)
    assert figures["Loss"][0] == figures["Needless repeats"][0] == "–"
    assert figures["Efficiency"][0] == "99.95 %"
    assert "0 of them traced at both ends, 1 at one end" in figures["Streams"][1]
    text = " ".join(verdict(found.alone))
    assert "No stream was traced at both ends, so the trace does not tell which transmissions were lost" in text
    assert "Every packet" not in text
    assert "No transmission was lost" not in text
    assert "No stream was traced at both ends" in (job_directory / "alone.html").read_text()


def test_goodput_is_payload_over_the_time_in_which_a_sender_was_busy(found: Found) -> None:
    totals = found.alone.totals
    assert totals["payload_bytes"] == BYTES
    # two halves of 1,000 packets, and a round trip after each
    assert totals["busy_us"] == 2 * (999_000 + TRIP_US)
    value, what = shown(found.alone)["Goodput"]
    assert value == "616 kbit/s"
    assert "over the whole trace: 25.7 kbit/s" in what


def test_the_page_of_a_receiver_alone_claims_nothing_of_its_sender(rows: dict[str, dict[str, Any]]) -> None:
    row = rows["receiver alone"]
    ends = {"streams": 1, "both_ends": 0, "one_end": 1, "unknown_ends": 0, "busy_us": 0, "duration_us": 0}
    of = Analysis(totals={name: value or 0 for name, value in row.items()} | ends, end_us=1_000_000)
    figures = shown(of)
    unknown = ("Efficiency", "Repeats", "Needless repeats", "Loss", "Round trip", "Stalled")
    assert {figures[name][0] for name in unknown} == {"–"}
    assert figures["Goodput"][0] == "1.6 Mbit/s"
    assert "senders of the streams were not traced" in verdict(of)[0]


def test_numbers_below_the_first_one_by_time_have_round_trips_too(tmp_path: Path) -> None:
    """As where the clock stepped back, or where the trace begins before older packets are sent again."""
    path = tmp_path / "traces" / "a.jsonl"
    path.parent.mkdir()
    ends: dict[str, Any] = {"node": "client", "connection": 1, "peer": 2}
    with JsonLinesWriter(path) as trace:
        for number in range(40):
            t = 10_000_000 + number * 50_000 - (5_000_000 if number >= 20 else 0)
            packet: dict[str, Any] = {"sequence": number, "size_bytes": 124, "rto_us": 200_000}
            trace(TraceRecord(time_us=t, event=TraceEvent.PACKET_SENT, packet_type=4, **packet, **ends))
            trace(TraceRecord(time_us=t + 10_000, event=TraceEvent.PACKETS_ACKED, count=1, **packet, **ends))
    with duckdb() as engine:
        result = analysis_of(engine, path.parent, tmp_path / "tables")
    assert result.trips["samples"] == 40
    assert result.totals["one_end"] == 1
