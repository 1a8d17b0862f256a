"""Transfers through nginx survive kills of their relay; and the report about them."""

import json
import sys

import msgspec
import pytest

from loadtests.experiments.killrelay import Kill, Report, _proves_nothing, main
from loadtests.harness.nginx import Nginx
from tunnel.process.command_line import configure_log


@pytest.mark.real("nginx")
@pytest.mark.timeout(300)
def test_two_kills_lose_no_byte_of_an_encrypted_stream(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("error", sys.__stderr__)
    code = main(["--kills", "2", "--size", "4MiB", "--way", "down", "--encrypted", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"], report["encrypted"]) == (0, "", True)
    assert report["peer_key"].startswith("SHA256:")
    assert report["written_digest"] == report["received_digest"]


@pytest.mark.real("nginx")
@pytest.mark.timeout(300)
def test_five_kills_lose_no_byte(capsys: pytest.CaptureFixture[str]) -> None:
    configure_log("error", sys.__stderr__)
    code = main(["--kills", "5", "--size", "12MiB", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"]) == (0, "")
    assert report["written_digest"] == report["received_digest"]
    assert len(report["kills"]) == 5
    assert all(kill["in_flight_bytes"] > 0 for kill in report["kills"])
    assert report["resent"]


REPORT = Report(
    size_bytes=10 << 20,
    way="up",
    kills=[Kill(1 << 20, 4096, 0.5, 1.0)],
    written_digest="aa",
    received_digest="aa",
    seconds=2.0,
    recovery_p50_s=1.0,
    recovery_p99_s=1.0,
    startup_p50_s=0.5,
)


def test_an_invalid_size_and_a_missing_nginx_are_errors(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--size", "many"])
    assert left.value.code == 2
    monkeypatch.setenv("PATH", "")
    with pytest.raises(FileNotFoundError, match="make system-deps"), Nginx("http://127.0.0.1:9"):
        pass


@pytest.mark.parametrize(
    ("change", "kills", "reason"),
    [
        ({}, 2, "there were 1 kills, not 2"),
        ({"kills": []}, 0, "there were 0 kills, not 1"),
        ({"kills": [Kill(1, 0, 0.5, 1.0)]}, 1, "no bytes were in flight"),
        ({"encrypted": True}, 1, "the stream was not encrypted"),
    ],
)
def test_a_transfer_that_nothing_disturbed_proves_nothing(change: dict[str, object], kills: int, reason: str) -> None:
    assert _proves_nothing(REPORT, 1) == ""
    assert reason in _proves_nothing(msgspec.structs.replace(REPORT, **change), kills)
