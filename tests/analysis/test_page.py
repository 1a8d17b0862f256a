"""The part of the page in which a connection is chosen and drawn: its data are bounded, and no name can act in it."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tunnel.analysis.page import data
from tunnel.analysis.page.data import as_script, streams_of
from tunnel.analysis.page.pieces import Column, table
from tunnel.analysis.page.report import render
from tunnel.analysis.page.section import connections
from tunnel.analysis.page.stalls_section import stalls
from tunnel.analysis.page.streams_section import worst_streams
from tunnel.analysis.page.style import STYLE
from tunnel.analysis.results.result import ACKED, RECEIVED, SACKED, SENT, Analysis

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>\u2028\"'&"


def stream(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "stream": number, "other": number + 1, "sender": "client", "receiver": "service",
        "nodes": ["client", "service"], "relays": ["http://a"], "user": "ann",
        "carrier": "poll", "begin_us": 1_000_000, "duration_us": 500_000, "receiving_us": 1, "unique_bytes": 900,
        "payload_bytes": 800, "packets": 3, "unique_packets": 3, "both_ends": True, "judged": 3, "lost": 1,
        "trip_us_p50": 20_000, "trip_us_p99": None, "backoff_max": 0, "stalled_us": 7, "stalled_by": "loss", **changes,
    }  # fmt: skip


def point(kind: int, t: int, sequence: int, **changes: int) -> dict[str, Any]:
    return {
        "kind": kind, "t": t, "sequence": sequence, "attempt": 0, "acked": 1, "in_flight_bytes": 10, "window_bytes": 90,
        **changes,
    }  # fmt: skip


POINTS = [
    point(ACKED, 900, 2**32 - 3),  # of the answer to CONNECT
    point(SENT, 1_000, 2**32 - 1),
    point(SENT, 1_100, 0),
    point(SENT, 1_500, 2**32 - 1, attempt=1),
    point(RECEIVED, 1_200, 0),
    point(SACKED, 1_300, 0, acked=2),
    point(ACKED, 1_700, 0, in_flight_bytes=0),
]


def analysis(*streams: dict[str, Any], points: list[dict[str, Any]] | None = None) -> Analysis:
    return Analysis(
        totals={"streams": len(streams)},
        begin_us=400_000,
        worst=list(streams),
        points={str(row["stream"]): POINTS if points is None else points for row in streams},
    )


def test_a_streams_points_are_told_from_its_first_packet_on() -> None:
    (found,) = streams_of(analysis(stream(0xAB)))
    assert found["points"] == {
        "sent": [0, 0, 100, 1],
        "again": [500, 0],
        "received": [200, 1],
        "acked": [700, 1],
        "sacked": [300, 1, 2],
        "bytes": [0, 10, 100, 100, 10, 100, 500, 10, 100, 700, 0, 90],
    }
    assert (found["id"], found["other"], found["begin"], found["end"]) == ("000000ab", "000000ac", 0.6, 1.1)
    assert (found["relays"], found["user"], found["lost"], found["why"]) == (["http://a"], "ann", 1, "loss")


def test_the_page_draws_the_moves_of_a_stream_and_of_no_other() -> None:
    of = analysis(stream(7), stream(9), points=[point(SENT, 1_000, 5), point(SENT, 2_000, 6)])
    of.moves = [{"t": 1_500, "id": 7}, {"t": 1_600, "id": 8}, {"t": 1_700, "id": 20}]
    assert [one["moves"] for one in streams_of(of)] == [[500, 600], []]


def test_streams_beyond_the_limit_are_listed_without_points(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "POINTS_MAX", 2 * len(POINTS))
    found = streams_of(analysis(*map(stream, range(4))))
    assert ["points" in one for one in found] == [True, True, False, False]


def test_a_stream_that_was_not_sent_has_no_times() -> None:
    (found,) = streams_of(analysis(stream(1, begin_us=None, packets=0, judged=0), points=[]))
    assert (found["begin"], found["end"], found["lost"], "points" in found) == (None, None, None, False)


def test_no_text_can_leave_the_script() -> None:
    text = as_script({"name": EVIL})
    assert not re.search("[<>&\u2028\u2029]", text)
    assert json.loads(text) == {"name": EVIL}


def test_no_name_can_act_in_the_page() -> None:
    names: dict[str, Any] = dict.fromkeys(("sender", "receiver", "user", "carrier"), EVIL)
    names |= {key: [EVIL] for key in ("nodes", "relays")}
    section = connections(analysis(stream(1, **names)))
    assert section is not None
    worst = worst_streams(analysis(stream(1, **names), stream(2, unique_packets=1, packets=1, **names)))
    assert worst is not None
    for body in (section.body, worst.body):
        assert "<img" not in body
        assert "alert(1)</script>" not in body
    assert section.body.count("<script") == section.body.count("</script>") == 2


def test_there_is_no_section_without_streams() -> None:
    assert connections(Analysis()) is None


def test_a_stream_of_one_or_two_packets_gets_a_sentence() -> None:
    rows = [stream(1, packets=1, unique_packets=1), stream(2, packets=3, unique_packets=1, trip_us_p50=None)]
    worst = worst_streams(analysis(*rows, stream(3, packets=2, unique_packets=2), stream(4)))
    assert worst is not None
    assert "00000001, client to service: one packet, acknowledged after 20 ms; 900 B." in worst.body
    assert "00000002, client to service: one packet, sent 3 times; 900 B." in worst.body
    assert "00000003, client to service: 2 packets, acknowledged after 20 ms; 900 B." in worst.body
    assert worst.body.count("<figure>") == 1
    assert "00000004, client to service: stalled for 7 µs; main cause: loss.</figcaption>" in worst.body


def test_a_stream_without_a_stall_has_no_cause() -> None:
    worst = worst_streams(analysis(stream(4, stalled_us=0, stalled_by=None)))
    assert worst is not None
    assert "00000004, client to service: no stall.</figcaption>" in worst.body


def test_a_stall_that_an_answer_to_a_repeated_connect_ended_names_no_cause() -> None:
    row = {"start_us": 5, "gap_us": 9, "node": "client", "stream": 1, "why": "connecting", "is_open": False}
    ends = [{"attempt": 0, "cause": ""}, {"attempt": 1, "cause": ""}, {"attempt": 1, "cause": "pto_probe"}]
    totals = {"why": "connecting", "stalls": 3, "us": 27, "us_p50": 9, "us_p99": None, "us_max": 9, "streams": 1}
    section = stalls(Analysis(stalls=[totals], longest_stalls=[row | end for end in ends]))
    assert section is not None
    assert re.findall("<td[^>]*>((?:progress|repeat)[^<]*)</td>", section.body) == [
        "progress", "repeat", "repeat: tail probe",
    ]  # fmt: skip


def test_a_long_table_says_how_many_rows_there_are() -> None:
    columns = [Column("name", lambda row: row["name"], "of it", is_number=False)]
    rows = [{"name": f"a {number}"} for number in range(1200)]
    cut = table("Names.", columns, rows, 50)
    assert cut.count("<td") == 50
    assert "<b>Names.</b> name: of it. The first 50 of 1,200.</caption>" in cut
    assert "first" not in table("Names.", columns, rows[:50], 50)
    assert table("Names.", columns, rows).count("<td") == 1200


def test_a_short_text_is_one_line() -> None:
    columns = [Column("id", lambda row: row["id"], is_number=False), Column("n", lambda row: row["n"])]
    text = table("Ids.", columns, [{"id": "0123456789", "n": "1"}, {"id": "0123456789a", "n": "2"}])
    assert re.findall("<td.*?>", text) == ['<td class="s">', '<td class="n">', "<td>", '<td class="n">']


def test_the_relays_with_most_repeats_come_first_and_all_are_counted() -> None:
    rows = [
        {"relay": f"relay-{number}", "carrier": "poll", "bucket": 0, "cause": cause, "packets": packets, "bytes": 1}
        for number in range(60)
        for cause, packets in ((None, 100), ("pto_probe", number))
    ]
    text = render(Analysis(retransmissions=rows), "t")
    assert re.findall(r"<td[^>]*>(relay-\d+)</td>", text) == [f"relay-{number}" for number in range(59, 9, -1)]
    assert "The first 50 of 60." in text


def test_large_numbers_on_an_axis_are_written_out() -> None:
    values = [{"of": "rto_over_receipt", "class": number, "n": 1} for number in (8, 176)]
    text = render(Analysis(trip_values=values), "t")
    assert ">1,000,000</text>" in text
    assert "e+0" not in text


def dumped(tmp_path: Path, of: Analysis, script: str = "", *options: str) -> str:
    """Return the page of this section alone, as a browser has it after its script and another one have run."""
    section = connections(of)
    assert section is not None
    page = tmp_path / "report.html"
    head = f'<!doctype html><meta charset="utf-8"><style>{STYLE}</style>'
    page.write_text(f"{head}<main>{section.body}</main><script>{script}</script>", encoding="utf-8")
    command = ["chromium", "--headless=new", "--no-sandbox", "--disable-gpu", *options, "--dump-dom", page.as_uri()]
    return subprocess.run(command, capture_output=True, text=True, timeout=240, check=True).stdout


needs_chromium = pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium: make system-deps")


@needs_chromium
@pytest.mark.timeout(300)
def test_a_browser_draws_the_first_stream_and_fills_the_filters(tmp_path: Path) -> None:
    """The script runs from the file, without a network; the names come out as they went in."""
    shown = dumped(
        tmp_path, analysis(stream(1, nodes=[EVIL, "service"]), stream(2, relays=["http://b"], unique_packets=9))
    )
    assert '<div class="drawing" data-from="0" data-to="700">' in shown
    assert shown.count('class="drawable" aria-selected="true"') == 1
    options = re.findall(r'<option value="([^"]*)">', shown)
    assert {"http://a", "http://b", "service"} <= set(options)
    assert '<form class="filters">' in shown
    assert "<img" not in shown


@needs_chromium
@pytest.mark.timeout(300)
def test_a_graph_is_printed_on_white_from_a_dark_screen_too(tmp_path: Path) -> None:
    act = """
      const pen = document.querySelector("canvas").getContext("2d"), papers = [];
      const look = () => papers.push(pen.getImageData(1, 1, 1, 1).data.join(" "));
      look();
      for (const event of ["beforeprint", "afterprint"]) {
        dispatchEvent(new Event(event));
        look();
      }
      document.body.dataset.papers = papers.join("; ");
    """
    shown = dumped(tmp_path, analysis(stream(1)), act, "--blink-settings=preferredColorScheme=0")
    assert 'data-papers="18 22 31 255; 255 255 255 255; 18 22 31 255"' in shown


@needs_chromium
@pytest.mark.timeout(300)
def test_a_drag_enlarges_a_time_and_a_filter_hides_rows(tmp_path: Path) -> None:
    act = """
      const canvas = document.querySelector("canvas"), box = canvas.getBoundingClientRect();
      const wide = canvas.clientWidth - 68;
      const at = (share) => ({ clientX: box.left + 58 + share * wide, bubbles: true });
      canvas.dispatchEvent(new PointerEvent("pointerdown", at(0.5)));
      canvas.dispatchEvent(new PointerEvent("pointermove", at(0.2)));
      canvas.dispatchEvent(new PointerEvent("pointerup", at(0.2)));
      const relay = document.querySelector('[data-filter="relay"]');
      relay.value = "http://b";
      relay.dispatchEvent(new Event("input", { bubbles: true }));
    """
    moved = stream(3, relays=["http://a", "http://b"])
    shown = dumped(tmp_path, analysis(stream(1), stream(2, relays=["http://b"]), moved), act)
    found = re.search(r'data-from="([\d.]+)" data-to="([\d.]+)"', shown)
    assert found is not None
    assert [float(found[1]), float(found[2])] == pytest.approx([140.0, 350.0], abs=1.0)
    hidden = re.findall(r'<tr[^>]*class="drawable"[^>]*>', shown)
    assert [" hidden" in row for row in hidden] == [True, False, False]
