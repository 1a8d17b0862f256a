"""The report: a complete and readable page that needs no other files; and its parts."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.analysis.job import Found
from tunnel.analysis.blame import blames
from tunnel.analysis.families import FAMILIES
from tunnel.analysis.report import render
from tunnel.analysis.result import Analysis
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
