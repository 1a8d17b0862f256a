"""Runs one experiment as a command: the event loop of the product, the result as text or JSON, and the exit codes."""

import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from loadtests.harness.processes import NotReadyError
from tunnel import TunnelError
from tunnel.event_loops import new_event_loop

__all__ = ["INTERRUPTED", "NO_RESULT", "perform"]

NO_RESULT = 3
INTERRUPTED = 130

_T = TypeVar("_T")


def perform(
    measuring: Coroutine[Any, Any, _T],
    *,
    verdict: Callable[[_T], int],
    text: Callable[[_T], str],
    as_json: bool,
    plain: Callable[[_T], object] = msgspec.to_builtins,
) -> int:
    """Measure, print the result, and return its verdict; NO_RESULT or INTERRUPTED if the run did not come to its end.

    `plain` makes what is printed as JSON.
    """
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            found = runner.run(measuring)
    except (OSError, EOFError, NotReadyError, TunnelError) as error:
        print(f"there is no result: {type(error).__name__}: {error}", file=sys.stderr)
        return NO_RESULT
    except KeyboardInterrupt:
        return INTERRUPTED
    print(msgspec.json.encode(plain(found)).decode() if as_json else text(found))
    return verdict(found)
