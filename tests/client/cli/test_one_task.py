"""How a command's coroutine ends: by itself, by a signal, or by an error that is shown to the user."""

import asyncio
import os
import signal

import pytest

from tunnel import LostError
from tunnel_client.cli.one_task import run
from tunnel_client.errors import UsageError


async def give(code: int) -> int:
    return code


async def signalled(number: signal.Signals) -> int:
    os.kill(os.getpid(), number)
    await asyncio.Event().wait()
    return 0


async def fail(error: Exception) -> int:
    raise error


def test_the_exit_code_of_the_coroutine_is_returned() -> None:
    assert [run(give(code)) for code in (0, 5)] == [0, 5]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_a_signal_interrupts_the_coroutine(number: signal.Signals) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(signalled(number))


def test_timeouts_and_value_errors_become_errors_with_exit_codes() -> None:
    with pytest.raises(LostError, match="too late"):
        run(fail(TimeoutError("too late")))
    with pytest.raises(UsageError, match="a port lies"):
        run(fail(ValueError("a port lies")))
    with pytest.raises(RuntimeError):
        run(fail(RuntimeError()))
