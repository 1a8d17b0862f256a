"""The analysis compared with runs whose faults are all known, and with a second way to compute its results."""

import math
from collections import defaultdict
from itertools import pairwise
from pathlib import Path

import pytest

from tests.analysis.job import Found
from tests.analysis.recount import recount
from tests.analysis.truth import BURST_BEGINS, BURST_ENDS
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import read_trace

pytestmark = pytest.mark.timeout(1600)

NUMBERED = {4, 5, 10, 13}


@pytest.fixture(scope="module")
def records(job_directory: Path) -> list[TraceRecord]:
    return [record for path in sorted((job_directory / "truth").glob("*.zst")) for record in read_trace(path)]


def attempts_of(records: list[TraceRecord], event: TraceEvent) -> dict[tuple[int, int], set[int]]:
    """Return the attempts of each packet, by the sender's id and the packet's number."""
    found: dict[tuple[int, int], set[int]] = defaultdict(set)
    for record in records:
        if record.event == event and record.packet_type in NUMBERED:
            stream = record.connection if event == TraceEvent.PACKET_SENT else record.peer
            found[stream, record.sequence].add(record.attempt)
    return found


def test_exactly_the_injected_losses_are_found(found: Found) -> None:
    assert len(found.injected) > 200
    assert sorted(found.lost) == sorted(found.injected)


def test_lost_repeats_are_counted_too(found: Found) -> None:
    assert found.injected_again > 0
    assert found.truth.totals["lost"] == len(found.injected) + found.injected_again


def test_losses_are_classified_by_their_place(found: Found) -> None:
    (stage,) = found.truth.loss_stages
    assert stage["stage"] == "after the relay had it"
    assert stage["packets"] == len(found.injected)
    assert stage["never_arrived"] == 0


def test_the_fitted_gilbert_model_is_the_injected_one(found: Found) -> None:
    fit = found.truth.gilbert
    # The bounds are three standard deviations of a share.
    assert abs(fit["p"] - BURST_BEGINS) < 3 * math.sqrt(BURST_BEGINS / (fit["n00"] + fit["n01"]))
    assert abs(fit["r"] - BURST_ENDS) < 3 * math.sqrt(BURST_ENDS * (1 - BURST_ENDS) / (fit["n10"] + fit["n11"]))
    assert fit["mean_burst"] == pytest.approx(1 / fit["r"])
    assert sum(row["length"] * row["bursts"] for row in found.truth.bursts) == len(found.injected)


def test_transitions_agree_with_a_count_by_hand(found: Found, records: list[TraceRecord]) -> None:
    """They agree also where the packets' numbers wrap to 0: each stream here begins not far below 2**32."""
    sent, received = attempts_of(records, TraceEvent.PACKET_SENT), attempts_of(records, TraceEvent.PACKET_RECEIVED)
    order: dict[int, list[int]] = defaultdict(list)
    for record in records:
        if record.event == TraceEvent.PACKET_SENT and record.packet_type in NUMBERED and not record.attempt:
            order[record.connection].append(record.sequence)
    assert any(numbers != sorted(numbers) for numbers in order.values())
    counted = {(before, now): 0 for before in (False, True) for now in (False, True)}
    for stream, numbers in order.items():
        lost = [0 not in received[stream, number] for number in numbers]
        for before, now in pairwise(lost):
            counted[before, now] += 1
    fit = found.truth.gilbert
    assert [fit["n00"], fit["n01"], fit["n10"], fit["n11"]] == list(counted.values())
    assert found.truth.totals["packets"] == sum(map(len, sent.values()))


def test_needless_repeats_agree_with_a_count_by_hand(found: Found, records: list[TraceRecord]) -> None:
    sent, received = attempts_of(records, TraceEvent.PACKET_SENT), attempts_of(records, TraceEvent.PACKET_RECEIVED)
    needless = sum(
        1 for packet, attempts in sent.items() for attempt in attempts if any(a < attempt for a in received[packet])
    )
    reported = {
        (record.connection, record.sequence)
        for record in records
        if record.event == TraceEvent.SPURIOUS_RETRANSMIT and record.packet_type in NUMBERED
    }
    assert needless > 0
    assert found.truth.totals["needless"] == needless
    assert sum(row["needless"] for row in found.truth.spurious) == needless
    assert sum(row["hits"] + row["false_alarms"] for row in found.truth.spurious) == len(reported)


def test_waiting_for_a_gap_to_fill_agrees_with_a_replay(found: Found, records: list[TraceRecord]) -> None:
    arrived: dict[int, dict[int, int]] = defaultdict(dict)
    begins: dict[int, int] = {}
    for record in records:
        if record.packet_type not in NUMBERED:
            continue
        if record.event == TraceEvent.PACKET_SENT:
            begins.setdefault(record.connection, record.sequence)
        elif record.event == TraceEvent.PACKET_RECEIVED:
            arrived[record.peer].setdefault((record.sequence - begins[record.peer]) % 2**32, record.time_us)
    waited = 0
    for times in arrived.values():
        latest = 0
        for position in sorted(times):
            latest = max(latest, times[position])
            waited += latest > times[position]
    assert found.truth.totals["waited"] == waited > 0


def test_exchange_faults_are_seen_as_failed_exchanges(found: Found) -> None:
    struck = sum(found.strikes.values())
    failed = sum(row["n"] for row in found.truth.exchanges if row["event"] == "exchange_failed")
    found_faults = {row["cause"]: row["n"] for row in found.truth.faults}
    assert struck > 0
    assert failed == struck
    assert found_faults.pop("packet_dropped") == len(found.injected) + found.injected_again
    assert sum(found_faults.values()) == struck


def test_the_faults_of_a_real_proxy_are_found(found: Found) -> None:
    """Each request or response that the proxy lost is an exchange that failed, or was abandoned before it failed."""
    found_faults = {row["cause"]: row["n"] for row in found.proxied_faults}
    assert found_faults == {
        "request_lost": found.proxied["drop_request"],
        "response_lost": found.proxied["drop_response"],
    }
    ends = {"exchange_failed": 0, "exchange_abandoned": 0}
    for row in found.proxied_exchanges:
        if row["event"] in ends:
            ends[row["event"]] += row["n"]
    injected = sum(found_faults.values())
    assert ends["exchange_failed"] <= injected <= ends["exchange_failed"] + ends["exchange_abandoned"]


def test_stalls_have_causes_that_include_the_injected_ones(found: Found) -> None:
    causes = {row["why"] for row in found.truth.stalls}
    assert {"loss", "carrier_http"} <= causes
    assert all(row["gap_us"] > 0 for row in found.truth.longest_stalls)


def test_nothing_is_missing_from_the_trace(found: Found) -> None:
    assert [(row["dropped"], row["missing"]) for row in found.truth.writers] == [(0, 0)]
    assert found.truth.problems == []


def test_every_byte_written_is_delivered_and_repeats_add_only_to_the_bytes_sent(found: Found) -> None:
    bytes_of = {row["cause"]: row["bytes"] for row in found.truth.moved}
    assert bytes_of["network_to_transport"] == bytes_of["transport_to_application"] == 12 * 600_000
    assert bytes_of["transport_to_network"] > bytes_of["application_to_transport"] == 12 * 600_000


def test_every_stream_is_found_and_the_figures_add_up(found: Found) -> None:
    assert len(found.streams) == found.truth.totals["streams"] == 24
    assert sum(row["lost"] for row in found.streams) == found.truth.totals["lost"]
    assert all(row["both_ends"] for row in found.streams)
    for kind, times in (("trip", found.truth.trips), ("receipt", found.truth.receipts)):
        assert times["samples"] == sum(row["n"] for row in found.truth.trip_values if row["of"] == kind) > 0
        known = [us for us in (times["us_min"], *times["us"]) if us is not None]  # no 99th percentile of few samples
        assert known == sorted(known)
        assert len(known) >= 3


def test_round_trips_keep_to_bounds_that_are_counted_by_hand(found: Found, records: list[TraceRecord]) -> None:
    """There are no more samples than acknowledged packets that were sent once; none is shorter than the path."""
    sent: dict[tuple[int, int], list[int]] = defaultdict(list)
    for record in records:
        if record.event == TraceEvent.PACKET_SENT and record.packet_type in NUMBERED:
            sent[record.connection, record.sequence].append(record.time_us)
    acked: dict[tuple[int, int], int] = {}
    for record in sorted(records, key=lambda record: record.time_us):
        if record.event == TraceEvent.PACKETS_ACKED:
            acked.setdefault((record.connection, record.sequence), record.time_us)
    possible = [us - sent[packet][0] for packet, us in acked.items() if len(sent[packet]) == 1]
    trips = found.truth.trips
    assert 0 < trips["samples"] <= len(possible)
    assert min(possible) <= trips["us_min"]
    assert trips["us_min"] >= 40_000  # the round trip of the path


def test_as_many_round_trips_are_measured_as_plain_python_counts(found: Found, job_directory: Path) -> None:
    """Each stream begins with an acknowledgement of the answer to CONNECT, which stands below its first packet."""
    counted = recount(job_directory / "truth")
    assert found.truth.trips["samples"] == len(counted.trips)
    assert found.truth.trips["us_min"] == min(counted.trips)
