"""Small runs of the experiment: without the tunnel messages are lost, with it none; and the command's exit codes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from loadtests.experiments.message_loss import __main__ as command
from loadtests.experiments.message_loss.records import received_ids
from loadtests.experiments.message_loss.report import Report
from loadtests.experiments.message_loss.run import Experiment, run
from loadtests.experiments.message_loss.signs import Sign
from tests.support.loops import run as run_in_loop

# Half a second of messages is on the path when it dies, so that some are lost however busy the machine is.
SMALL = Experiment(rate=200, size_bytes=2048, receivers=2, break_after_s=1.5, delay_ms=500.0)


def report_of(experiment: Experiment) -> Report:
    found: list[Report] = []

    async def test() -> None:
        found.append(await run(experiment))

    run_in_loop(test(), deadline_s=180)
    return found[0]


@pytest.mark.timeout(200)
@pytest.mark.parametrize("broker", ["builtin", pytest.param("nats", marks=pytest.mark.real("nats-server"))])
def test_a_broken_path_loses_messages(broker: str, tmp_path: Path) -> None:
    report = report_of(replace(SMALL, broker=broker, directory=tmp_path))
    assert report.lost > 0
    assert report.twice == 0
    assert report.lost == report.published - report.total
    assert report.counts["before"]["published"][0] > 0
    check_signs_and_bytes(report)
    counts = report.counts["before"]
    assert counts["buffered"][0] - counts["written"][0] <= 64 * 1024 // SMALL.size_bytes  # at most one buffer of 64 KiB


def check_signs_and_bytes(report: Report) -> None:
    """Check that all three signs were seen, and that a message has more bytes on the wire than its payload."""
    assert set(report.signs) == {sign.value for sign in Sign}
    for phase in ("before", "after"):
        for name in ("buffered", "written"):
            messages, size = report.counts[phase][name]
            assert messages * (SMALL.size_bytes + 50) < size < messages * (SMALL.size_bytes + 70) or not messages


@pytest.mark.timeout(200)
@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_through_the_tunnel_no_message_is_lost(carrier: str, tmp_path: Path) -> None:
    report = report_of(replace(SMALL, mode="tunnel", delay_ms=20.0, outage_s=4.0, carrier=carrier, directory=tmp_path))
    assert (report.gaps, report.twice) == ([], 0)
    assert report.total == report.published > 0
    after, before = report.counts["after"], report.counts["before"]
    for name in ("published", "buffered", "written"):  # each message counts once, although packets were sent again
        assert before[name][0] + after[name][0] == report.published
    assert before["buffered"][0] >= before["written"][0]
    check_signs_and_bytes(report)
    ids = [number for i in range(2) for number in received_ids(tmp_path / "tunnel-builtin" / f"receiver-{i}.jsonl")]
    assert sorted(ids) == list(range(1, report.published + 1))


def test_the_command_returns_1_only_if_the_tunnel_doubled_a_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    lost = 0

    async def pretend(experiment: Experiment) -> Report:
        assert (experiment.rate, experiment.outage_s, experiment.directory) == (50, 3.5, tmp_path)
        counts = {phase: dict.fromkeys(("published", "buffered", "written"), (1, 1)) for phase in ("before", "after")}
        signs = {"status": 5}
        return Report(experiment.mode, experiment.broker, 10, twice=lost, counts=counts, signs=signs)

    monkeypatch.setattr(command, "run", pretend)
    arguments = ["--tps", "50", "--outage", "3.5", "--directory", str(tmp_path)]
    assert command.main(arguments) == 0
    assert "MODE raw, BROKER builtin" in capsys.readouterr().out
    lost = 1
    assert command.main([*arguments, "--mode", "raw"]) == 0
    capsys.readouterr()
    assert command.main([*arguments, "--mode", "tunnel", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)[0]["mode"] == "tunnel"
    monkeypatch.setattr("shutil.which", lambda program: None)
    assert command.main(["--broker", "nats"]) == 2
    assert "make system-deps" in capsys.readouterr().err
