"""Runs one experiment as a command: its options, the product's event loop, the result as text or JSON, exit codes."""

import argparse
import asyncio
import sys
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.harness.processes import NotReadyError
from tunnel import TunnelError
from tunnel.process.event_loops import new_event_loop

__all__ = ["INTERRUPTED", "NO_RESULT", "command", "perform", "size_bytes"]

NO_RESULT = 3
INTERRUPTED = 130

_T = TypeVar("_T")


def command(name: str, description: str | None, example: str) -> argparse.ArgumentParser:
    """Return the parser of `python -m loadtests.NAME`, with an example in its help, and with --json."""
    parser = argparse.ArgumentParser(
        prog=f"python -m loadtests.{name}",
        description=description,
        epilog=f"example: python -m loadtests.{name} {example}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--json", action="store_true", help="print only JSON")
    return parser


def size_bytes(text: str) -> int:
    """Parse a size such as 64MiB. argparse puts the name of the option before the error."""
    try:
        return parse_size_bytes(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


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
