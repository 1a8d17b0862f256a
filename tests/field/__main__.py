"""`python -m tests.field`: measure the tunnel through every intermediary of the field, and print a table."""

import argparse
import asyncio
import datetime
import sys
import time
from pathlib import Path

import msgspec

from loadtests.harness.names import AddNames
from tests.field.document import write_document
from tests.field.machine import load_line, missing_programs
from tests.field.results import Outcome, Result, judge, mended
from tests.field.rows import CARRIERS, ROWS, find_rows
from tests.field.table import render_text
from tests.field.waves import Plan, measure_rows
from tunnel.ground.exit_codes import USAGE

__all__ = ["main"]

_EPILOG = """
exit codes: 0 every row is whole, refused as expected, or known; 1 a row is not whole; 2 wrong usage, or a program is
missing (make field-deps)

example: python -m tests.field --only nginx-8k,caddy --carrier poll
"""


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.field",
        description="Measure the tunnel through real and scripted intermediaries, each with poll and auto.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--only", action=AddNames, default="", metavar="NAME,...", help="measure these rows; repeatable (default: all)"
    )
    parser.add_argument(
        "--half", type=int, choices=(1, 2), default=0, help="of the rows, measure only the first or the second half"
    )
    parser.add_argument("--carrier", choices=CARRIERS, help="ask for this carrier alone (default: both)")
    parser.add_argument("--idle", type=float, default=70.0, metavar="S", help="seconds of idleness (default: 70)")
    parser.add_argument(
        "--mib", type=int, metavar="N", help="move at most N MiB each way (default: 32, some rows less)"
    )
    parser.add_argument("--list", action="store_true", help="print the names of the rows and exit")
    parser.add_argument("--json", action="store_true", help="print the results as JSON instead of a table")
    parser.add_argument(
        "--add",
        type=Path,
        metavar="FILE",
        help="add the results in this file (of --json), if they were not measured again",
    )
    parser.add_argument("--write", action="store_true", help="write the table to docs/PATHS.md")
    return parser.parse_args(arguments)


def _tell(line: str) -> None:
    """Print a line of progress, if standard error is a terminal."""
    if sys.stderr.isatty():
        print(f"{time.strftime('%H:%M:%S')} {line}", file=sys.stderr, flush=True)


def _require_all(is_written: bool, names: set[str]) -> None:
    """Raise ValueError if the document would lack rows."""
    missing = [row.name for row in ROWS if row.name not in names]
    if is_written and missing:
        raise ValueError(
            f"the document needs every row, and {', '.join(missing)} would be missing: leave out --only, or --add the "
            "results of an earlier run"
        )


def _merge(old: list[Result], new: list[Result]) -> list[Result]:
    """All results in the order of the table; new ones replace old ones."""
    found = {(result.row, result.carrier): result for result in [*old, *new]}
    return [found[key] for row in ROWS for carrier in CARRIERS if (key := (row.name, carrier)) in found]


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return its exit code."""
    options = _parse(arguments)
    if options.list:
        print("\n".join(f"{row.name:24}{row.title}" for row in ROWS))
        return 0
    try:
        rows = find_rows(options.only, half=options.half)
        old = msgspec.json.decode(options.add.read_bytes(), type=list[Result]) if options.add else []
        _require_all(options.write, {row.name for row in rows} | {result.row for result in old})
    except (ValueError, OSError) as error:
        print(f"field: {error}", file=sys.stderr)
        return USAGE
    if missing := missing_programs(rows):
        print(f"field: these programs are missing: {', '.join(missing)}; run make field-deps", file=sys.stderr)
        return USAGE
    machine, began = load_line(), time.monotonic()
    plan = Plan((options.carrier,) if options.carrier else CARRIERS, idle_s=options.idle, mib=options.mib)
    results = _merge(old, asyncio.run(measure_rows(rows, plan, _tell)))
    minutes = (time.monotonic() - began) / 60
    if options.write:
        write_document(results, machine, datetime.datetime.now(tz=datetime.UTC).date())
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(results)).decode())
    else:
        print(render_text(results))
        print(f"\n{machine}; {len(results)} results, {minutes:.0f} minutes")
    for line in mended(results):
        print(f"field: whole now, though the table of rows still calls it known: {line}", file=sys.stderr)
    by_name = {row.name: row for row in ROWS}
    return int(any(judge(by_name[result.row], result) is Outcome.FAILED for result in results))


if __name__ == "__main__":
    sys.exit(main())
