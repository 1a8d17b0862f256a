"""Traces as qlog: a sequence of JSON texts for each node, in qlog's names where qlog has them."""

from pathlib import Path
from typing import BinaryIO

import msgspec
import pytest

from tunnel.analysis import qlog
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


def exported(tmp_path: Path, *nodes: str) -> dict[str, list[str]]:
    """Export one event of each node. Return the vantage points of each file, and the names of its events."""
    with TraceWriter(tmp_path / "in") as trace:
        for node in nodes:
            trace(TraceRecord(time_us=1, node=node, event=TraceEvent.ATTACHED))
    found = {}
    for path in export(tmp_path / "in", tmp_path / "out"):
        texts = [msgspec.json.decode(text) for text in path.read_bytes().split(b"\x1e")[1:]]
        found[path.name] = [texts[0]["trace"]["vantage_point"]["name"], *(text["name"] for text in texts[1:])]
    assert sorted(found) == sorted(path.name for path in (tmp_path / "out").iterdir())
    return found


@pytest.mark.parametrize(
    "node", ["n" * 300, "\U00010400" * 80, ".." * 200, "/" * 1000], ids=["long", "wide", "dots", "slashes"]
)
def test_two_users_a_long_name_of_a_node_does_not_end_the_export(tmp_path: Path, node: str) -> None:
    found = exported(tmp_path, node, "victim", node + "x")
    assert found["victim.sqlog"] == ["victim", "tunnel:attached"]
    assert sorted(vantage for vantage, *_ in found.values()) == sorted(["victim", node, node + "x"])


def test_two_users_nodes_whose_names_differ_in_signs_alone_have_files_of_their_own(tmp_path: Path) -> None:
    found = exported(tmp_path, "relay_1", "relay/1", "relay:1", "", "unnamed", "Relay_1")
    assert sorted(vantage for vantage, *_ in found.values()) == [
        "",
        "Relay_1",
        "relay/1",
        "relay:1",
        "relay_1",
        "unnamed",
    ]
    assert all(events == ["tunnel:attached"] for _, *events in found.values())


def test_two_users_many_nodes_take_neither_all_descriptors_nor_a_file_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(qlog, "_OPEN_MAX", 2)
    monkeypatch.setattr(qlog, "_NODES_MAX", 6)
    opened: list[BinaryIO] = []
    real = qlog._open

    def counted(path: Path, mode: str) -> BinaryIO:
        opened.append(real(path, mode))
        assert sum(not file.closed for file in opened) <= 2
        return opened[-1]

    monkeypatch.setattr(qlog, "_open", counted)
    found = exported(tmp_path, "victim", *(f"node{number}" for number in range(20)), "victim")
    assert found["victim.sqlog"] == ["victim", "tunnel:attached", "tunnel:attached"]
    assert len(found) == 7
    assert found["other nodes.sqlog"] == ["other nodes", *["tunnel:attached"] * 15]
    assert opened
    assert all(file.closed for file in opened)


def test_blank_lines_cost_nothing_and_hide_no_event(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    line = msgspec.json.encode(TraceRecord(time_us=1, node="a", event=TraceEvent.ATTACHED))
    (tmp_path / "in" / "a.jsonl").write_bytes(b"\n" * 1000 + line + b"\r\n" + b"\n\n")
    (file,) = export(tmp_path / "in", tmp_path / "out")
    assert file.read_bytes().count(b"tunnel:attached") == 1
