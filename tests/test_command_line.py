"""Errors of a command: one line on standard error and an exit code, whatever was raised."""

from pathlib import Path

import pytest

from tunnel.command_line import exit_code_of
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
def test_an_error_is_one_line(error: BaseException, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: raising(error), (LookupError,)) == code
    printed = capsys.readouterr().err
    assert printed.startswith(line)
    assert printed.count("\n") == (1 if line else 0)


def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: len((tmp_path / "none").read_text())) == USAGE
    text = f"x: {tmp_path / 'none'} cannot be used: No such file or directory: check the path and its permissions\n"
    assert capsys.readouterr().err == text


def test_the_traceback_of_a_defect_is_printed_on_demand(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of("x", lambda: raising(ZeroDivisionError("why")), has_details=True) == INTERNAL
    assert "Traceback" in capsys.readouterr().err
