"""`python -m tests.fuzz`: fuzz each target in a process of its own, one process per core, and print the results."""

from __future__ import annotations

import argparse
import json
import os
import sys
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.fuzz.registry import TARGETS
from tests.fuzz.runner import BUILD, HEADINGS, ROOT, Result, choose_engine, run_target

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Return 0 when no target crashed, 1 when one did, 2 for arguments that are not valid."""
    options = _parse(arguments)
    unknown = [name for name in options.target if name not in TARGETS]
    if unknown:
        print(f"no such target: {', '.join(unknown)}; there are {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    if options.repeat is not None:
        return repeat(options.repeat, options.target)
    engine, reason = choose_engine(options.random)
    if reason and not options.json:
        print(reason)
    names = options.target or list(TARGETS)
    if not options.json:
        print(" ".join(HEADINGS))
    results: list[Result] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for result in pool.map(lambda name: run_target(name, engine, options.seconds, seed=options.seed), names):
            results.append(result)
            if not options.json:
                print(result.line(), flush=True)
    if options.json:
        print(json.dumps({"engine": engine, "note": reason, "targets": [result.as_json() for result in results]}))
    for result in results:
        if not options.json and result.crashed:
            print(f"\n{result.name}: {result.verdict}\n{result.trouble}\nrepeat: {result.repeat_command}")
    return int(any(result.crashed for result in results))


def repeat(path: Path, targets: list[str]) -> int:
    """Run one saved input. Its target is the name of its folder, unless --target names one."""
    name = targets[0] if targets else path.resolve().parent.name
    if name not in TARGETS:
        print(f"the target of {path} is not known: add --target NAME, one of: {', '.join(TARGETS)}", file=sys.stderr)
        return 2
    try:
        TARGETS[name].run(path.read_bytes())
    except Exception:
        traceback.print_exc()
        return 1
    print(f"{name}: {path} breaks nothing")
    return 0


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=60, metavar="N", help="for each target (default 60)")
    parser.add_argument("--target", action="append", default=[], metavar="NAME", help=f"one of: {', '.join(TARGETS)}")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="same start each time (default: differs)")
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=int, default=cores, metavar="N", help="processes (default: one per core)")
    parser.add_argument("--random", action="store_true", help="seeded random inputs, even if atheris is installed")
    where = BUILD.relative_to(ROOT) / "crashes"
    parser.add_argument("--repeat", type=Path, metavar="FILE", help=f"run one input, as saved under {where}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of text")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
