"""Reports of a part of a trace: a time, the connections over one relay, or one connection."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tunnel.analysis.cli import main
from tunnel.analysis.results.selection import Moment, moment_of
from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.writer import TraceWriter
from tunnel.wire import PacketType

STREAMS = {1: "http://a", 2: "http://a", 3: "http://b"}
BEGIN_US = 10_000_000


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("90s", Moment(90_000_000, is_wall=False)),
        (" 1.5 min", Moment(90_000_000, is_wall=False)),
        ("2h", Moment(7_200_000_000, is_wall=False)),
        ("1970-01-01T00:01", Moment(60_000_000, is_wall=True)),
        ("1970-01-01T02:01+02:00", Moment(60_000_000, is_wall=True)),
    ],
)
def test_a_time_is_since_the_beginning_or_of_the_wall_clock(text: str, expected: Moment) -> None:
    assert moment_of(text) == expected


@pytest.mark.parametrize("text", ["", "90", "-5s", "5 weeks", "yesterday", "s"])
def test_anything_else_is_no_time(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write 90s"):
        moment_of(text)


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three connections, each of one second after the other: client NUMBER sends ten packets to the service."""
    directory = tmp_path_factory.mktemp("traces")
    with TraceWriter(directory, name="all") as trace:

        def tell(t: int, node: str, event: TraceEvent, **fields: object) -> None:
            trace(TraceRecord(time_us=BEGIN_US + t, node=node, event=event, **fields))  # type: ignore[arg-type]

        tell(0, "relay", TraceEvent.ATTACHED, text="ann")  # a relay records the user
        tell(1, "client-3", TraceEvent.ATTACHED, text="http://b through http://proxy")
        for number, relay in STREAMS.items():
            tell(number, f"client-{number}", TraceEvent.ATTACHED, text=relay)
            for kind, status in (("exchange_sent", 0), ("exchange_answered", 503)):
                tell(number * 1_000_000, f"client-{number}", TraceEvent(kind), text="push", status=status)
        for number in STREAMS:
            for at in range(10):
                ends = {"connection": number, "peer": number + 100, "packet_type": PacketType.DATA, "sequence": at}
                back = {"connection": number + 100, "peer": number, "packet_type": PacketType.DATA, "sequence": at}
                t = number * 1_000_000 + at * 50_000
                sent = {**ends, "size_bytes": 124, "in_flight_bytes": 100, "rto_us": 200_000}
                tell(t, f"client-{number}", TraceEvent.PACKET_SENT, **sent)
                tell(t + 5_000, "service", TraceEvent.PACKET_RECEIVED, **back, size_bytes=124)
                acked = {"connection": number, "peer": number + 100, "sequence": at, "count": 1, "rto_us": 200_000}
                tell(t + 9_000, f"client-{number}", TraceEvent.PACKETS_ACKED, **acked)
    return directory


def packets(capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path, *arguments: str) -> tuple[int, int, int]:
    """Return the numbers of streams, packets and exchanges in the report."""
    page = tmp_path / "report.html"
    assert main(["report", str(traces), "--tables", str(tmp_path / "t"), "-o", str(page), "--json", *arguments]) == 0
    found = json.loads(capsys.readouterr().out)
    if not found["totals"]["streams"]:
        return 0, 0, 0
    return found["totals"]["streams"], found["totals"]["packets"], sum(row["n"] for row in found["exchanges"])


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((), (3, 30, 6)),
        (("--connection", "2"), (1, 10, 2)),
        (("--connection", "66"), (1, 10, 2)),  # 102, its id at the other end
        (("--relay", "http://a"), (2, 20, 4)),
        (("--relay", "http://b"), (1, 10, 2)),
        (("--relay", "http://b through http://proxy"), (1, 10, 2)),
        (("--from", "1.9s", "--to", "2.7s"), (1, 10, 2)),
        (("--from", "1.9s", "--to", "2.225s"), (1, 5, 2)),
        (("--from", "1.9s", "--relay", "http://a"), (1, 10, 2)),
    ],
)
def test_a_report_is_about_what_was_selected(
    capsys: pytest.CaptureFixture[str],
    traces: Path,
    tmp_path: Path,
    arguments: tuple[str, ...],
    expected: tuple[int, int, int],
) -> None:
    assert packets(capsys, traces, tmp_path, *arguments) == expected


def test_what_a_time_cuts_off_is_not_lost(capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path) -> None:
    """The tenth packet was on its way at that time: it is open, as at the end of a trace."""
    page = tmp_path / "report.html"
    arguments = ["report", str(traces), "--tables", str(tmp_path / "t"), "-o", str(page), "--json"]
    assert main([*arguments, "--to", "1.452s"]) == 0
    totals = json.loads(capsys.readouterr().out)["totals"]
    assert (totals["packets"], totals["lost"], totals["open_packets"]) == (10, 0, 1)


def test_a_part_is_not_stored_as_the_result_of_the_whole(
    capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path
) -> None:
    assert packets(capsys, traces, tmp_path, "--connection", "2")[0] == 1
    assert packets(capsys, traces, tmp_path)[0] == 3
    assert packets(capsys, traces, tmp_path, "--connection", "3")[0] == 1


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--connection", "dead"), "the trace has no connection 0000dead"),
        (("--relay", "ann"), "no node was attached to the relay ann: the trace has http://a, http://b"),
        (("--relay", "http://c"), "no node was attached to the relay http://c: the trace has http://a, http://b"),
        (("--from", "99s"), "the trace has no records of that time"),
        (("--from", "2s", "--to", "1s"), "--from is later than --to"),
        (("--from", "2026-01-01"), "the trace does not tell the wall clock"),
    ],
)
def test_a_selection_of_nothing_is_a_sentence(
    capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    assert main(["report", str(traces), "--tables", str(tmp_path / "t"), *arguments]) == 2
    assert words in capsys.readouterr().err


def test_connection_says_what_happened_to_one(capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path) -> None:
    assert main(["connection", str(traces), "00000003", "--tables", str(tmp_path / "t")]) == 0
    out = capsys.readouterr().out
    assert "No transmission was lost." in out
    row = next(line for line in out.splitlines() if line.startswith("00000003"))
    assert row.split()[:3] == ["00000003", "client-3", "service"]


def test_open_shows_the_page_in_a_browser(
    capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []

    def show(uri: str) -> bool:
        opened.append(uri)
        return True

    monkeypatch.setattr("webbrowser.open", show)
    page = tmp_path / "report.html"
    arguments = ["open", str(traces), "--tables", str(tmp_path / "t"), "-o", str(page)]
    assert main(arguments) == 0
    assert opened == [page.resolve().as_uri()]
    assert page.exists()
    monkeypatch.setattr("webbrowser.open", lambda uri: False)
    assert main(arguments) == 2
    assert f"no browser could be started: open {page} in one" in capsys.readouterr().err


def test_compare_says_what_changed(capsys: pytest.CaptureFixture[str], traces: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    for path in traces.glob("*.zst"):
        (other / path.name).write_bytes(path.read_bytes())
    assert main(["compare", str(other), str(other)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("Both were limited by: ")
    loss = next(line for line in lines if line.startswith("loss"))
    assert loss.split() == ["loss", "0.00", "%", "0.00", "%", "not", "proven"]
    assert main(["compare", str(other), str(tmp_path / "nowhere")]) == 2
    assert main(["compare", str(other), str(other), "--tables", str(tmp_path / "t")]) == 2
