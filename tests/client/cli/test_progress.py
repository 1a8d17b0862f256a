"""`tunnel doctor` says what it measures, before it finds nothing for 2 s."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.client.rig import Rig
from tests.support.loops import in_loop
from tunnel_client.cli.progress import told_of_progress
from tunnel_client.doctor.findings import Report, Verdict

_WAIT_S = 60.0


def test_the_doctor_says_what_takes_longer_than_2_s_before_it_begins(rig: Rig, home: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tunnel_client", "doctor", "--watch", "2.5"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **rig.environment()},
        timeout=_WAIT_S,
        check=False,
    )
    lines = done.stdout.splitlines()

    def place(text: str) -> int:
        return next(number for number, line in enumerate(lines) if text in line)

    assert place("letting a request and a connection wait for 2.5 s ...") < place("  hold limit")
    assert place("  hold limit") < place("measuring the throughput for 2 s ...") < place("  throughput")


@in_loop
async def test_progress_says_what_finds_nothing_and_each_announcement_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.cli.progress._QUIET_S", 0.3)
    report = Report("")
    async with told_of_progress(report):
        report.begin("asking http://relay.example")
        said = await _until("asking http://relay.example: no answer yet", capsys)
        assert said.startswith("tunnel: asking http://relay.example ...\n")
        report.begin("measuring", 0.5)
        await _until("measuring for 0.5 s ...", capsys)
        report.add("throughput", Verdict.OK, "fast")
        assert "measuring for" not in await _until("measuring: ", capsys)
        report.begin("examining the path")  # this usually takes less time: it is said only if nothing is found
        assert "examining the path ..." not in await _until("examining the path: ", capsys)


@in_loop
async def test_progress_announces_a_step_before_anything_that_the_step_finds(
    capsys: pytest.CaptureFixture[str],
) -> None:
    report = Report("", told=lambda finding: print(finding.step, file=sys.stderr))
    async with told_of_progress(report):
        report.begin("asking")
        report.begin("measuring", 2.0)
        report.add("throughput", Verdict.OK, "fast")
        report.begin("waiting", 1.0, is_news=True)
        report.begin("examining")  # short, and no news
        report.begin("asking again")
    report.begin("after the end", 2.0)
    said = ["tunnel: asking ...", "tunnel: measuring for 2 s ...", "throughput", "tunnel: waiting for 1 s ..."]
    assert capsys.readouterr().err.splitlines() == said


@in_loop
async def test_a_finding_before_a_long_step_does_not_shorten_its_time(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.cli.progress._QUIET_S", 0.01)
    report = Report("")
    async with told_of_progress(report):
        report.add("relay", Verdict.OK, "answers")
        report.begin("pausing", 60.0)
        await asyncio.sleep(0.3)
        assert capsys.readouterr().err == "tunnel: pausing for 60 s ...\n"


@in_loop
async def test_news_are_not_followed_at_once_by_a_line_that_there_are_none(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.cli.progress._QUIET_S", 0.01)
    report = Report("")
    async with told_of_progress(report):
        report.begin("asking for db (the exit is silent)", is_news=True)
        await asyncio.sleep(0.3)
        assert capsys.readouterr().err == "tunnel: asking for db (the exit is silent) ...\n"


async def _until(text: str, capsys: pytest.CaptureFixture[str]) -> str:
    said = ""
    async with asyncio.timeout(_WAIT_S):
        while text not in said:
            await asyncio.sleep(0.02)
            said += capsys.readouterr().err
    return said
