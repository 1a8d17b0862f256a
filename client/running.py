"""How a command runs its coroutine: signals end it in order, and errors that people make are told as such."""

import asyncio
import signal
from collections.abc import Callable, Coroutine
from typing import Any

from client.usage import UsageError
from tunnel import LostError
from tunnel.shell import OK

__all__ = ["new_event_loop", "run"]


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop's where it exists."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def run(
    main: Coroutine[Any, Any, int],
    *,
    serves: bool = False,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
) -> int:
    """The command's exit code. SIGTERM and SIGHUP cancel it as SIGINT does; `serves`: SIGTERM is then its good end.

    KeyboardInterrupt when it was cancelled so; what waited too long is a LostError.
    """
    stopped: list[signal.Signals] = []

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()

        def stop(number: signal.Signals) -> None:
            stopped.append(number)
            task.cancel()

        for number in (signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, stop, number)
        return await main

    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(watched())
    except asyncio.CancelledError:
        if serves and signal.SIGTERM in stopped:
            return OK
        raise KeyboardInterrupt from None
    except TimeoutError as error:
        raise LostError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
