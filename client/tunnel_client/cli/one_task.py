"""Runs the coroutine of a command that does one thing, and translates its errors for the command line."""

import asyncio
import signal
from collections.abc import Coroutine
from typing import Any

from tunnel import LostError
from tunnel_client.cli.lookups import use_lookups
from tunnel_client.errors import UsageError

__all__ = ["run"]


def run(main: Coroutine[Any, Any, int]) -> int:
    """Run the coroutine and return its exit code.

    SIGTERM and SIGHUP cancel the coroutine, as SIGINT does; KeyboardInterrupt is then raised. A TimeoutError becomes a
    LostError. A ValueError, with which the library rejects an argument, becomes a UsageError.
    """

    async def watched() -> int:
        task = asyncio.current_task()
        assert task is not None
        use_lookups(asyncio.get_running_loop())
        for number in (signal.SIGTERM, signal.SIGHUP):
            asyncio.get_running_loop().add_signal_handler(number, task.cancel)
        return await main

    try:
        with asyncio.Runner() as runner:
            return runner.run(watched())
    except asyncio.CancelledError:
        raise KeyboardInterrupt from None
    except TimeoutError as error:
        raise LostError(str(error)) from error
    except ValueError as error:
        raise UsageError(str(error)) from error
