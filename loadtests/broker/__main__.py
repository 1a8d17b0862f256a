"""Kills broker, producers, consumers and relay (kill -9) while messages flow to three groups, and counts them."""

import argparse
import json
import os
import sys

import msgspec

from loadtests.broker.run import Outcome, run
from tunnel.exit_codes import INTEGRITY, LOST, OK

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the load test and print its outcome.

    Return 0 if every group got every message once and in order, 7 if not, and 6 if the run did not finish in time.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.broker",
        description=__doc__,
        epilog="example: python -m loadtests.broker --kills 50 --messages 1000000",
    )
    parser.add_argument("--messages", type=int, default=200_000, help="messages to send (default 200000)")
    parser.add_argument(
        "--kills", type=int, default=14, help="number of kills, evenly among the seven processes (default 14)"
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
        _show(outcome)
    if not outcome.finished:
        return LOST
    return OK if outcome.is_good else INTEGRITY


def _show(outcome: Outcome) -> None:
    kills = ", ".join(f"{name} {count}" for name, count in outcome.kills.items())
    print(f"{outcome.messages:,} messages to 3 groups, kill -9: {kills}; {outcome.seconds:.1f} s", end="")
    print(f" (load {os.getloadavg()[0]:.1f})")
    print(
        f"taken in {outcome.received:,}: lost {outcome.lost}, of these acknowledged {outcome.lost_acknowledged}, ",
        end="",
    )
    print(f"twice {outcome.twice}, out of order {outcome.out_of_order}")
    print(
        f"delivered again, and recognised by their offset: {outcome.came_again:,} (of the last start of each consumer)"
    )
    print("OK: every message once and in order" if outcome.is_good else "FAILED: not every message once and in order")


if __name__ == "__main__":
    sys.exit(main())
