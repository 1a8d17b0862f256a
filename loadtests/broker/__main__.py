"""Kills broker, producers, consumers and relay (kill -9) while messages flow to three groups, and counts them."""

import argparse
import os
import sys

from loadtests.broker.run import Outcome, run
from loadtests.harness.kill_runs import run_kills

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run the load test; see `run_kills`."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.broker",
        description=__doc__,
        epilog="example: python -m loadtests.broker --kills 50 --messages 1000000",
    )
    return run_kills(parser, arguments, run, _show, messages=200_000, kills=14, processes="seven")


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
