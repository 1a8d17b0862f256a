"""Commands that messages propose keep the options that were given, without their secrets, and are right if copied."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from tests.client.doctor.rig import hurry
from tests.client.rig import TOKEN, Rig, greet
from tests.support.proxies import UpstreamProxy
from tunnel_client.cli.main import main, make_parser
from tunnel_client.login_file import login_path
from tunnel_client.proposals import given_options, line, with_options

PATH = ["--hostname", "relay.example", "--insecure-http", "--carrier", "poll", "--user-timeout", "20", "--links", "2"]


def parsed(*words: str) -> Any:
    return given_options(make_parser().parse_args(words))


def test_only_what_was_given_is_kept() -> None:
    assert line("tunnel doctor", parsed("doctor")) == "tunnel doctor"
    assert line("tunnel doctor", parsed("forward", "1:a:1")) == "tunnel doctor"
    assert line("tunnel doctor", parsed("up")) == "tunnel doctor"
    assert line("tunnel doctor", parsed("status")) == "tunnel doctor"


def test_every_option_of_the_path_is_kept_and_quoted() -> None:
    given = parsed(
        *("doctor", "a:1", "--relay", "https://r", "--token-file", "my token", "--ca", "a;b.pem", "--cert", "c.pem"),
        *("--sni", "s", "--pull-interval", "0.5", "--encryption", "require", "--peer-key", "A", "--peer-key", "B"),
        *PATH,
    )
    words = shlex.split(line("tunnel doctor", given))
    again = given_options(make_parser().parse_args(words[1:]))
    assert again == given
    assert len(given) == 13
    assert "'my token'" in line("tunnel doctor", given)


def test_login_names_its_relay_as_the_other_commands_do() -> None:
    given = parsed("login", "https://r", "--proxy", "http://p:3128", "--ca", "x")
    assert line("tunnel doctor", given) == "tunnel doctor --relay https://r --proxy http://p:3128 --ca x"


def test_secrets_are_not_kept() -> None:
    given = parsed("doctor", "--proxy", "http://me:se@cret@p:3128", "--header", "X-Key: hush", "--header", "@h")
    assert line("tunnel doctor", given) == ("tunnel doctor --proxy @FILE --header @FILE --header @h")
    both = parsed("doctor", "--header", "X-Key: hush", "--header", "X-Other: hush")
    assert line("tunnel doctor", both) == "tunnel doctor --header @FILE"


def test_commands_in_a_message_get_the_options() -> None:
    given = parsed("connect", "a:1", "--relay", "https://r")
    text = "see what `tunnel doctor a:1` says, or `tunnel doctor`, or `tunnel peers list`, or `x`"
    assert with_options(text, given) == (
        "see what `tunnel doctor a:1 --relay https://r` says, or `tunnel doctor --relay https://r`, "
        "or `tunnel peers list`, or `x`"
    )


@pytest.mark.parametrize("name", ["login", "forward", "connect", "run"])
def test_an_error_proposes_a_doctor_of_the_same_path(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    with hold_port() as port:
        url = f"http://127.0.0.1:{port}"
        options = ["--token-file", str(file), "--hostname", "relay.example"]
        words = {
            "login": ["login", url, "--wait", "0.5"],
            "forward": ["forward", "0:a:1", "--wait", "0.5", "--relay", url],
            "connect": ["connect", "a:1", "--wait", "0.5", "--relay", url],
            "run": ["run", "--relay", url],
        }[name]
        rest = ["--", "true"] if name == "run" else []
        assert main([*words, *options, *rest]) == 3
        text = capsys.readouterr().err
    if name != "run":  # it has no --wait, so the refused connection ends it
        assert f"`tunnel doctor --relay {url} --token-file {file} --hostname relay.example` finds out" in text


@pytest.fixture
def doctor(known: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    hurry(monkeypatch)

    def run(*arguments: str) -> str:
        main(["doctor", "--json", "--watch", "0.1", *arguments])
        found = capsys.readouterr()
        assert found.err.startswith("tunnel: asking http")
        report = json.loads(next(text for text in found.out.splitlines() if text.startswith('{"version"')))
        program, *words = shlex.split(report["next"])
        assert program == "tunnel"
        make_parser().parse_args(words)  # exits if this is no command
        return str(report["next"])

    return run


def test_the_next_step_of_the_doctor_keeps_the_options(known: Rig, doctor: Any, home: Path) -> None:
    target = f"127.0.0.1:{known.serve(greet)}"
    relay = ["--relay", known.url]
    gate = "--hostname relay.example"
    said = doctor(*relay, target, *gate.split())
    port = said.removeprefix("tunnel forward ").partition(":")[0]
    assert said == f"tunnel forward {port}:{target} --relay {known.url} {gate}"
    assert port != target.partition(":")[2], "the target listens there, on this machine"
    assert doctor(*relay, *gate.split(), "--carrier", "poll") == (f"tunnel login {known.url} --token-file FILE {gate}")
    proxy: UpstreamProxy = known.enter(UpstreamProxy(user="me:secret"))
    wrong = ["--header", "X-Key: hush", "--proxy", f"http://me:wrong@127.0.0.1:{proxy.port}"]
    assert doctor(*relay, *wrong) == f"tunnel doctor --relay {known.url} --proxy @FILE --header @FILE"
    assert doctor(*relay, target, *wrong) == f"tunnel doctor {target} --relay {known.url} --proxy @FILE --header @FILE"
    with hold_port() as port:
        url = f"http://127.0.0.1:{port}"
        assert doctor("--relay", url, "--ca", "a b.pem", *gate.split()) == (
            f"tunnel doctor --relay {url} --ca 'a b.pem' {gate}"
        )
        assert doctor("--relay", url, target) == f"tunnel doctor {target} --relay {url}"
        assert doctor(*relay, f"127.0.0.1:{port}", *gate.split()) == (
            f"tunnel doctor 127.0.0.1:{port} --relay {known.url} {gate}"
        )


def test_a_token_that_the_relay_does_not_know_is_not_proposed_again(known: Rig, doctor: Any, home: Path) -> None:
    files = [home / "known", home / "unknown"]
    for file, token in zip(files, (TOKEN, f"{TOKEN[:-2]}xx"), strict=True):
        file.touch(0o600)
        file.write_text(token)
    found = [doctor("--relay", known.url, "--token-file", str(file)) for file in files]
    assert found == [f"tunnel login {known.url} --token-file {file}" for file in (files[0], "FILE")]


def test_a_login_is_proposed_untried_where_the_relay_asks_for_a_certificate(
    known: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", f"{TOKEN[:-2]}xx")
    tokens = Path(__file__).parents[1] / "support" / "tls"
    cert = next(str(path) for path in sorted(tokens.glob("*.pem")))
    assert doctor("--relay", known.url, "--cert", cert) == f"tunnel login {known.url} --token-file FILE --no-check"


def test_a_damaged_login_is_explained_with_a_whole_command(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = login_path()
    path.parent.mkdir(parents=True)
    path.touch(0o600)
    path.write_text("x")
    assert main(["connect", "a:1"]) == 2
    assert "log in again with `tunnel login URL`" in capsys.readouterr().err


def test_up_proposes_commands_for_the_file_that_was_named(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "my tunnel.toml"
    assert main(["up", "-c", str(file)]) == 2
    assert f"write one with `tunnel up --example -c '{file}'`" in capsys.readouterr().err
    assert main(["up", "--example", "-c", str(file)]) == 0
    assert f"run `tunnel up --check -c '{file}'` and `tunnel up -c '{file}'`" in capsys.readouterr().out
    assert main(["up", "--example"]) == 0
    assert "run `tunnel up --check` and `tunnel up`" in capsys.readouterr().out


def test_several_relays_and_token_files_are_kept_one_by_one() -> None:
    given = parsed("doctor", "--relay", "https://a", "--relay", "https://b", "--token-file", "1", "--token-file", "2 3")
    told = "tunnel doctor --relay https://a --relay https://b --token-file 1 --token-file '2 3'"
    assert line("tunnel doctor", given) == told
    same = parsed("doctor", "--relay", "https://a", "--relay", "https://b", "--token-file", "1", "--token-file", "1")
    assert same["--token-file"] == ["1", "1"]  # one for each relay
