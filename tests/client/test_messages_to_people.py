"""Error messages for people say what went wrong, why, and what to do next; the commands end with the documented exit
code."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from tests.client.rig import TOKEN, Rig
from tests.support.proxies import UpstreamProxy
from tunnel_client.cli.main import COMMANDS as ALL_COMMANDS
from tunnel_client.cli.main import main

# Each needs a relay; port 0 means any free port.
COMMANDS = {
    "connect": ["connect", "db.internal:5432", "--wait", "1"],
    "forward": ["forward", "0:db.internal:5432", "--wait", "1"],
    "expose": ["expose", "reports", "127.0.0.1:1", "--wait", "1"],
    "proxy": ["proxy", "0", "--wait", "1"],
    "doctor": ["doctor", "--watch", "0.1"],
}
every_command = pytest.mark.parametrize("name", COMMANDS)


@pytest.fixture
def said(known: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr("tunnel_client.doctor.path_steps.LOAD_S", 0.1)

    def run(*arguments: str) -> tuple[int, str]:
        """Run the command; return its exit code and all its output."""
        code = main(list(arguments))
        found = capsys.readouterr()
        text = " ".join((found.out + found.err).split())
        assert TOKEN not in text
        assert "Traceback" not in text
        for line in found.err.splitlines():
            clauses = [clause.strip() for clause in re.split(r"[:;()]", line)]
            assert [clause for clause in clauses if len(clause.split()) > 1 and clauses.count(clause) > 1] == [], line
        return code, text

    return run


@every_command
def test_a_wrong_token_is_explained(name: str, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", f"{TOKEN[:-2]}xx")
    code, text = said(*COMMANDS[name])
    assert code == 4
    assert re.search(r"no such token|does not know the token", text)
    assert re.search(r"check the token|check it, or ask", text)


@every_command
def test_a_relay_that_is_down_is_explained(name: str, said: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with hold_port() as port:
        monkeypatch.setenv("TUNNEL_RELAY", f"http://127.0.0.1:{port}")
        code, text = said(*COMMANDS[name])
    assert code == 3
    assert re.search(rf"(no relay|nothing) answers at .*http://127.0.0.1:{port}", text)
    assert "(the connection was refused)" in text
    assert re.search(r"check the URL, the proxy, the relay; `tunnel doctor`|check host and port of the URL", text)


@contextmanager
def proxy_with_password(rig: Rig) -> Iterator[str]:
    proxy: UpstreamProxy = rig.enter(UpstreamProxy(user="me:secret"))
    yield f"127.0.0.1:{proxy.port}"


@every_command
def test_a_proxy_that_demands_a_password_is_explained(name: str, known: Rig, said: Any) -> None:
    with proxy_with_password(known) as address:
        for proxy in (f"http://{address}", f"http://me:wrong-one@{address}"):
            code, text = said(*COMMANDS[name], "--proxy", proxy)
            assert code == 4
            assert re.search(r"HTTP 407|the proxy http://127.0.0.1:\d+ asks for", text)
            assert re.search(
                r"check .*the proxy's user and password|into a file of mode 0600, and give --proxy @FILE|"
                r"check user and password",
                text,
            )
            assert "wrong-one" not in text
            assert len(re.findall(r"asks? for", text)) == 1, "it is said once"
            assert "the proxy:" not in text


TARGETS = {
    "denied by a rule": (
        5,
        "example.com:80",
        "no rule allows example.com:80",
        "ask the operator of the relay for a rule",
    ),
    "refused": (6, "127.0.0.1:{closed}", "refused the connection", "check that it listens there"),
    "not resolved": (6, "nowhere.invalid:80", "nowhere.invalid has no address", "check it as seen from the exit"),
    "no service": (6, "reports", "no endpoint listens under this name", "start the service, or check its name"),
}


@pytest.mark.parametrize("name", ["connect", "doctor"])
@pytest.mark.parametrize("case", TARGETS)
def test_targets_that_are_not_reached_are_explained(case: str, name: str, said: Any) -> None:
    code, target, cause, advice = TARGETS[case]
    with hold_port() as closed:
        target = target.format(closed=closed)
        options = COMMANDS[name][-2:]
        found, text = said(name, target, *options)
    assert found == code
    assert target in text
    assert cause in text
    assert advice in text


def test_a_name_that_may_not_be_published_is_explained(said: Any) -> None:
    code, text = said("expose", "secret", "127.0.0.1:1")
    assert code == 5
    assert "secret: the relay does not allow this user to listen under this name: ask its operator" in text


def test_login_does_not_store_a_login_that_fails(home: Path, said: Any) -> None:
    file = home / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    with hold_port() as port:
        url = f"http://127.0.0.1:{port}"
        code, text = said("login", url, "--token-file", str(file), "--wait", "0.5")
    assert code == 3
    assert f"`tunnel doctor --relay {url} --token-file {file}` finds out which" in text
    assert not (home / "config").exists()


@pytest.mark.parametrize("name", ALL_COMMANDS)
def test_help_shows_an_example_and_the_exit_codes(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([name, "--help"])
    assert caught.value.code == 0
    assert f"example: {'ssh' if name == 'connect' else 'tunnel ' + name}" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert "exit codes: 0 ok, 1 a defect of tunnel, 2 usage" in text
    assert f" {name} " in text


@pytest.mark.parametrize(
    ("arguments", "shows_usage"),
    [
        ([], True),
        (["connect"], True),
        (["tunnel"], False),
        (["connect", "a:1", "--carrier", "pigeon"], False),
        (["--log"], False),
    ],
)
def test_the_usage_is_printed_where_the_error_cannot_say_what_to_write(
    arguments: list[str], shows_usage: bool, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2
    assert ("\nusage: tunnel" in capsys.readouterr().err) == shows_usage


def test_a_missing_relay_setting_is_explained(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in COMMANDS.values():
        assert main(command) == 2
        assert "no relay: give --relay URL, set TUNNEL_RELAY" in capsys.readouterr().err


def test_the_version_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--version"])
    assert caught.value.code == 0
    assert re.fullmatch(r"tunnel \d+\.\d+\.\d+\n", capsys.readouterr().out)


def test_every_command_is_described() -> None:
    text = (Path(__file__).parents[2] / "docs" / "COMMANDS.md").read_text()
    for name in ALL_COMMANDS:
        assert f"tunnel {name}" in text or f"[{name}]" in text, name
