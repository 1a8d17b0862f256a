"""Kills sender, receiver and relay (kill -9) during the delivery of an outbox, and checks exactly-once delivery."""

import argparse
import json
import sys

import msgspec

from loadtests.experiments.outbox.run import Outcome, run
from tunnel.exit_codes import INTEGRITY, LOST, OK


def main(arguments: list[str] | None = None) -> int:
    """Run the experiment and print its outcome.

    Return 0 if every message arrived once and in order, 7 if not, and 6 if the delivery did not finish in time.
    """
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.outbox",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.outbox --kills 6 --messages 50000",
    )
    parser.add_argument("--messages", type=int, default=100_000, help="messages to deliver (default 100000)")
    parser.add_argument(
        "--kills", type=int, default=9, help="number of kills (kill -9), evenly among the three processes (default 9)"
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
    print(f"{outcome.messages:,} messages, kill -9: {kills}; {outcome.seconds:.1f} s")
    print(f"received {outcome.received:,}: lost {outcome.lost}, twice {outcome.twice}, ", end="")
    print(f"out of order {outcome.out_of_order}, altered {outcome.altered}")
    print(f"longest time from a kill until messages arrived again: {outcome.recovery_s_max:.1f} s")
    print("OK: every message once and in order" if outcome.is_good else "FAILED: not every message once and in order")


if __name__ == "__main__":
    sys.exit(main())
