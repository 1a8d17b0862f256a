"""The report: a complete and readable page that needs no other files; and its parts."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.analysis.job import Found
from tunnel.analysis.analyse import Analysis
from tunnel.analysis.blame import blames
from tunnel.analysis.families import FAMILIES
from tunnel.analysis.report import render
from tunnel.analysis.svg import Axis, Series, bars, plot
from tunnel.analysis.verdict import verdict
from tunnel.traces import TraceLevel

pytestmark = pytest.mark.timeout(1600)
VOID = {"meta", "br", "rect", "line", "path"}


class Page(HTMLParser):
    """Checks that every element is closed, in the right order."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_well_formed_and_needs_no_network(job_directory: Path) -> None:
    text = (job_directory / "report.html").read_text()
    page = Page()
    page.feed(text)
    assert page.open == []
    assert page.seen.count("svg") >= 8
    assert not re.search(r'(src|href)="(?!#)', text)
    assert "<script" not in text
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_every_section_states_its_question(job_directory: Path) -> None:
    text = (job_directory / "report.html").read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Throughput", "Limits", "Stalls", "Retransmissions", "Needless retransmissions", "Losses and order",
        "Round trips and timers", "The worst streams", "Exchanges and batches", "The trace itself",
    ]  # fmt: skip
    assert text.count('<p class="what">') == len(titles)


def test_the_verdict_names_the_first_cause(found: Found) -> None:
    sentences = verdict(found.truth)
    assert FAMILIES[blames(found.truth)[0].family].title in sentences[0]
    text = " ".join(sentences)
    assert "in bursts" in text
    assert "Every lost packet arrived by another attempt" in text
    assert "needless" in text


def test_a_trace_without_packets_gives_a_page() -> None:
    text = render(Analysis(), "<nothing>")
    assert "&lt;nothing&gt;" in text
    assert f"--trace-level {TraceLevel.PACKET.name.lower()}" in text


def streams(**changes: int) -> dict[str, int]:
    return {
        "streams": 2, "both_ends": 2, "packets": 1000, "unique_packets": 1000, "judged": 1000, "lost": 0, "needless": 0,
        "never_arrived": 0, "in_doubt": 0, "open_packets": 0, "resent_bytes": 0, "duration_us": 1_000_000, **changes,
    }  # fmt: skip


def test_the_verdict_on_a_run_without_faults_says_so() -> None:
    assert verdict(Analysis(totals=streams(), limits={"carrier_full": 3_000, "idle": 1_000})) == [
        (
            "The main limit of goodput was: the rate of the path (bytes waited, all windows were open, and the carrier "
            "took as much as the path let through). It took 75 % of the senders' time: 3 ms. The second was: the "
            "application wrote slowly, 25 %. Nothing was wrong with the tunnel; look at the bandwidth of the slowest "
            "hop, and at the processors of both ends and the relay."
        ),
        "No transmission was lost.",
    ]


def test_a_trace_of_no_duration_is_too_short_for_a_verdict() -> None:
    assert verdict(Analysis(totals=streams()))[0].startswith("The trace is too short")


def test_four_classes_of_loss_are_one_cause() -> None:
    stalls = [{"why": "packet_delay", "us": 300, "stalls": 1, "streams": 1}]
    stalls += [
        {"why": why, "us": 100, "stalls": 1, "streams": 1}
        for why in ("loss", "double_retransmission", "tail_retransmission", "ack_delay_or_loss")
    ]
    found = blames(Analysis(totals=streams(), stalls=stalls))
    assert [(blame.family, blame.us) for blame in found] == [("loss", 400), ("delay", 300)]


def exchange(event: str, n: int, status: int = 0) -> dict[str, object]:
    return {"kind": "push", "event": event, "status": status, "n": n}


@pytest.mark.parametrize(
    ("exchanges", "words"),
    [
        ([exchange("exchange_sent", 500), exchange("exchange_answered", 1, 413)], "client_max_body_size"),
        ([exchange("exchange_sent", 100), exchange("exchange_answered", 15, 503)], "Status 503"),
        ([exchange("exchange_sent", 10), exchange("exchange_failed", 10)], "Requests had no answer"),
    ],
)
def test_failed_exchanges_are_named_where_nothing_else_explains_the_time(
    exchanges: list[dict[str, object]], words: str
) -> None:
    for limits in ({"carrier_full": 1_000}, {"idle": 1_000}):
        sentences = verdict(Analysis(totals=streams(), limits=limits, exchanges=exchanges))
        assert words in " ".join(sentences)
    assert words in verdict(Analysis(totals=streams(), limits={"carrier_full": 1_000}, exchanges=exchanges))[0]


def test_a_relay_that_never_answered_is_the_verdict_if_no_packet_was_traced() -> None:
    sentences = verdict(Analysis(exchanges=[exchange("exchange_sent", 5), exchange("exchange_failed", 5)], absences=1))
    assert sentences[0].startswith("5 of 5 requests failed (100.0 %; no answer: 5).")
    assert "lost their relay" in sentences[0]
    assert "look at whether the relay ran" in sentences[0]


def test_a_few_failed_exchanges_are_not_mentioned() -> None:
    exchanges = [exchange("exchange_sent", 1000), exchange("exchange_answered", 1, 503)]
    sentences = verdict(Analysis(totals=streams(), limits={"carrier_full": 1_000}, exchanges=exchanges))
    assert "the rate of the path" in sentences[0]
    assert "503" not in " ".join(sentences)


def test_the_trace_of_one_end_proves_no_loss() -> None:
    sentences = verdict(Analysis(totals=streams(both_ends=0, judged=0)))
    assert len(sentences) == 2
    assert sentences[1].startswith("No stream was traced at both ends, so the trace does not tell")


def test_the_verdict_says_how_much_is_unknown() -> None:
    assert verdict(Analysis(totals=streams(both_ends=1, in_doubt=3)))[1:] == [
        "No loss is known.",
        "Only 1 of 2 streams were traced at both ends. Losses of the other streams are unknown, and are not counted.",
        "Packets of which it is unknown whether they were lost, because records of their receiver are missing: 3.",
    ]
    assert "every lost packet arrived by another" in verdict(Analysis(totals=streams(lost=1, open_packets=1)))[1]


def test_the_verdict_counts_packets_that_never_arrived() -> None:
    sentence = verdict(Analysis(totals=streams(lost=10, never_arrived=3)))[1]
    assert sentence == (
        "10 of 1,000 transmissions were lost (1.00 %). Packets that never arrived, not even by a later attempt: 3."
    )


def test_bars_are_proportional_to_their_values() -> None:
    picture = bars([("a<b", 4.0, "four"), ("c", 1.0, "one")])
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height', picture)]
    assert widths[0] == pytest.approx(4 * widths[1])
    assert "a&lt;b" in picture
    assert bars([]) == ""


def test_lines_and_points_stay_within_their_axes() -> None:
    series = [Series("one", [(1.0, 10.0), (1000.0, 20.0)]), Series("two", [(10.0, 15.0)], 2, dots=True)]
    picture = plot(series, Axis("x", logarithmic=True), Axis("y"))
    assert picture.count("<path") == 2
    assert 'class="legend"' in picture
    coordinates = [
        float(number) for path in re.findall(r' d="(.*?)"', picture) for number in re.findall(r"[\d.]+", path)
    ]
    assert all(0 <= number <= 680 for number in coordinates)
    assert plot([Series("none", [])], Axis("x"), Axis("y")) == ""


def test_a_single_point_has_axes() -> None:
    assert "<svg" in plot([Series("one", [(5.0, 5.0)])], Axis("x", logarithmic=True), Axis("y"), y_from_0=False)
