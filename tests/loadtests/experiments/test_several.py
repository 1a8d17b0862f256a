"""A transfer outlives kills, freezes and restarts of its two relays, and their loss for one end; and the report."""

import json
import sys

import pytest

from loadtests.experiments.several import least_bytes, main
from tunnel.process.command_line import configure_log


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "options", [[], ["--freeze", "--frozen", "4"], ["--rolling", "--connections", "3"], ["--alone"]]
)
def test_two_blows_at_the_relay_in_use_lose_no_byte(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("error", sys.__stderr__)
    code = main(["--kills", "2", "--size", "16MiB", "--json", *options])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"], len(report["pauses_s"])) == (0, "", 2)
    assert all(0 < stall <= pause for stall, pause in zip(report["stalls_s"], report["pauses_s"], strict=True))
    assert report["written_digest"] == report["received_digest"]


def test_a_size_that_all_blows_may_not_outlast_is_refused_with_one_that_works(
    capsys: pytest.CaptureFixture[str],
) -> None:
    options = ["--rolling", "--kills", "4", "--connections", "200"]
    with pytest.raises(SystemExit):
        main([*options, "--size", "749MiB"])
    assert "--size 749MiB is too small for 4 blows at 200 connections: it must be at least 750MiB" in (
        capsys.readouterr().err
    )


@pytest.mark.timeout(300)
def test_without_a_size_it_is_large_enough_for_the_blows(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each step is as small as it may be: the last blow finds bytes to write."""
    configure_log("error", sys.__stderr__)
    monkeypatch.setattr("loadtests.experiments.several.SIZE_BYTES", 0)
    assert main(["--kills", "3", "--connections", "4", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["failure"], len(report["pauses_s"])) == ("", 3)
    assert report["size_bytes"] == least_bytes(3, 4)
