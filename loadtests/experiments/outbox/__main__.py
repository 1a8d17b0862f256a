"""Kills sender, receiver and relay (kill -9) during the delivery of an outbox, and checks exactly-once delivery."""

import argparse
import sys

from loadtests.experiments.outbox.run import Outcome, run
from loadtests.harness.kill_runs import run_kills


def main(arguments: list[str] | None = None) -> int:
    """Run the load test; see `run_kills`."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.outbox",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.outbox --kills 6 --messages 50000",
    )
    return run_kills(parser, arguments, run, _show, messages=100_000, kills=9, processes="three")


def _show(outcome: Outcome) -> None:
    kills = ", ".join(f"{name} {count}" for name, count in outcome.kills.items())
    print(f"{outcome.messages:,} messages, kill -9: {kills}; {outcome.seconds:.1f} s")
    print(f"received {outcome.received:,}: lost {outcome.lost}, twice {outcome.twice}, ", end="")
    print(f"out of order {outcome.out_of_order}, altered {outcome.altered}")
    print(f"longest time from a kill until messages arrived again: {outcome.recovery_s_max:.1f} s")
    print("OK: every message once and in order" if outcome.is_good else "FAILED: not every message once and in order")


if __name__ == "__main__":
    sys.exit(main())
