"""An experiment as a command: its output and its exit codes."""

import json

import pytest

from loadtests.harness.experiment import INTERRUPTED, NO_RESULT, perform
from loadtests.harness.processes import NotReadyError
from tunnel import TunnelError


async def found(value: int) -> int:
    return value


async def broken(error: BaseException) -> int:
    raise error


def run(value: int, *, as_json: bool = False) -> int:
    return perform(
        found(value),
        verdict=lambda value: value,
        text=lambda value: f"it was {value}",
        as_json=as_json,
        plain=lambda value: {"value": value},
    )


def test_the_verdict_is_the_exit_code_and_the_result_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(7) == 7
    assert capsys.readouterr().out == "it was 7\n"
    assert run(0, as_json=True) == 0
    assert json.loads(capsys.readouterr().out) == {"value": 0}


@pytest.mark.parametrize("error", [NotReadyError("the relay ended"), TunnelError("refused"), TimeoutError("late")])
def test_a_run_that_breaks_off_has_no_result(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert perform(broken(error), verdict=int, text=str, as_json=False) == NO_RESULT
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", f"there is no result: {type(error).__name__}: {error}\n")


def test_an_interrupted_run_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert perform(broken(KeyboardInterrupt()), verdict=int, text=str, as_json=False) == INTERRUPTED
    assert capsys.readouterr().out == ""


def test_an_error_of_the_experiment_itself_is_not_hidden() -> None:
    with pytest.raises(ZeroDivisionError):
        perform(broken(ZeroDivisionError()), verdict=int, text=str, as_json=False)
