"""Plays transfers with one trouble each, and keeps their traces: `python -m loadtests.diagnosis DIR [NAME ...]`."""

import argparse
import sys
from pathlib import Path

from loadtests.diagnosis.cases import EVERY
from loadtests.diagnosis.play import SIDE_BY_SIDE, play


def main() -> int:
    """Run the command; return its exit code."""
    every = {case.name: case for case in EVERY}
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.diagnosis",
        description="Play transfers with one trouble each, and write the traces of each to a folder of its own.",
        epilog="names: " + "; ".join(every),
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="the cases to play (default: all)")
    parser.add_argument("--side-by-side", type=int, default=SIDE_BY_SIDE, metavar="N")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(every):
        parser.error(f"unknown cases: {', '.join(sorted(unknown))}; the names are: {'; '.join(every)}")
    chosen = [every[name] for name in arguments.names] or list(every.values())
    for name, seconds in play(chosen, arguments.directory, arguments.side_by_side).items():
        print(f"{seconds:6.1f} s  {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
