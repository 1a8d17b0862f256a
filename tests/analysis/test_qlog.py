"""Traces as qlog: a sequence of JSON texts for each node, in qlog's names where qlog has them."""

from pathlib import Path

import msgspec

from tunnel.analysis.qlog import export, qlog_event
from tunnel.traces import TraceCause, TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter
from tunnel.traces.writer import TraceWriter


def test_a_packet_has_the_fields_of_the_draft() -> None:
    record = TraceRecord(
        time_us=1500, node="a", event=TraceEvent.PACKET_SENT, connection=255, packet_type=4, sequence=7, size_bytes=99,
        cause=TraceCause.PTO_PROBE, srtt_us=2500, carrier="link", writer="w", number=3,
    )  # fmt: skip
    assert qlog_event(record) == {
        "time": 1.5,
        "name": "quic:packet_sent",
        "group_id": "000000ff",
        "data": {
            "header": {"packet_type": 4, "packet_number": 7},
            "raw": {"length": 99},
            "trigger": "pto_probe",
            "smoothed_rtt": 2.5,
            "carrier": "link",
        },
    }


def test_our_own_events_have_their_own_namespace() -> None:
    record = TraceRecord(time_us=0, node="a", event=TraceEvent.BATCH_SENT, batch=1)
    assert qlog_event(record) == {"time": 0.0, "name": "tunnel:batch_sent", "data": {"batch": 1}}


def test_every_node_gets_a_file(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "in") as trace:
        for node in ("client", "relay/1", "client"):
            trace(TraceRecord(time_us=1, node=node, event=TraceEvent.ATTACHED))
    with JsonLinesWriter(tmp_path / "in" / "b.jsonl") as plain:
        plain(TraceRecord(time_us=1, node="client", event=TraceEvent.DETACHED))
    (tmp_path / "in" / "c.jsonl").write_text('{"version":99}\n')
    files = export(tmp_path / "in", tmp_path / "out")
    assert sorted(path.name for path in files) == ["client.sqlog", "relay_1.sqlog"]
    texts = [msgspec.json.decode(text) for text in (tmp_path / "out" / "client.sqlog").read_bytes().split(b"\x1e")[1:]]
    assert texts[0]["file_schema"] == "urn:ietf:params:qlog:file:sequential"
    assert [text["name"] for text in texts[1:]] == ["tunnel:detached", "tunnel:attached", "tunnel:attached"]


def test_the_remains_of_a_dead_process_are_exported_up_to_the_last_whole_frame(tmp_path: Path) -> None:
    with TraceWriter(tmp_path / "in") as trace:
        trace(TraceRecord(time_us=1, node="client", event=TraceEvent.ATTACHED))
    (path,) = (tmp_path / "in").iterdir()
    (tmp_path / "in" / f"_{path.name}").write_bytes(path.read_bytes() + b"\x28\xb5\x2f\xfdcut")
    path.unlink()
    (file,) = export(tmp_path / "in", tmp_path / "out")
    assert b"tunnel:attached" in file.read_bytes()
