"""The load test of migrations, with a few of them; it notices a run that proves nothing, or that pauses too long."""

import json

import pytest

from loadtests import migrate
from loadtests.migrate import Kind, Migration, Report, _proves_nothing, main


@pytest.mark.timeout(300)
def test_every_byte_arrives(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(migrate, "_PAUSE_S_MAX", dict.fromkeys(Kind, 60.0))  # the machine may be busy
    code = main(["--times", "2", "--size", "4MiB", "--seed", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"], len(report["migrations"])) == (0, "", 2)
    assert report["written"] == report["received"]


def test_a_pause_that_is_too_long_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measured(*_: object) -> Report:
        return Report(1, 100, 1.0, [Migration("link", "poll", Kind.CLOSED, 1.5)], ("a", "b"), ("a", "b"))

    monkeypatch.setattr(migrate, "measure", measured)
    assert main(["--json"]) == 1


def test_a_transfer_without_its_migrations_or_bytes_proves_nothing() -> None:
    one = Migration("link", "poll", Kind.CLOSED, 0.1)
    assert _proves_nothing(Report(1, 100, 1.0, [one, one]), 2, 100) == ""
    assert "1 of 2 migrations" in _proves_nothing(Report(1, 100, 1.0, [one]), 2, 100)
    assert "99 of 100 bytes" in _proves_nothing(Report(1, 99, 1.0, [one, one]), 2, 100)
    assert _proves_nothing(Report(1, 0, 1.0, [one]), 1, 0)
    assert _proves_nothing(Report(1, 100, 1.0), 0, 100)
