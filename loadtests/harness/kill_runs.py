"""The command of a load test that kills processes while messages flow, and counts the messages."""

import argparse
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec

from tunnel.ground.exit_codes import INTEGRITY, LOST, OK

__all__ = ["run_kills"]


def run_kills(
    parser: argparse.ArgumentParser,
    arguments: list[str] | None,
    run: Callable[..., Any],
    show: Callable[[Any], None],
    *,
    messages: int,
    kills: int,
    processes: str,
) -> int:
    """Run the load test with the options of the command line, and print its outcome. `processes`: that are killed.

    Return 0 if every message came once and in order, 7 if not, and 6 if the run did not finish in time.
    """
    parser.add_argument("--messages", type=int, default=messages, help=f"messages to send (default {messages})")
    parser.add_argument(
        "--kills",
        type=int,
        default=kills,
        help=f"number of kills (kill -9), evenly among the {processes} processes (default {kills})",
    )
    parser.add_argument(
        "--seed", type=int, default=0, help="seed for the times and the victims of the kills (default 0)"
    )
    parser.add_argument(
        "--limit", type=float, default=3600.0, metavar="S", help="give up after S seconds (default 3600)"
    )
    parser.add_argument("--json", action="store_true", help="print the outcome as JSON")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        if sys.stderr.isatty() or text.startswith("---"):
            print(text, file=sys.stderr, flush=True)

    outcome = run(options.messages, options.kills, seed=options.seed, limit_s=options.limit, progress=tell)
    if options.json:
        print(json.dumps({**msgspec.to_builtins(outcome), "good": outcome.is_good}))
    else:
        show(outcome)
    if not outcome.finished:
        return LOST
    return OK if outcome.is_good else INTEGRITY
