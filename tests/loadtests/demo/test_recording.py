"""The recording of the demo: its pictures, their times, and the one that the README shows."""

import asyncio
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest

from loadtests.demo.play import Play
from loadtests.demo.recording import COLUMNS, ROWS, RecordingShow
from loadtests.harness.tree import ROOT
from tests.loadtests.demo.rig import GOOD
from tests.support.loops import in_loop
from tunnel_client.forward.traffic import TrafficReport

LINE = 24.4
EVENTS = (  # as long as they get
    "starting a relay, an exit, a fault proxy and a forward",
    "upload",
    "kill -9 of the relay at 54% of the upload, 15935 KiB in flight",
    "a new relay listens after 16.23 s; it has no state of the stream",
    "the upload goes on after 16.60 s",
    "kill -9 of the relay at 50% of the download, 15704 KiB in flight",
    "a new relay listens after 14.86 s; it has no state of the stream",
    "the download goes on after 15.04 s",
)


class FakeStage:
    """Processes that have just started."""

    def traffic(self) -> TrafficReport:
        return TrafficReport()


def pictures(text: str) -> list[str]:
    """Return the text of each picture, in which one space stands for each break and gap."""
    found: dict[int, list[str]] = {}
    for span in ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text"):
        found.setdefault(int((float(span.attrib["y"]) - 20) // (ROWS * LINE)), []).append(span.text or "")
    return [" ".join(" ".join(found.get(index, [])).split()) for index in range(max(found) + 1)]


async def record(file: Path, report: Any = GOOD) -> None:
    show = RecordingShow(file)
    play = Play(4 << 20, 1, show.said)
    async with show.watching(play):
        show.said(EVENTS[0])
        play.stage = FakeStage()  # type: ignore[assignment]
        for event in EVENTS[1:]:
            show.said(event)
    show.conclude(report)


@in_loop
async def test_each_event_has_a_picture_and_the_last_one_has_the_verdict(tmp_path: Path) -> None:
    file = tmp_path / "demo.svg"
    await record(file)
    found = pictures(file.read_text())
    assert len(found) == len(EVENTS)  # nothing is shown before the processes have started; the verdict follows
    assert all(event in picture for event, picture in zip(EVENTS[1:], found, strict=False))
    assert all(picture.startswith("$ make demo application") for picture in found)
    assert not any("OK" in picture for picture in found[:-1])
    moved = "OK: every byte of 40 MiB arrived once and in order, through 7 faults and 2 dead relays, in 5.0 s"
    assert found[-1].endswith(f"{EVENTS[-1]} {moved}")


@in_loop
async def test_a_picture_is_taken_from_time_to_time_once_the_processes_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.demo.recording._PICTURE_S", 0)
    monkeypatch.setattr("loadtests.demo.recording.FRAME_S", 0)
    show = RecordingShow(tmp_path / "demo.svg")
    play = Play(4 << 20, 1, show.said)
    async with show.watching(play):
        for _ in range(3):
            await asyncio.sleep(0)
        play.stage = FakeStage()  # type: ignore[assignment]
        play.acts[0].flow.took(bytes(next(play.acts[0].flow.chunks())))
        for _ in range(3):
            await asyncio.sleep(0)
    show.conclude(GOOD)
    found = pictures((tmp_path / "demo.svg").read_text())
    assert 2 <= len(found) <= 4
    assert "6%" in found[0]


@in_loop
async def test_a_run_that_failed_leaves_the_old_recording(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "demo.svg"
    file.write_text("old")
    await record(file, msgspec.structs.replace(GOOD, failure="a byte was wrong"))
    assert file.read_text() == "old"
    assert f"{file} was not written, because the run failed" in capsys.readouterr().out


def test_the_readme_shows_a_whole_run() -> None:
    assert "](docs/demo.svg)" in (ROOT / "README.md").read_text()
    text = (ROOT / "docs" / "demo.svg").read_text()
    found = pictures(text)
    assert "kill -9 of the relay at" in " ".join(found)
    assert "OK: every byte of 256 MiB arrived once and in order" in found[-1]


def test_the_recording_is_small_and_shows_nothing_of_the_machine_that_made_it() -> None:
    text = (ROOT / "docs" / "demo.svg").read_text()
    assert len(text.encode()) < 300_000
    assert f'width="{round(COLUMNS * 12.2) + 32}"' in text
    # A page shows the file as a picture, which may load nothing and run nothing.
    assert re.findall(r"https?://[^\s\"]+|<script|@import|url\(|href", text) == ["http://www.w3.org/2000/svg"]
    assert re.findall(r"(?<!<)/(?:home|root|tmp|work|usr|Users|var)\b", text) == []
