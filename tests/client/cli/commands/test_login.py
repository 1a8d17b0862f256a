"""`tunnel login` and `tunnel logout`: a login is stored if the relay accepts it or, with --no-check, untried."""

from __future__ import annotations

import fcntl
import io
import os
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from tests.client.rig import TOKEN, Rig
from tunnel_client.cli.main import main
from tunnel_client.login_file import (
    lock_path,
    login_path,
    open_lock,
    read_login,
    read_logins,
    remove_login,
    write_login,
)
from tunnel_client.stored_login import Login


@pytest.fixture
def file(home: Path) -> str:
    path = home / "token"
    path.touch(0o600)
    path.write_text(f"{TOKEN}\n")
    return str(path)


def test_a_login_is_tried_stored_and_used(rig: Rig, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["login", rig.url, "--token-file", file, "--proxy", "none", "--ca", "ca.pem"]) == 0
    login = read_login()
    assert login == Login(rig.url, token=TOKEN, proxy="none", ca=str(Path("ca.pem").absolute()))
    said = capsys.readouterr()
    assert "which accepts the token" in said.err
    assert TOKEN not in said.err + said.out
    assert main(["connect", "127.0.0.1:1"]) == 6  # the user is known and may connect, but the port is closed
    assert "127.0.0.1:1 refused the connection: check that it listens there" in capsys.readouterr().err
    assert main(["logout"]) == 0
    assert read_login() is None
    assert main(["logout"]) == 0
    assert "nothing was stored" in capsys.readouterr().err
    assert main(["connect", "127.0.0.1:1"]) == 2


def test_the_headers_that_a_gateway_asks_for_are_sent_and_stored(rig: Rig, file: str) -> None:
    gate = ["--header", "X-Key: k", "--hostname", "relay.example"]
    assert main(["login", rig.url, "--token-file", file, "--proxy", "none", *gate]) == 0
    login = Login(rig.url, token=TOKEN, proxy="none", headers={"X-Key": "k"}, hostname="relay.example")
    assert read_login() == login
    assert main(["login", rig.url, "--token-file", file, "--header", "Host: x"]) == 2
    assert read_login() == login


def test_a_wrong_token_is_not_stored(rig: Rig, file: str, capsys: pytest.CaptureFixture[str]) -> None:
    Path(file).write_text(TOKEN[:-1])
    assert main(["login", rig.url, "--token-file", file]) == 4
    assert read_login() is None
    assert "check the token" in capsys.readouterr().err


def test_several_relays_are_stored_and_removed_one_by_one(
    rig: Rig, file: str, capsys: pytest.CaptureFixture[str]
) -> None:
    def login(url: str, *more: str) -> int:
        return main(["login", url, "--token-file", file, "--no-check", *more])

    def stored() -> list[str]:
        return [one.relay for one in read_logins()]

    assert login("https://old.example") == 0
    assert login("https://one.example") == 0
    assert "in place of https://old.example" in capsys.readouterr().err
    assert main(["login", rig.url, "--token-file", file, "--proxy", "none", "--add"]) == 0
    said = capsys.readouterr().err
    assert f"the stored relays, in the order of preference: https://one.example, {rig.url}" in said
    assert read_logins()[1] == Login(rig.url, token=TOKEN, proxy="none")
    assert login("https://one.example/", "--hostname", "x") == 0  # keeps its place
    assert read_logins()[0] == Login("https://one.example/", token=TOKEN, hostname="x")
    assert login("https://other.example") == 2
    assert "2 relays are stored, and https://other.example is none of them" in capsys.readouterr().err
    assert main(["logout", "https://other.example"]) == 2
    assert f"is not stored: name one of https://one.example/, {rig.url}" in capsys.readouterr().err
    assert stored() == ["https://one.example/", rig.url]
    assert main(["logout", "https://one.example"]) == 0
    assert stored() == [rig.url]
    assert main(["connect", "127.0.0.1:1"]) == 6  # the other one is used
    assert login("https://one.example", "--add") == 0
    assert main(["logout"]) == 0
    assert stored() == []
    assert main(["logout"]) == 0
    assert "nothing was stored" in capsys.readouterr().err
    assert main(["logout", rig.url]) == 2
    assert f"{rig.url} is not stored, nor is another relay: name none" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_relay_that_is_stored_in_two_spellings_is_removed_as_one(capsys: pytest.CaptureFixture[str]) -> None:
    spellings = [Login("https://relay.example", token=TOKEN), Login("https://Relay.example:443", token=TOKEN)]
    path = write_login(*spellings, Login("https://two.example", token=TOKEN))
    assert main(["logout", "https://RELAY.example/"]) == 0
    warning, said = capsys.readouterr().err.splitlines()
    assert "holds one relay twice" in warning
    assert said == f"removed from {path}: https://relay.example"
    assert [one.relay for one in read_logins()] == ["https://two.example"]


@pytest.mark.parametrize("url", [[], ["https://one.example"]])
def test_nobody_else_changes_the_file_during_a_logout(
    url: list[str], file: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def is_locked() -> bool:
        descriptor = open_lock(lock_path())
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)
        return False

    seen: list[bool] = []

    def read() -> list[Login]:
        seen.append(is_locked())
        return read_logins()

    def remove() -> bool:
        seen.append(is_locked())
        return remove_login()

    assert main(["login", "https://one.example", "--token-file", file, "--no-check"]) == 0
    monkeypatch.setattr("tunnel_client.login_file.read_logins", read)
    monkeypatch.setattr("tunnel_client.login_file.remove_login", remove)
    assert main(["logout", *url]) == 0
    assert seen == [True, True]
    assert not is_locked()


def test_a_lock_that_cannot_be_opened_does_not_keep_the_tokens(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["login", "https://one.example", "--token-file", file, "--no-check"]) == 0
    lock_path().unlink()
    lock_path().mkdir()
    assert main(["logout", "https://one.example"]) == 2
    assert "cannot be written: Is a directory: set XDG_CONFIG_HOME" in capsys.readouterr().err
    assert read_logins()
    assert main(["logout"]) == 0
    assert not login_path().exists()


def test_a_damaged_file_is_replaced_but_nothing_is_added_to_it(
    file: str, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["login", "https://one.example", "--token-file", file, "--no-check"]
    assert main(command) == 0
    login_path().write_text("{")
    for wrong in ([*command, "--add"], ["logout", "https://one.example"]):
        assert main(wrong) == 2
        assert "is damaged" in capsys.readouterr().err
    assert main(command) == 0
    assert read_login() == Login("https://one.example", token=TOKEN)


def test_an_unreachable_relay_can_be_stored_untried(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    with hold_port() as port:
        assert main(["login", f"http://127.0.0.1:{port}", "--token-file", file, "--no-check"]) == 0
    assert read_login() == Login(f"http://127.0.0.1:{port}", token=TOKEN)
    assert "not tried" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_the_prompt_for_the_token_does_not_echo(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr("getpass.getpass", lambda prompt: f" {TOKEN} ")
    assert main(["login", "https://relay.example", "--no-check"]) == 0
    assert read_login() == Login("https://relay.example", token=TOKEN)

    def end(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("getpass.getpass", end)
    assert main(["login", "https://relay.example", "--no-check"]) == 2
    assert "the token is empty" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_the_token_is_read_from_standard_input_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TOKEN}\nmore\n"))
    assert main(["login", "https://relay.example", "--no-check", "--token-file", "-"]) == 0
    assert read_login() == Login("https://relay.example", token=TOKEN)
    assert main(["login", "https://relay.example", "--no-check"]) == 2
    assert "--token-file FILE, or - for standard input" in capsys.readouterr().err


def test_unusable_token_files_are_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    def login(name: str = file) -> str:
        assert main(["login", "https://relay.example", "--no-check", "--token-file", name]) == 2
        return capsys.readouterr().err

    assert "there is no such file" in login(file + ".missing")
    Path(file).chmod(0o644)
    assert f"run `chmod 600 {file}`" in login()
    Path(file).chmod(0o600)
    Path(file).write_bytes(b"\xff")
    assert "does not hold a token" in login()
    Path(file).write_text("\n")
    assert "is empty: it must hold the token" in login()
    Path(file).write_text("two words")
    assert "the token is empty or has invalid characters" in login()


def test_an_address_that_is_not_a_relay_url_is_refused(file: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["login", "relay.example", "--token-file", file]) == 2
    assert "is not a relay URL: write https://HOST" in capsys.readouterr().err


def test_two_users_a_proxy_s_password_comes_from_a_file(
    file: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "proxy.url"
    path.touch(0o600)
    path.write_text("http://me:s3cret@127.0.0.1:1\n")
    url = "http://127.0.0.1:2"
    assert main(["login", url, "--token-file", file, "--proxy", f"@{path}", "--no-check"]) == 0
    login = read_login()
    assert login == Login(url, token=TOKEN, proxy="http://me:s3cret@127.0.0.1:1")
    path.chmod(0o644)
    for command in (["login", url, "--no-check"], ["connect", "a:1", "--relay", url], ["doctor", "--relay", url]):
        capsys.readouterr()
        assert main([*command, "--token-file", file, "--proxy", f"@{path}"]) == 2
        said = capsys.readouterr().err
        assert f"--proxy @{path} is open to other users" in said
        assert "s3cret" not in said
    assert read_login() == login
