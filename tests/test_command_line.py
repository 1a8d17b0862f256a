"""The parts that all commands share: one line and an exit code for every error, usage, and a log that has escape
codes only on a terminal."""

import argparse
import errno
import io
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import structlog

import tunnel.analysis.cli
import tunnel_client.cli.broker.main
import tunnel_client.cli.main
import tunnel_servlet.command.main
from tunnel.errors import DeniedError
from tunnel.ground.exit_codes import DENIED, INTERNAL, INTERRUPTED, USAGE
from tunnel.process.command_line import CommandAdder, CommandParser, configure_log, exit_code_of, may_escape


def raising(error: BaseException) -> int:
    raise error


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (LookupError("write it so"), USAGE, "x: write it so\n"),
        (DeniedError("ask"), DENIED, "x: ask\n"),
        (KeyboardInterrupt(), INTERRUPTED, ""),
        (BrokenPipeError(), INTERNAL, ""),
        (
            ZeroDivisionError("\nfirst\nsecond"),
            INTERNAL,
            "x: internal error: ZeroDivisionError: first: run the command ",
        ),
        (ZeroDivisionError(), INTERNAL, "x: internal error: ZeroDivisionError: run the command "),
    ],
)
def test_an_error_is_one_line_at_most(
    error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert exit_code_of("x", lambda: raising(error), (LookupError,)) == code
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert printed.count("\n") == (1 if line else 0)


def test_the_words_of_other_machines_are_no_escape_codes(capsys: pytest.CaptureFixture[str]) -> None:
    error = LookupError("the proxy says: \x1b]0;title\x07\x1b[2J\x9b2J \r ü")
    assert exit_code_of("x", lambda: raising(error), (LookupError,)) == USAGE
    assert capsys.readouterr().err == "x: the proxy says: \\x1b]0;title\\x07\\x1b[2J\\x9b2J \\r ü\n"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: len((tmp_path / "none").read_text())) == USAGE
    text = f"x: {tmp_path / 'none'} cannot be used: No such file or directory: check the path and its permissions\n"
    assert capsys.readouterr().err == text


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT, errno.EROFS])
def test_a_full_disk_is_no_defect_of_tunnel(number: int, capsys: pytest.CaptureFixture[str]) -> None:
    """Such an error of an output or of a file that is open already names no file."""
    assert exit_code_of("x", lambda: raising(OSError(number, os.strerror(number)))) == USAGE
    text = f"x: a file, or the output, cannot be written: {os.strerror(number)}: make room there, or write elsewhere\n"
    assert capsys.readouterr().err == text


def test_the_traceback_of_a_defect_is_printed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: raising(ZeroDivisionError("why")), has_details=True) == INTERNAL
    assert "Traceback" in capsys.readouterr().err


# --- usage


TOKEN = "tnl_290b157e_" + "A" * 43
NO_TOKEN_HERE = (
    "a token does not belong into a command line, which all users of this machine can see: write it into a file of "
    "mode 0600, and name that with --token-file FILE"
)


def parser() -> CommandParser:
    made = CommandParser(prog="x")
    made.add_argument("--log")
    commands = CommandAdder(made)
    serve = commands.add("serve", "serve", "x serve")
    serve.add_argument("--listen", metavar="A")
    serve.add_argument("--wait", nargs="?", type=int)
    serve.add_argument("-o", metavar="FILE")
    commands.add("dial", "dial", "x dial").add_argument("target", metavar="TARGET")
    commands.add("run", "run", "x run -- CMD").add_argument("command", nargs=argparse.REMAINDER)
    user = CommandAdder(commands.add("user", "manage users", "x user add")).add("add", "add a user", "x user add")
    user.add_argument("-c", metavar="FILE")
    user.add_argument("--token-file", metavar="FILE")
    return made


def refused(words: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """Parse the words, which must fail; return the lines of the complaint."""
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --lisen a", "x serve: unknown option --lisen: did you mean --listen?"),
        ("serve --lisen=a", "x serve: unknown option --lisen: did you mean --listen?"),
        ("serve --listen a --wiat", "x serve: unknown option --wiat: did you mean --wait?"),
        ("serve --qqq", "x serve: unknown option --qqq; see x serve --help"),
        ("serve -q", "x serve: unknown option -q; see x serve --help"),
        ("serve --log debug", "x serve: unknown option --log: write it before the command, as in x --log ... serve"),
        (
            "user add --log=debug",
            "x user add: unknown option --log: write it before the command, as in x --log ... user add",
        ),
        ("user add --qqq", "x user add: unknown option --qqq; see x user add --help"),
        ("--qqq serve", "x: unknown option --qqq; see x --help"),
        ("--lgo debug serve", "x: unknown option --lgo: did you mean --log?"),
        # An option of a command before the command. Its value is not taken for a command.
        ("--listen a serve", "x: unknown option --listen: write it after the command, as in x serve --listen ..."),
        (
            "--lisen a serve",
            "x: unknown option --lisen: did you mean --listen, after the command, as in x serve --listen ...?",
        ),
        ("--listen a", "x: unknown option --listen: write it after the command, as in x serve --listen ..."),
        # The option is named even if something else is wrong, too.
        ("dial --qqq", "x dial: unknown option --qqq; see x dial --help"),
        ("dial --qqq here there", "x dial: unknown option --qqq; see x dial --help"),
        ("serve --wait q --lisen a", "x serve: unknown option --lisen: did you mean --listen?"),
        ("run --qqq -- ls -h", "x run: unknown option --qqq; see x run --help"),
        ("run --qqq -- ls", "x run: unknown option --qqq; see x run --help"),
        # Commands
        ("srve", "x: unknown command srve: did you mean serve?"),
        ("srve --listen a", "x: unknown command srve: did you mean serve?"),
        ("q", "x: unknown command q: the commands are serve, dial, run, user"),
        ("user ad", "x user: unknown command ad: did you mean add?"),
        # Other errors
        ("serve more", "x serve: unrecognized arguments: more; see x serve --help"),
        ("serve --wait q", "x serve: argument --wait: invalid int value: 'q'; see x serve --help"),
        # An option of which only the beginning was written
        ("serve --lis a", "x serve: unknown option --lis: did you mean --listen?"),
        (
            "--lis a serve",
            "x: unknown option --lis: did you mean --listen, after the command, as in x serve --listen ...?",
        ),
        # Words that are left over, and a secret among them, which is not shown
        ("dial here 22", "x dial: unrecognized arguments: 22: did you mean here:22?"),
        ("dial 10.0.0.1 22", "x dial: unrecognized arguments: 22: did you mean 10.0.0.1:22?"),
        ("dial 22 22", "x dial: unrecognized arguments: 22; see x dial --help"),
        ("dial here:1 22", "x dial: unrecognized arguments: 22; see x dial --help"),
        ("dial here 22 23", "x dial: unrecognized arguments: 22 23; see x dial --help"),
        ("user add relay.toml", "x user add: unrecognized arguments: relay.toml: did you mean -c relay.toml?"),
        ("serve relay.toml", "x serve: unrecognized arguments: relay.toml; see x serve --help"),
        (
            f"user add {TOKEN}",
            f"x user add: {NO_TOKEN_HERE}",
        ),
        ("dial", "x dial: the following arguments are required: TARGET; see x dial --help"),
    ],
)
def test_an_error_that_says_what_to_write_is_one_line_and_others_show_the_usage_of_their_command(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    first, *more = refused(words, capsys)
    assert first == message
    if message.endswith(" --help") and ": argument " not in message:
        assert more[0].startswith(f"usage: {message.partition(':')[0]} [-h]")
    else:
        assert more == []


@pytest.mark.parametrize(
    "words",
    ["serve --listen -1", "serve --listen=--lisen", "serve -ofile", "run ls --qqq", "run -- --qqq", "dial -- --qqq"],
)
def test_words_that_only_look_like_unknown_options_are_accepted(words: str) -> None:
    parser().parse_args(words.split())


@pytest.mark.parametrize("words", ["serve --lisen a --help", "--qqq -h", "run --qqq -h"])
def test_help_is_shown_in_spite_of_unknown_options(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(words.split())
    assert ended.value.code == 0
    assert capsys.readouterr().out.startswith("usage: x")


MAINS: dict[str, Callable[[list[str]], int]] = {
    "tunnel": tunnel_client.cli.main.main,
    "tunnel-relay": tunnel_servlet.command.main.main,
    "tunnel-broker": tunnel_client.cli.broker.main.main,
    "tunnel-traces": tunnel.analysis.cli.main,
}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            "tunnel forward 5432:db.internal:5432 --realy http://a",
            "tunnel forward: unknown option --realy: did you mean --relay?",
        ),
        ("tunnel connect --realy http://a b:1", "tunnel connect: unknown option --realy: did you mean --relay?"),
        (
            "tunnel --realy http://a proxy 1080",  # not the option --help of tunnel itself
            "tunnel: unknown option --realy: did you mean --relay, after the command, as in tunnel proxy --relay ...?",
        ),
        ("tunnel peers truts db", "tunnel peers: unknown command truts: did you mean trust?"),
        ("tunnel-relay srve", "tunnel-relay: unknown command srve: did you mean serve?"),
        (
            "tunnel login https://a --token x",
            "tunnel login: unknown option --token: did you mean --token-file?",
        ),
        ("tunnel-relay check r.toml", "tunnel-relay check: unrecognized arguments: r.toml: did you mean -c r.toml?"),
        (
            "tunnel connect build.internal 22",  # as for nc %h %p
            "tunnel connect: unrecognized arguments: 22: did you mean build.internal:22?",
        ),
        (
            "tunnel-relay user add --tokn-file f ann",
            "tunnel-relay user add: unknown option --tokn-file: did you mean --token-file?",
        ),
        ("tunnel-relay rule chek", "tunnel-relay rule: unknown command chek: did you mean check?"),
        ("tunnel-broker serve --dri d", "tunnel-broker serve: unknown option --dri: did you mean --dir?"),
        ("tunnel-broker raed orders", "tunnel-broker: unknown command raed: did you mean read?"),
        ("tunnel-traces report --ouput f", "tunnel-traces report: unknown option --ouput: did you mean --output?"),
    ],
)
def test_every_command_says_first_what_an_unknown_word_may_mean(
    words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    program, *arguments = words.split()
    with pytest.raises(SystemExit) as ended:
        MAINS[program](arguments)
    assert ended.value.code == USAGE
    assert capsys.readouterr().err.splitlines() == [message]


# --- escape codes


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TERM": "xterm"}, True),
        ({"TERM": "xterm", "NO_COLOR": ""}, True),
        ({"TERM": "xterm", "NO_COLOR": "1"}, False),
        ({"TERM": "dumb"}, False),
        ({"TERM": "unknown"}, False),
        ({}, True),
    ],
)
def test_only_a_terminal_that_wants_them_gets_escape_codes(
    variables: dict[str, str], expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert may_escape(Terminal()) is expected
    assert not may_escape(io.StringIO())
    shown = Terminal()
    try:
        configure_log("info", shown)
        structlog.get_logger().warning("event", field="value")
    finally:
        structlog.reset_defaults()
    assert ("\x1b" in shown.getvalue()) is expected
    assert "event" in shown.getvalue()
