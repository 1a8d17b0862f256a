"""The report: a complete and readable page that needs no other files; and its parts."""

import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from tests.analysis.job import Found
from tunnel.analysis.page.report import render
from tunnel.analysis.page.svg import Axis, Series, bars, plot
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames
from tunnel.analysis.verdicts.families import FAMILIES
from tunnel.analysis.verdicts.verdict import verdict
from tunnel.analysis.words import duration
from tunnel.traces import TraceLevel

pytestmark = pytest.mark.timeout(1600)
VOID = {"meta", "br", "rect", "line", "path", "input"}


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
    assert re.findall(r"<script[^>]*>", text) == ['<script type="application/json" id="drawn-streams">', "<script>"]
    assert not re.search(r"fetch\(|XMLHttpRequest|https?://[a-z]*\.[a-z]", text)
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text


def test_every_section_states_its_question(job_directory: Path) -> None:
    text = (job_directory / "report.html").read_text()
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        "Throughput", "Limits", "Stalls", "Retransmissions", "Needless retransmissions", "Losses and order",
        "Round trips and timers", "The worst streams", "Connections", "Exchanges and batches", "The trace itself",
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


def test_bars_are_proportional_to_their_values() -> None:
    picture = bars([("a<b", 4.0, "four"), ("c", 1.0, "one")])
    widths = [float(width) for width in re.findall(r'width="([\d.]+)" height', picture)]
    assert widths[0] == pytest.approx(4 * widths[1], abs=0.25)  # on a wide screen; widths have one decimal
    assert widths[2:] == pytest.approx([340.0, 85.0])  # on a narrow one
    assert "a&lt;b" in picture
    assert bars([]) == ""


def test_lines_and_points_stay_within_their_axes() -> None:
    series = [Series("one", [(1.0, 10.0), (1000.0, 20.0)]), Series("two", [(10.0, 15.0)], 2, dots=True)]
    picture = plot(series, Axis("x", logarithmic=True), Axis("y"))
    assert picture.count("<path") == 4  # for a wide screen, and for a narrow one
    assert 'class="legend"' in picture
    coordinates = [
        float(number) for path in re.findall(r' d="(.*?)"', picture) for number in re.findall(r"[\d.]+", path)
    ]
    assert all(0 <= number <= 680 for number in coordinates)
    assert plot([Series("none", [])], Axis("x"), Axis("y")) == ""


def test_a_legend_stays_within_its_picture() -> None:
    """An entry that does not fit begins a new line, and the axes begin below."""
    names = ["round trip, median", "round trip, 99 %", "receipt to acknowledgement, median", "RTO, median"]
    picture = plot([Series(name, [(0.0, 1.0), (1.0, 2.0)]) for name in names], Axis("x"), Axis("y"))
    wide, narrow = picture.split('<div class="narrow">')
    for part, width in ((wide, 680), (narrow, 340)):
        entries = re.findall(r'class="legend" x="(\d+)" y="(\d+)">(.*?)<', part)
        assert [name for _, _, name in entries] == names
        assert all(int(x) + 7 * len(name) <= width for x, _, name in entries)
        assert min(float(y) for y in re.findall(r'class="grid" x1="[\d.]+" x2="[\d.]+" y1="([\d.]+)"', part)) > max(
            int(y) for _, y, _ in entries
        )


def test_labels_of_the_time_axis_do_not_overlap_on_a_narrow_screen() -> None:
    picture = plot([Series("one", [(1.0, 1.0), (1e7, 2.0)])], Axis("x", duration, logarithmic=True), Axis("y"))
    labels = re.findall(r'class="tick" x="([\d.]+)" y="[\d.]+" text-anchor="middle">(.*?)<', picture.split("narrow")[1])
    for (at, text), (following, _) in pairwise(labels):
        assert float(at) + 7 * len(text) <= float(following) + 7


def test_a_single_point_has_axes() -> None:
    assert "<svg" in plot([Series("one", [(5.0, 5.0)])], Axis("x", logarithmic=True), Axis("y"), y_from_0=False)
