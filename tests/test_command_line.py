"""The parts that all commands share: one line and an exit code for every error, usage, and a log that has escape
codes only on a terminal."""

import io
from pathlib import Path

import pytest
import structlog

from tunnel.command_line import CommandAdder, CommandParser, configure_log, exit_code_of, may_escape
from tunnel.errors import DeniedError
from tunnel.exit_codes import DENIED, INTERNAL, INTERRUPTED, USAGE


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
    assert capsys.readouterr().err == "x: the proxy says: ?]0;title??[2J?2J ? ü\n"


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: len((tmp_path / "none").read_text())) == USAGE
    text = f"x: {tmp_path / 'none'} cannot be used: No such file or directory: check the path and its permissions\n"
    assert capsys.readouterr().err == text


def test_the_traceback_of_a_defect_is_printed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: raising(ZeroDivisionError("why")), has_details=True) == INTERNAL
    assert "Traceback" in capsys.readouterr().err


# --- usage


def parser() -> CommandParser:
    made = CommandParser(prog="x")
    made.add_argument("--log")
    commands = CommandAdder(made)
    commands.add("serve", "serve", "x serve").add_argument("--listen", metavar="A")
    CommandAdder(commands.add("user", "manage users", "x user add")).add("add", "add a user", "x user add")
    return made


@pytest.mark.parametrize(
    ("arguments", "usage", "message"),
    [
        (["serve", "--lisen", "a"], "usage: x serve", "x serve: error: unrecognized arguments: --lisen a: did you"),
        (["serve", "--lisen=a"], "usage: x serve", "did you mean --listen?; see x serve --help"),
        (["serve", "--qqq"], "usage: x serve", "unrecognized arguments: --qqq; see x serve --help"),
        (["serve", "more"], "usage: x serve", "unrecognized arguments: more; see x serve --help"),
        (["serve", "--log", "debug"], "usage: x serve", "write --log before the name of the command, as in x --log"),
        (["user", "add", "--log", "debug"], "usage: x user add", "write --log before the name of the command, as in x"),
        (["user", "add", "--qqq"], "usage: x user add", "x user add: error: unrecognized"),
        (["--qqq", "serve"], "usage: x [-h]", "unrecognized arguments: --qqq; see x --help"),
        (["srve"], "usage: x [-h]", "invalid choice: 'srve' (choose from 'serve', 'user'): did you mean serve?; see x"),
        (["q"], "usage: x [-h]", "invalid choice: 'q' (choose from 'serve', 'user'); see x --help"),
    ],
)
def test_an_unknown_argument_shows_the_usage_of_its_command(
    arguments: list[str], usage: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parser().parse_args(arguments)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert printed.startswith(usage)
    assert message in printed


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
