"""What an echo, a connection and a MiB cost in counts, which no machine changes: `python -m loadtests.bench.budget`.

A `tunnel forward` reaches its target through a relay, over a link or with single requests (poll). The relay dials the
target itself (inline exit), or `tunnel-relay exit` does (separate exit). All of them run from the sources. For each of
these processes, one unit of work is counted in:

  calls        calls of Python functions; each time that a coroutine goes on after a pause counts, too
  built-in     calls of C functions from Python
  packets      packets that its endpoint or its switch received or sent
  allocations  requests to Python's allocator
  system       system calls, by strace, without those that wait for events

A unit begins when all processes sleep, and ends when they sleep again. An echo is 64 bytes to the target and back. A
connection is opened, echoes 64 bytes, and is closed after all ACKs. A MiB goes to the target, and comes back when it
has arrived. The counts are medians of several units; of system calls, it is the least count, since a busy machine adds
some. They are compared with those in budget.json.
"""

import argparse
import asyncio
import platform
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Self

import msgspec

from loadtests.bench.budget_setups import COUNTS, SETUPS, BusyError, Row, Tools, count_setup
from loadtests.bench.programs import MissingPeerError
from loadtests.harness.names import AddNames
from loadtests.harness.processes import NotReadyError

__all__ = ["FILE", "Budget", "main", "objections"]

FILE = Path(__file__).with_name("budget.json")
# What repeated runs differed by, some of them on a busy machine. A real change of less is not seen.
_TOLERANCES = {"echo": 0.08, "connection": 0.12, "MiB": 0.3}
_SLACK = 3.0  # small counts differ by so much
_SYSTEM = 2  # times these: how often a process finds no input depends on how fast the others get the processor
_ATTEMPTS = 3
_WATCHED_MAX = 0.03  # the share of its calls by which a relay may cost more because it is watched
_NO_RESULT = 3
_BUSY = 4


class Budget(msgspec.Struct):
    """The kept counts, and the version of Python (major and minor) for which they hold."""

    python: str
    rows: list[Row]

    @classmethod
    def read(cls) -> Self:
        """Read the file."""
        return msgspec.json.decode(FILE.read_bytes(), type=cls)

    def write(self) -> None:
        """Write the file, with a line for each row, so that a change shows what has changed."""
        lines = ",\n".join(msgspec.json.encode(row).decode() for row in self.rows)
        FILE.write_text(f'{{"python": "{self.python}", "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def objections(found: Iterable[Row], kept: Iterable[Row]) -> dict[tuple[str, ...], str]:
    """Return a sentence for each count that is not as in the file, by set-up, process, unit and count.

    That is each count that is higher, and each that is so much lower that the file would let it rise again unnoticed.
    """
    before = {_place(row): row for row in kept}
    said = {}
    for row in found:
        place = _place(row)
        for name in COUNTS:
            now, was = getattr(row, name), getattr(before.get(place), name, 0)
            share = _TOLERANCES[row.unit] * (_SYSTEM if name == "system" else 1)
            allowed = max(was * share, 0.5 if name == "packets" else _SLACK)
            if now > was + allowed:
                said[*place, name] = f"{', '.join(place)}: {now:,.0f} {name}, more than {was:,.0f} as in {FILE.name}"
            elif now < was - 2 * allowed:
                said[*place, name] = (
                    f"{', '.join(place)}: {now:,.0f} {name}, far fewer than {was:,.0f} as in {FILE.name}: "
                    "write the new counts with --update, so that they stay so low"
                )
    return said


def _place(row: Row) -> tuple[str, ...]:
    return row.setup, row.process, row.unit


def dearer(watched: Iterable[Row], plain: Iterable[Row]) -> dict[tuple[str, ...], str]:
    """Return a sentence for each count of calls that rises by more than _WATCHED_MAX because the relay is watched, by
    set-up, process, unit and count. A connection costs the two events that it is worth."""
    before = {_place(row): row for row in plain}
    said = {}
    for row in watched:
        place = _place(row)
        for name in ("calls", "builtin"):
            now, was = getattr(row, name), getattr(before[place], name)
            if row.process == "relay" and row.unit != "connection" and now > was * (1 + _WATCHED_MAX):
                said[*place, name] = f"{', '.join(place)}: {now:,.0f} {name} when it is watched, {was:,.0f} otherwise"
    return said


def _attempt(tools: Tools, setups: Iterable[str], units: int, *, is_watched: bool = False) -> list[Row]:
    """Count all set-ups at once: most of the time they sleep."""

    async def count() -> list[list[Row]]:
        return await asyncio.gather(*(count_setup(setup, tools, units, is_watched=is_watched) for setup in setups))

    return [row for rows in asyncio.run(count()) for row in rows]


def _measure(
    setups: list[str], units: int, kept: list[Row] | None, *, is_watched: bool
) -> tuple[list[Row], dict[tuple[str, ...], str]]:
    """Return the counts, and what each of several attempts says against them: that they differ from the kept ones, if
    there are any, or, of a relay that is watched, from those of one that is not."""
    with TemporaryDirectory() as directory:
        tools = Tools.find(Path(directory))

        def attempt(names: list[str]) -> tuple[list[Row], dict[tuple[str, ...], str]]:
            rows = _attempt(tools, names, units, is_watched=is_watched)
            if is_watched:
                plain = _attempt(tools, names, units)
                both = [*plain, *(msgspec.structs.replace(row, setup=f"{row.setup}, watched") for row in rows)]
                return both, dearer(rows, plain)
            return rows, {} if kept is None else objections(rows, kept)

        rows, said = attempt(setups)
        for _ in range(_ATTEMPTS - 1):
            if said:
                again = attempt(sorted({setup for setup, *_ in said}))[1]
                said = {place: text for place, text in again.items() if place in said}
    return rows, said


def _table(rows: Iterable[Row]) -> str:
    lines = [f"{'set-up':<24}{'process':<9}{'unit':<11}" + "".join(f"{name:>12}" for name in COUNTS)]
    for row in rows:
        counts = "".join(f"{getattr(row, name):>12,.0f}" for name in COUNTS)
        lines.append(f"{row.setup:<24}{row.process:<9}{row.unit:<11}{counts}")
    return "\n".join(lines)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.budget",
        description=__doc__,
        epilog="example: python -m loadtests.bench.budget --only link-inline,link-separate\n"
        "exit codes: 0: as in budget.json; 1: a count differs; 2: strace or cc is missing; 3: a process did not start\n"
        "or end; 4: the machine is too busy",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    names = ",".join(SETUPS)
    parser.add_argument("--only", action=AddNames, default="", metavar="NAMES", help=f"count only these, of {names}")
    parser.add_argument("--units", type=int, default=15, help="units of each kind (default: 15)")
    parser.add_argument("--json", action="store_true", help="print the counts as JSON")
    parser.add_argument(
        "--watched",
        action="store_true",
        help="let the relay write its audit, look at its live page and read its metrics, and count without all of it, "
        "too: an echo and a MiB may cost 3 %% more calls",
    )
    parser.add_argument("--update", action="store_true", help="write the counts to budget.json instead of comparing")
    options = parser.parse_args(arguments)
    options.setups = options.only.split(",") if options.only else list(SETUPS)
    if unknown := set(options.setups) - set(SETUPS):
        parser.error(f"there is no set-up named {', '.join(sorted(unknown))}: choose from {names}")
    if options.watched and options.update:
        parser.error("--update writes the counts of a relay that nobody watches: leave --watched out")
    return options


def main(arguments: list[str] | None = None) -> int:
    """Count, print the table or JSON, and compare; return the exit code that --help lists."""
    options = _options(arguments)
    python = ".".join(platform.python_version_tuple()[:2])
    budget = Budget.read()
    is_comparable = budget.python == python and not options.update
    try:
        kept = budget.rows if is_comparable else None
        rows, said = _measure(options.setups, options.units, kept, is_watched=options.watched)
    except MissingPeerError as error:
        print(f"budget: {error}", file=sys.stderr)
        return 2
    except BusyError as error:
        print(f"budget: the machine is too busy: {error}: run this again when it has less to do", file=sys.stderr)
        return _BUSY
    except (OSError, NotReadyError, subprocess.CalledProcessError) as error:
        print(f"budget: there is no result: {type(error).__name__}: {error}", file=sys.stderr)
        return _NO_RESULT
    print(msgspec.json.encode(rows).decode() if options.json else _table(rows))
    if options.update:
        others = [row for row in budget.rows if row.setup not in options.setups and budget.python == python]
        Budget(python, sorted(others + rows, key=_place)).write()
    elif not is_comparable and not options.watched:
        print(f"budget: {FILE.name} holds for Python {budget.python}: nothing was compared", file=sys.stderr)
    for text in said.values():
        print(f"budget: {text}", file=sys.stderr)
    return int(bool(said))


if __name__ == "__main__":
    sys.exit(main())
