"""The command tunnel-relay: the effects, output and exit codes of its subcommands. A few tests use processes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import resource
import signal
import stat
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path

import pytest
import structlog

from tests.servlet.command.rig import process
from tests.servlet.rig import relay
from tests.support.loops import in_loop
from tunnel import attach
from tunnel_servlet.command.files import load_config, read_tokens
from tunnel_servlet.command.main import main
from tunnel_servlet.config import parse_config

COMMANDS = [["init"], ["serve"], ["exit"], ["check"], ["drain"], ["rule"], ["rule", "check"], ["user"], ["audit"]]
COMMANDS += [["ps"], ["kick"]]
COMMANDS += [["user", action] for action in ("add", "rotate", "revoke", "list")]


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test a directory of its own, and restore the log afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TUNNEL_TOKEN", raising=False)
    yield
    structlog.reset_defaults()


@pytest.fixture
def made(capsys: pytest.CaptureFixture[str]) -> str:
    """Create relay.toml in the current directory; return the token of its user."""
    assert main(["init", "relay.toml", "--user", "ann"]) == 0
    return capsys.readouterr().out.strip()


def test_init_creates_a_working_configuration(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    config = load_config("relay.toml")
    identity = config.tokens.identify(made)
    assert identity is not None
    assert identity.user == "ann"
    assert config.grants.rules_of("ann").check_target("example.com", 443).allowed
    assert made not in Path("relay.toml").read_text() + Path("relay.tokens.toml").read_text()
    assert main(["check"]) == 0
    assert capsys.readouterr().out == "ok: 1 token(s), rules for 1 user(s)\n"


def test_init_allows_the_named_targets_in_place_of_the_example(capsys: pytest.CaptureFixture[str]) -> None:
    """Also those on loopback, which a rule must name."""
    allowed = ["127.0.0.1:8000", "[::1]:22", "localhost:5432", "udp/10.0.0.53:53", 'unix:/run/"😀".sock']
    assert main(["init", "relay.toml", "--user", "ann", *(f"--allow={rule}" for rule in allowed)]) == 0
    assert "relay.tokens.toml; now run: tunnel-relay serve -c relay.toml" in capsys.readouterr().err
    rules = load_config("relay.toml").grants.rules_of("ann")
    assert [rule.text for rule in rules.rules + rules.datagrams.rules] == [*allowed[:3], allowed[4], allowed[3]]
    assert rules.check_target("127.0.0.1", 8000).allowed
    assert rules.check_address(ip_address("127.0.0.1"), 5432, "localhost").allowed
    assert not rules.check_target("127.0.0.1", 8001).allowed
    assert not rules.check_target("example.com", 443).allowed
    assert not load_config("relay.toml").grants.rules_of("bob").check_target("127.0.0.1", 8000).allowed


@pytest.mark.parametrize("rule", ["127.0.0.1", "127.0.0.1:0", "::1:80", "", 'a"]:80'])
def test_init_refuses_a_target_that_is_no_rule(rule: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "relay.toml", "--allow", "127.0.0.1:80", "--allow", rule]) == 2
    assert f"tunnel-relay: --allow: {rule!r}" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_init_changes_no_existing_file(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    before = read_tokens(Path("relay.tokens.toml")).users
    assert main(["init", "relay.toml"]) == 2
    Path("relay.toml").unlink()
    assert main(["init", "relay.toml"]) == 2
    assert "exists: nothing was changed" in capsys.readouterr().err
    assert read_tokens(Path("relay.tokens.toml")).users == before


def test_init_explains_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "missing/relay.toml"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert main(["init", "relay.toml", "--user", "a b"]) == 2
    assert "is not a user name" in capsys.readouterr().err


def test_a_token_is_written_to_a_file_of_its_owner(capsys: pytest.CaptureFixture[str]) -> None:
    before = os.umask(0)
    try:
        assert main(["init", "relay.toml", "--user", "ann", "--token-file", "token"]) == 0
    finally:
        os.umask(before)
    captured = capsys.readouterr()
    token = Path("token").read_text().strip()
    assert stat.S_IMODE(Path("token").stat().st_mode) == 0o600
    assert captured.out == ""
    assert token not in captured.err
    assert "the token of ann (key id " in captured.err
    assert "is in token, which only you can read" in captured.err
    assert load_config("relay.toml").tokens.identify(token) is not None
    assert main(["user", "add", "bob", "--token-file", "bob", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["token_file"] == "bob"
    assert main(["user", "rotate", "bob", "--token-file", "bob2"]) == 0
    tokens = load_config("relay.toml").tokens
    assert all(tokens.identify(Path(name).read_text().strip()) is not None for name in ("bob", "bob2"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("full", "--token-file full exists: nothing was changed; choose another name"),
        ("link", "--token-file link exists: nothing was changed"),
        ("missing/token", "--token-file missing/token cannot be written: No such file or directory"),
        ("relay.toml", "--token-file relay.toml is the name of another file of the relay"),
        ("./relay.tokens.toml", "is the name of another file of the relay"),
    ],
)
def test_init_changes_nothing_if_the_token_file_cannot_be_created(
    name: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("full").write_text("mine")
    Path("link").symlink_to("elsewhere")
    assert main(["init", "relay.toml", "--token-file", name]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""
    assert sorted(path.name for path in Path().iterdir()) == ["full", "link"]
    assert Path("full").read_text() == "mine"


def test_no_token_file_is_left_where_the_configuration_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "missing/relay.toml", "--token-file", "token"]) == 2
    assert "cannot be written" in capsys.readouterr().err
    assert list(Path().iterdir()) == []


def test_the_template_is_valid_when_its_commented_settings_are_enabled(made: str) -> None:
    lines = Path("relay.toml").read_text().splitlines()
    settings_ = [line.removeprefix("# ") for line in lines if re.match(r"# (\[|\w+ = )", line)]
    assert "[tls]" in settings_
    text = "\n".join(line.removeprefix("# ") if line.removeprefix("# ") in settings_ else line for line in lines)
    config = parse_config(text, "relay.toml")
    assert config.tls is not None
    assert config.tls.client_ca == "clients.crt"


def test_users_are_added_rotated_and_revoked(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["user", "add", "bob", "--json"]) == 0
    bob = json.loads(capsys.readouterr().out)
    assert main(["user", "rotate", "bob"]) == 0
    printed = capsys.readouterr()
    second = printed.out.strip()
    assert "not valid any more" not in printed.err
    tokens = load_config("relay.toml").tokens
    assert {tokens.identify(token) is not None for token in (bob["token"], second, made)} == {True}
    assert main(["user", "rotate", "bob"]) == 0
    printed = capsys.readouterr()
    third = printed.out.strip()
    removed = f"the token with the key id {bob['key']} is not valid any more: a user has at most 2 tokens"
    assert removed in printed.err
    tokens = load_config("relay.toml").tokens
    assert [tokens.identify(token) is not None for token in (bob["token"], second, third)] == [False, True, True]
    assert main(["user", "revoke", "bob", "--key", second.split("_")[1]]) == 0
    assert load_config("relay.toml").tokens.identify(second) is None
    capsys.readouterr()
    assert main(["user", "list", "--json"]) == 0
    listed = json.loads(capsys.readouterr().out)
    assert [(row["user"], row["key"]) for row in listed] == [("ann", made.split("_")[1]), ("bob", third.split("_")[1])]
    assert main(["user", "revoke", "bob"]) == 0
    assert main(["user", "list"]) == 0
    assert capsys.readouterr().out.startswith("ann\t")
    assert list(read_tokens(Path("relay.tokens.toml")).users) == ["ann"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["user", "add", "ann"], "ann exists: run `tunnel-relay user rotate ann -c relay.toml`"),
        (["user", "rotate", "bob"], "no user bob: run `tunnel-relay user add bob -c relay.toml`"),
        (["user", "revoke", "bob"], "no user bob: `tunnel-relay user list -c relay.toml` shows the users"),
        (["user", "revoke", "an"], "no user an: did you mean ann? `tunnel-relay user list -c relay.toml` shows"),
        (["user", "rotate", "anm"], "no user anm: did you mean ann? run `tunnel-relay user add anm"),
        (
            ["rule", "check", "anm", "x:1"],
            "no user anm has a token or rules in relay.toml: did you mean ann? the users",
        ),
        (["serve", "--listen", "::1:0"], "--listen: '::1:0' is not an address: put brackets around IPv6"),
        (["serve", "--allow", "db"], "--allow: 'db' is not a rule: write HOST:PORT"),
        (["user", "revoke", "ann", "--key", "00000000"], "no token with the key id 00000000: the key ids of ann are "),
        (["user", "add", "a:b"], "is not a user name"),
        (["user", "add", "bob", "-c", "other.toml"], "other.toml: no such file: run `tunnel-relay init other.toml`"),
        (["rule", "check", "ann", "x:y"], "'x:y' is not a target"),
        (["rule", "check", "ann", "x:99999"], "'x:99999' is not a target (a TCP port must be 1 to 65535, not 99999)"),
        (["rule", "check", "ann", ""], "'' is not a target"),
        (["rule", "check", "ann", "a\udcff:1"], "'a\\udcff:1' is not a target: write HOST:PORT"),
        (["init", ""], "'' is not a file name"),
        (["check", "-c", "."], ". cannot be read (Is a directory): check the path"),
        (
            ["exit", "--relay", "x", "--allow", "a:1", "--token-file", "relay.tokens.toml"],
            "'x' is not a relay URL: write https://HOST",
        ),
        (["serve", "--listen", "x"], "--listen: 'x' is not an address"),
        (["serve", "--open", "--allow", "x:1", "--listen", "0.0.0.0:0"], "--open: other machines can reach 0.0.0.0:0"),
        (["check", "-c", "other.toml"], "other.toml: no such file"),
        (["drain", "--admin", "x"], "--admin: 'x' is not an address"),
        (["exit", "--relay", "http://127.0.0.1:1"], "no token: set TUNNEL_TOKEN"),
        (["exit", "--relay", "http://127.0.0.1:1", "--token-file", "x"], "--token-file x"),
    ],
)
def test_usage_errors_are_explained_and_end_with_code_2(
    arguments: list[str], message: str, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_commands_refuse_to_run_without_tokens_rules_or_admin_listener(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["serve"]) == 2
    assert "there is no relay.toml here: create one with `tunnel-relay init" in capsys.readouterr().err
    Path("relay.toml").write_text("[users.ann]\nconnect = ['a:1']\n")
    assert main(["serve"]) == 2
    assert "no user has a token: run `tunnel-relay user add NAME -c relay.toml`" in capsys.readouterr().err
    Path("relay.toml").unlink()
    assert main(["exit", "--relay", "http://127.0.0.1:1"]) == 2
    assert "an exit without rules" in capsys.readouterr().err
    for command in ("drain", "state", "ps"):
        assert main([command]) == 2
        said = "there is no relay.toml here: name the relay's configuration with -c, or the address with --admin\n"
        assert capsys.readouterr().err == f"tunnel-relay: no admin listener is known: {said}"
    Path("relay.toml").write_text("[users.ann]\nconnect = ['a:1']\n")
    assert main(["ps"]) == 2
    assert "relay.toml has none: set admin there, or name the address with --admin\n" in capsys.readouterr().err


def test_check_reports_listeners_without_tls_and_rules_without_tokens(
    made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["check", "--listen", "0.0.0.0:80", "--listen", "127.0.0.1:80"]) == 0
    assert "note: no TLS on 0.0.0.0:80" in capsys.readouterr().out
    text = Path("relay.toml").read_text()
    Path("relay.toml").write_text(f"{text}\n[users.anm]\nservices = ['*']\n[users.'a.b']\nservices = ['*']\n")
    assert main(["check"]) == 0
    notes = capsys.readouterr().err
    assert "anm has rules but no token: run `tunnel-relay user add anm -c relay.toml`, or remove [users.anm]" in notes
    assert 'or remove [users."a.b"]' in notes
    Path("relay.toml").write_text(text.replace("[users.ann]", "[users.anm]"))
    assert main(["check"]) == 0
    assert "note: anm has rules but no token: did you mean ann? run" in capsys.readouterr().err
    Path("relay.toml").write_text(text.replace("[users.ann]", "[everyone]\nservices = ['x']\n[users.anm]"))
    assert main(["check", "--open"]) == 0
    assert "note: with --open, the rules of anm are not used: only [everyone]" in capsys.readouterr().err
    Path("relay.toml").write_text(text)
    assert main(["check", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "tokens": 1, "users": ["ann"], "without_tls": []}


@pytest.mark.parametrize("words", [["rule", "check", "ann", "x:1"], ["drain"], ["check"], ["serve"], ["user", "list"]])
def test_a_command_in_a_folder_without_a_configuration_says_so(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    shown = capsys.readouterr().err
    assert "there is no relay.toml here" in shown or "relay.toml: no such file" in shown
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("target", "code", "words"),
    [
        ("example.com:443", 0, "allowed\texample.com:443"),
        ("example.com:80", 5, "denied\texample.com:80\tno rule allows example.com:80"),
        ("[::1]:80", 5, "denied\t[::1]:80"),
        ("reports", 5, "denied\treports\tno rule allows the service reports"),
        ("udp/example.com:443", 5, "denied\tudp/example.com:443\tno rule allows udp/example.com:443"),
    ],
)
def test_rule_check_says_whether_a_target_is_allowed(
    target: str, code: int, words: str, made: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["rule", "check", "ann", target]) == code
    assert words in capsys.readouterr().out


def test_rule_check_shows_the_rates_of_what_is_allowed(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path("relay.toml")
    rated = '[users.ann]\nrate = "20 MiB/s"\nrates = { "example.com:443" = "1.5 MB/s" }'
    path.write_text(path.read_text().replace("[users.ann]", rated))
    assert main(["rule", "check", "ann", "example.com:443"]) == 0
    expected = "allowed, in each direction 20 MiB/s for the user and 1.431 MiB/s by the rate of example.com:443 at most"
    assert expected in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "codes"),
    [
        ([], [0, 5, 5]),
        (["--open"], [0, 5, 5]),
        (["--allow", "x:1"], [0, 0, 5]),
        (["--open", "--allow", "x:1"], [0, 0, 5]),
    ],
)
def test_rule_check_decides_as_the_server_with_the_same_flags(flags: list[str], codes: list[int]) -> None:
    Path("relay.toml").write_text("[everyone]\nconnect = ['web:80']\n")
    assert [main(["rule", "check", "open", target, *flags]) for target in ("web:80", "x:1", "reports")] == codes


def test_rule_check_of_an_open_relay_without_a_file_allows_all_unless_allow_is_given(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["rule", "check", "open", "x:1", "--open"]) == 0
    assert main(["rule", "check", "open", "x:1", "--open", "--allow", "y:1"]) == 5
    capsys.readouterr()
    assert main(["rule", "check", "ann", "x:1", "--open"]) == 2
    assert "every client of an open relay is the user open" in capsys.readouterr().err


def test_rule_check_checks_the_addresses_of_a_name(made: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = Path("relay.toml").read_text()
    Path("relay.toml").write_text(text.replace('"example.com:443"', '"localhost:80", "name.invalid:80"'))
    assert main(["rule", "check", "ann", "localhost:80", "--resolve", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found[0] == {"target": "localhost:80", "allowed": True, "reason": "allowed"}
    assert "127.0.0.1" in [row["target"] for row in found if row["allowed"]]
    assert main(["rule", "check", "ann", "name.invalid:80", "--resolve"]) == 3


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_every_command_has_help_with_an_example(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*command, "--help"])
    assert ended.value.code == 0
    assert f"example: {'TUNNEL_TOKEN=... ' * (command == ['exit'])}tunnel-relay {command[0]}" in capsys.readouterr().out


def test_an_unknown_flag_is_said_by_its_command(capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["serve"], ["user", "add", "ann"], ["rule", "check", "ann", "x:1"]):
        with pytest.raises(SystemExit):
            main([*command, "--jsno"])
        words = " ".join(word for word in command if word in ("serve", "user", "add", "rule", "check"))
        said = f"tunnel-relay {words}: unknown option --jsno: did you mean --json?\n"
        assert capsys.readouterr().err == said


@pytest.mark.parametrize(
    "arguments",
    [
        *([], ["dance"], ["serve", "--lisen", "x"], ["user", "add"]),
        *(["drain", "--timeout", seconds] for seconds in ("x", "-1", "9" * 13, "9" * 5000)),
    ],
)
def test_unparsable_arguments_end_with_code_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2


def test_the_help_lists_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    assert "4 not authenticated" in " ".join(capsys.readouterr().out.split())


# --- processes


ANY = ["--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]


def test_two_users_the_admin_listener_answers_when_unauthenticated_clients_hold_all_descriptors(made: str) -> None:
    @in_loop
    async def test() -> None:
        async with process("serve", *ANY) as relay_:
            url, admin = await relay_.urls()
            pid = relay_.process.pid
            used = len(os.listdir(f"/proc/{pid}/fd"))
            soft, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
            assert soft >= min(hard, 10_000 * 4 // 3 + 4096 + 256)
            resource.prlimit(pid, resource.RLIMIT_NOFILE, (used + 4, hard))
            host, port = url.removeprefix("http://").split(":")
            held = [await asyncio.open_connection(host, int(port)) for _ in range(8)]
            await relay_.line("no_descriptors")
            for _ in range(8):
                reader, writer = await asyncio.open_connection(*admin.removeprefix("http://").split(":"))
                writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
                assert b" 200 " in await reader.readline()
                await reader.read()
                writer.close()
                await writer.wait_closed()
            for _, writer in held:
                writer.close()
                await writer.wait_closed()
            async with attach(url, token=made, proxy=None, carrier="poll") as client:
                assert client.is_attached

    test()


def test_a_relay_serves_reloads_and_drains(made: str) -> None:
    @in_loop
    async def test() -> None:
        async with process("serve", *ANY) as relay_:
            url, admin = await relay_.urls()
            async with attach(url, token=made, proxy=None, carrier="poll") as client:
                assert client.is_attached
            assert main(["user", "add", "bob"]) == 0
            relay_.process.send_signal(signal.SIGHUP)
            assert json.loads(await relay_.line("reloaded"))["tokens"] == 2
            code = await asyncio.to_thread(main, ["drain", "--admin", admin.removeprefix("http://"), "--timeout", "30"])
            assert code == 0
            assert await relay_.ended() == 0
            assert made not in "".join(relay_.lines)

    test()


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_a_signal_ends_a_relay(number: signal.Signals, code: int) -> None:
    @in_loop
    async def test() -> None:
        async with process("serve", "--open", *ANY) as relay_:
            url, _ = await relay_.urls()
            async with attach(url, proxy=None, carrier="poll"):
                relay_.process.send_signal(number)
                assert await relay_.ended() == code

    test()


def test_draining_an_unreachable_relay_ends_with_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["drain", "--admin", "127.0.0.1:1"]) == 3
    assert "no relay answers at 127.0.0.1:1" in capsys.readouterr().err


@in_loop
async def test_draining_by_a_public_listener_ends_with_code_2() -> None:
    async with relay() as running:
        address = str(running.addresses[0])  # the public listener, which does not have the path /drain
        assert await asyncio.to_thread(main, ["drain", "--admin", address]) == 2
