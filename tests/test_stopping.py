"""The loop of commands that serve: what each signal does while they serve, and while they finish."""

import asyncio
import os
import signal
from collections.abc import Callable

import pytest

from tests.support.loops import in_loop
from tunnel.process.stopping import until_moved, until_stopped


class Command:
    """Serves for ever, and notes what is done to it. Each signal comes when the next thing begins."""

    def __init__(self, *signals: signal.Signals, finishes: bool = True) -> None:
        self.done: list[str] = []
        self._signals = list(signals)
        self._finishes = finishes

    async def serve(self) -> None:
        await self._run("serve", ends=False)

    async def finish(self) -> None:
        await self._run("finish", ends=self._finishes)

    async def _run(self, name: str, *, ends: bool) -> None:
        self.done.append(name)
        if self._signals:
            os.kill(os.getpid(), self._signals.pop(0))
        try:
            if not ends:
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.done.append(f"{name} is cut")
            raise


@pytest.mark.parametrize(
    ("signals", "code", "done"),
    [
        ([signal.SIGTERM], 0, ["serve", "finish", "serve is cut"]),
        ([signal.SIGINT], 130, ["serve", "serve is cut"]),
        ([signal.SIGTERM, signal.SIGTERM], 0, ["serve", "finish", "serve is cut", "finish is cut"]),
        ([signal.SIGTERM, signal.SIGINT], 130, ["serve", "finish", "serve is cut", "finish is cut"]),
    ],
)
@in_loop
async def test_the_first_sigterm_lets_it_finish_and_other_signals_cut(
    signals: list[signal.Signals], code: int, done: list[str]
) -> None:
    command = Command(*signals, finishes=len(signals) == 1)
    assert await until_stopped(command.serve(), command.finish) == code
    assert command.done == done
    assert not asyncio.get_running_loop().remove_signal_handler(signal.SIGTERM)


async def fail() -> None:
    raise ValueError("why")


@in_loop
async def test_the_error_of_either_is_raised() -> None:
    with pytest.raises(ValueError, match="why"):
        await until_stopped(fail())
    with pytest.raises(ValueError, match="why"):
        await until_stopped(Command(signal.SIGTERM).serve(), fail)


@pytest.mark.parametrize(("count", "text"), [(1, "1 open connection until"), (2, "2 open connections until")])
@in_loop
async def test_it_says_what_it_waits_for(count: int, text: str) -> None:
    left = [count, count, 0]
    said: list[str] = []
    take: Callable[[], int] = lambda: left.pop(0)  # noqa: E731
    assert await until_moved(said.append, take, lambda: left) == 0
    assert [text in line for line in said] == [True]


@in_loop
async def test_it_says_nothing_if_nothing_is_open() -> None:
    said: list[str] = []
    assert await until_moved(said.append, lambda: 0, lambda: 0) == 0
    assert said == []
