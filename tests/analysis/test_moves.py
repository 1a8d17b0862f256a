"""Moves of connections between relays, as reports, one connection's answer and qlog show them."""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.analysis.engines import analysis_of, duckdb
from tests.analysis.job import Found
from tests.analysis.moved import CONNECTIONS, RELAYS
from tests.analysis.recount import TOTALS, Recount, recount
from tunnel.analysis.answers.one_connection import lines_of
from tunnel.analysis.cli import main
from tunnel.analysis.page.data import streams_of
from tunnel.analysis.page.report import render
from tunnel.analysis.qlog import qlog_event
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import explained_us, life_us, main_place
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter, read_trace
from tunnel.traces.record import TraceCause
from tunnel.traces.writer import TraceWriter
from tunnel.wire import PacketType

BEGIN_US = 10_000_000
MOVE = "http://a -> http://b"


def moved(t: int, node: str, number: int, peer: int, cause: str, text: str = MOVE) -> TraceRecord:
    event = TraceEvent.CONNECTION_MOVED
    return TraceRecord(
        time_us=BEGIN_US + t, node=node, event=event, connection=number, peer=peer, cause=cause, text=text
    )


@pytest.fixture
def traces(tmp_path: Path) -> Path:
    """Connection 1 of a client goes to another relay, where its ends are other nodes; connection 2 stays."""
    directory = tmp_path / "traces"
    with TraceWriter(directory, name="all") as trace:
        for number in (1, 2):
            for at in range(10):
                has_moved = number == 1 and at > 5
                sent: dict[str, Any] = {"packet_type": PacketType.DATA, "sequence": at, "size_bytes": 124}
                t, there = BEGIN_US + at * 50_000, "-b" if has_moved else "-a"
                ends: dict[str, Any] = {"connection": number, "peer": 100 + number}
                back: dict[str, Any] = {"connection": 100 + number, "peer": number}
                trace(TraceRecord(time_us=t, node=f"client{there}", event=TraceEvent.PACKET_SENT, **ends, **sent))
                trace(
                    TraceRecord(
                        time_us=t + 5_000, node=f"exit{there}", event=TraceEvent.PACKET_RECEIVED, **back, **sent
                    )
                )
        trace(moved(270_000, "exit-b", 101, 1, TraceCause.PEER_MOVED))
        trace(moved(280_000, "client-b", 1, 101, TraceCause.RELAY_DRAINED))
    return directory


def told(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    capsys.readouterr()
    assert main([*arguments]) == 0
    return capsys.readouterr().out


def test_a_report_lists_the_moves_of_both_ends(
    traces: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page, tables = tmp_path / "report.html", ["--tables", str(tmp_path / "t")]
    found = json.loads(told(capsys, "report", str(traces), "-o", str(page), "--json", *tables))
    assert found["moves_by_cause"] == {"peer_moved": 1, "relay_drained": 1}
    assert [(row["id"], row["other"], row["node"], row["relays"], row["why"]) for row in found["moves"]] == [
        (101, 1, "exit-b", MOVE, "peer_moved"),
        (1, 101, "client-b", MOVE, "relay_drained"),
    ]
    text = page.read_text()
    assert "Moves to other relays" in text
    assert "http://a -&gt; http://b" in text
    lines = told(capsys, "connection", str(traces), "1", *tables).splitlines()
    titles = next(number for number, line in enumerate(lines) if line.startswith("moved at"))
    assert [line.split()[2:] for line in lines[titles + 1 : titles + 3]] == [
        ["00000065", "exit-b", *MOVE.split(), "peer", "moved", *"the end that opened the connection moved it".split()],
        ["00000001", "client-b", *MOVE.split(), "relay", "drained", *"its relay was about to stop".split()],
    ]
    assert "moved at" not in told(capsys, "connection", str(traces), "2", *tables)


def test_more_moves_than_are_listed_are_counted() -> None:
    move = {"t": 5, "id": 7, "other": 8, "node": "<b>", "relays": MOVE, "why": "new cause"}
    text = render(Analysis(moves=[move], moves_by_cause={"new cause": 3000}), "t")
    assert "The first 1 of 3,000." in text
    assert "&lt;b&gt;" in text
    assert "new cause" in "\n".join(lines_of(Analysis(moves=[move], moves_by_cause={"new cause": 1})))


def test_qlog_has_the_move_in_a_namespace_of_ours() -> None:
    event = qlog_event(moved(0, "client", 1, 101, TraceCause.RELAY_SILENT))
    assert event["name"] == "tunnel:connection_moved"
    assert event["group_id"] == "00000001"
    assert event["data"] == {"peer": 101, "trigger": "relay_silent", "text": MOVE}


@pytest.fixture(scope="module")
def counted(job_directory: Path) -> Recount:
    return recount(job_directory / "moves")


@pytest.mark.timeout(1600)
def test_every_move_of_a_run_is_listed(found: Found, job_directory: Path) -> None:
    """Both ends of each connection record it."""
    records = [each for path in (job_directory / "moves").glob("*.zst") for each in read_trace(path)]
    moves = [each for each in records if each.event == TraceEvent.CONNECTION_MOVED]
    assert len(moves) == 2 * CONNECTIONS * (RELAYS - 1)
    assert found.moves.moves_by_cause == Counter(each.cause for each in moves)
    listed = sorted((row["id"], row["other"], row["node"], row["relays"], row["why"]) for row in found.moves.moves)
    assert listed == sorted((each.connection, each.peer, each.node, each.text, each.cause) for each in moves)


@pytest.mark.timeout(1600)
@pytest.mark.parametrize("name", TOTALS)
def test_a_stream_that_moved_is_counted_once(found: Found, counted: Recount, name: str) -> None:
    assert found.moves.totals[name] == getattr(counted, name)


@pytest.mark.timeout(1600)
def test_the_life_of_a_stream_that_moved_is_counted_once(found: Found, counted: Recount) -> None:
    """Its ends at each relay are other nodes."""
    assert life_us(found.moves) == counted.life_us
    assert found.moves.life["asked_us"] == counted.asked_us
    assert counted.asked_us + found.moves.life["asked_stalled_us"] <= counted.asked_most_us
    expected_us = counted.limited_us + counted.stalled_us + counted.unread_us - counted.unread_limited_us
    assert explained_us(found.moves) == expected_us


STEP_US = 10_000  # from a packet to its acknowledgement, and on to the next packet
AWAY_US = 3_000_000
LATE_US = 1_000_000


@pytest.fixture(scope="module")
def troubled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A connection is stalled at relay a, which goes away, and moves to relay b, which then is late once."""
    directory = tmp_path_factory.mktemp("relays")
    at: dict[str, Any] = {"connection": 1, "peer": 101}
    state: dict[str, Any] = {"in_flight_bytes": 100, "srtt_us": STEP_US, "rto_us": 5 * STEP_US, "window_bytes": 65_536}
    data: dict[str, Any] = {"packet_type": PacketType.DATA, "size_bytes": 124}
    with contextlib.ExitStack() as stack:
        writers = {
            name: stack.enter_context(JsonLinesWriter(directory / f"{name}.jsonl"))
            for name in ("client", "exit", "relay")
        }

        def tell(t: int, node: str, event: TraceEvent, **fields: Any) -> None:
            writers[node.split("-")[0]](TraceRecord(time_us=BEGIN_US + t, node=node, event=event, **fields))

        def transfer(t: int, place: str, sequence: int, *, late_us: int = 0, attempt: int = 0, cause: str = "") -> int:
            """Send a packet at a relay, let it be acknowledged, and return that time."""
            sent = data | {"sequence": sequence, "attempt": attempt, "cause": cause}
            tell(t, f"client-{place}", TraceEvent.PACKET_SENT, **at, **sent, **state)
            tell(t, f"exit-{place}", TraceEvent.PACKET_RECEIVED, connection=101, peer=1, **sent)
            t += STEP_US + late_us
            acked = {"sequence": sequence, "count": 1, "rtt_us": STEP_US + late_us}
            tell(t, f"client-{place}", TraceEvent.PACKETS_ACKED, **at, **acked, **state)
            return t

        for place in "ab":
            tell(0, f"client-{place}", TraceEvent.ATTACHED, text=f"http://{place}")
        asked = state | {"in_flight_bytes": 0, "packet_type": PacketType.CONNECT, "size_bytes": 91}
        tell(0, "client-a", TraceEvent.PACKET_SENT, **at, **asked)
        tell(0, "relay-a", TraceEvent.ROUTE_BOUND, **at)
        t = STEP_US
        tell(t, "client-a", TraceEvent.PACKET_RECEIVED, packet_type=PacketType.ACCEPTED, size_bytes=91, **at)
        for sequence in range(10):
            t = transfer(t, "a", sequence)
        tell(t, "client-a", TraceEvent.PACKET_SENT, **at, sequence=10, **data, **state)
        tell(t + STEP_US, "client-a", TraceEvent.DETACHED)
        t += AWAY_US
        tell(t, "relay-b", TraceEvent.ROUTE_BOUND, **at)
        writers["client"](moved(t, "client-b", 1, 101, TraceCause.RELAY_SILENT))
        t = transfer(t, "b", 10, attempt=1, cause=TraceCause.RETRANSMIT_TIMEOUT)
        for sequence in range(11, 41):
            t = transfer(t, "b", sequence)
        t = transfer(t, "b", 41, late_us=LATE_US)
        tell(t, "relay-b", TraceEvent.LOOP_LAG, latency_us=LATE_US)
        tell(t, "client-b", TraceEvent.CONNECTION_CLOSED, **at)
    return directory


@pytest.fixture(scope="module")
def of_troubled_relays(troubled: Path) -> Analysis:
    with duckdb() as engine:
        return analysis_of(engine, troubled, troubled / "_tables")


def test_a_stall_that_ends_at_another_relay_belongs_to_the_one_where_it_began(of_troubled_relays: Analysis) -> None:
    longest = of_troubled_relays.longest_stalls[0]
    assert (longest["node"], longest["why"], longest["gap_us"]) == ("client-a", "carrier_http", AWAY_US)
    assert _times(of_troubled_relays, "stall")["http://a"] == {"carrier_http": AWAY_US}
    place = main_place(of_troubled_relays, "http")
    assert place is not None
    assert (place.side, place.name) == ("relay", "http://a")
    assert place.share > 0.9  # the round trips at the other relay, too, are taken for the HTTP path's


def test_the_time_with_a_limit_belongs_to_the_relay_where_it_was(of_troubled_relays: Analysis) -> None:
    times = _times(of_troubled_relays, "limit")
    assert times["http://a"] == {"connecting": STEP_US, "awaiting": 10 * STEP_US}
    assert times["http://b"] == {"awaiting": 31 * STEP_US}
    assert sum(sum(of.values()) for of in times.values()) == sum(
        of_troubled_relays.limits[name] for name in ("connecting", "awaiting")
    )


def test_a_relay_to_which_a_connection_moved_may_be_late(of_troubled_relays: Analysis) -> None:
    """Its route is bound long after CONNECT was answered, which says nothing of its clock."""
    assert _times(of_troubled_relays, "stall")["http://b"] == {"relay_loop_lag": LATE_US + STEP_US}


def test_the_page_finds_a_connection_under_each_relay_where_it_was(of_troubled_relays: Analysis) -> None:
    (stream,) = streams_of(of_troubled_relays)
    assert stream["relays"] == ["http://a", "http://b"]
    assert stream["nodes"] == ["client-a", "client-b", "exit-a", "exit-b"]


def test_a_report_on_either_relay_has_the_whole_connection(
    of_troubled_relays: Analysis, troubled: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for relay in ("http://a", "http://b"):
        page = str(tmp_path / "report.html")
        found = json.loads(told(capsys, "report", str(troubled), "-o", page, "--json", "--relay", relay))
        assert found["totals"]["packets"] == of_troubled_relays.totals["packets"]


def _times(of: Analysis, what: str) -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = {}
    for row in of.places:
        if (row["side"], row["of"]) == ("relay", what):
            found.setdefault(row["place"], {})[row["name"]] = row["us"]
    return found
