"""A stream that changes its carrier, and whose link and relay are killed, loses no byte; and the report about it."""

import json
import sys

import pytest

from loadtests.experiments.migrations import Interruption, Report, _proves_nothing, main, planned
from tunnel.process.command_line import configure_log


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
