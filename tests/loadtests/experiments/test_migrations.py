"""A stream that changes its carrier, and whose link and relay are killed, loses no byte; and the report about it."""

import json
import sys

import pytest

from loadtests.experiments.migrations import Act, Interruption, Report, _proves_nothing, main, planned, summary
from tunnel.command_line import configure_log


@pytest.mark.timeout(300)
def test_migrations_and_kills_lose_no_byte_of_an_encrypted_stream(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("error", sys.__stderr__)
    code = main(["--migrations", "2", "--size", "32MiB", "--encrypted", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"]) == (0, "")
    assert report["peer_key"].startswith("SHA256:")
    assert report["written_digests"] == report["received_digests"]
    assert [each["act"] for each in report["interruptions"]] == planned(2)
    assert len(set(report["written_digests"])) == 2


def test_the_plan_begins_and_ends_on_a_link() -> None:
    acts = planned(20)
    assert [acts.count(act) for act in Act] == [10, 10, 1, 1]
    on_link = True
    for act in acts:
        assert on_link or act is Act.TO_LINK
        on_link = act is not Act.TO_POLL
    assert on_link


def test_the_summary_states_figures_encryption_and_failures() -> None:
    done = Interruption(Act.TO_POLL, 1 << 20, (1, 2), 0.25)
    report = Report(10 << 20, 2, True, [done], ("aa", "bb"), ("aa", "bb"), "SHA256:x", 2.0)
    text = summary(report)
    assert "10 MiB each way (encrypted from end to end, to SHA256:x) in 2.0 s, 10.0 MiB/s" in text
    assert "2 migrations, 1 kill of the link, 1 of the relay; longest pause 0.25 s" in text
    assert text.endswith("OK: every byte arrived once and in order, in both directions")
    report.failure, report.peer_key = "gone", ""
    assert "(in clear)" in summary(report)
    assert summary(report).endswith("FAILED: gone")


def test_an_odd_number_of_migrations_and_an_invalid_size_are_errors(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments in (["--migrations", "3"], ["--size", "many"]):
        with pytest.raises(SystemExit) as left:
            main(arguments)
        assert left.value.code == 2
    assert "is not an even number" in capsys.readouterr().err


def test_a_transfer_that_was_not_interrupted_as_planned_proves_nothing() -> None:
    done = [Interruption(act, 1 << 20, (1, 0), 0.25) for act in planned(2)]
    assert _proves_nothing(Report(1, 2, False, done)) == ""
    assert "3 of 4 interruptions" in _proves_nothing(Report(1, 2, False, done[:-1]))
    assert "0 of 4 interruptions" in _proves_nothing(Report(1, 2))
    idle = [*done[:-1], Interruption(done[-1].act, 1 << 20, (0, 0), 0.25)]
    assert "no bytes were in flight" in _proves_nothing(Report(1, 2, False, idle))
    assert "not encrypted" in _proves_nothing(Report(1, 2, True, done))
