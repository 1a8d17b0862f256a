"""`tunnel peers`: what it lists, and how keys are trusted and forgotten."""

import stat
from pathlib import Path

import pytest

from tunnel_client.cli.main import main
from tunnel_client.login_file import known_peers_path, write_login
from tunnel_client.stored_login import Login

A, B = ("SHA256:" + letter * 43 for letter in "AB")
RELAY = "https://relay.example"


@pytest.fixture(autouse=True)
def relay(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", RELAY)


def listed(capsys: pytest.CaptureFixture[str]) -> list[str]:
    capsys.readouterr()
    assert main(["peers", "list"]) == 0
    return capsys.readouterr().out.splitlines()


def test_keys_are_trusted_listed_and_forgotten(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["peers", "list"]) == 0
    assert "no keys are known" in capsys.readouterr().err
    assert main(["peers", "trust", "exit", A, B]) == 0
    assert main(["peers", "trust", "service:reports", B, "--relay", "https://other"]) == 0
    assert listed(capsys) == [f"{RELAY} exit {A}", f"{RELAY} exit {B}", f"https://other service:reports {B}"]
    assert stat.S_IMODE(known_peers_path().stat().st_mode) == 0o600
    assert main(["peers", "forget", "exit", A]) == 0
    assert listed(capsys) == [f"{RELAY} exit {B}", f"https://other service:reports {B}"]
    assert main(["peers", "forget", "exit"]) == 0
    assert main(["peers", "forget", "exit"]) == 2
    assert "`tunnel peers list` shows them" in capsys.readouterr().err
    assert listed(capsys) == [f"https://other service:reports {B}"]


def test_the_relay_may_come_from_the_login(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("TUNNEL_RELAY")
    assert main(["peers", "trust", "exit", A]) == 2
    assert "no relay" in capsys.readouterr().err
    write_login(Login("https://stored/"))
    assert main(["peers", "trust", "exit", A]) == 0
    assert listed(capsys) == [f"https://stored exit {A}"]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["trust", "exits", A], "write exit, or service:"),
        (["trust", "service:", A], "write exit, or service:"),
        (["trust", "exit", "SHA256:short"], "is not a key"),
    ],
)
def test_invalid_peers_and_keys_are_refused(
    arguments: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["peers", *arguments]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["list"], ["trust", "exit", A], ["forget", "exit"]])
def test_a_damaged_file_is_a_usage_error(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    path = known_peers_path()
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text("nonsense\n")
    assert main(["peers", *arguments]) == 2
    assert f"{path}, line 1 is malformed" in capsys.readouterr().err
