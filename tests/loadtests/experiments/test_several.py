"""A transfer outlives kills, freezes and restarts of its two relays, and their loss for one end; and the report."""

import json
import sys

import pytest

from loadtests.experiments.several import main
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


@pytest.mark.timeout(300)
def test_a_transfer_that_ends_before_the_last_blow_proves_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("error", sys.__stderr__)
    assert main(["--kills", "2", "--size", "64KiB", "--json"]) == 1
    assert "--size must be larger" in json.loads(capsys.readouterr().out)["failure"]
