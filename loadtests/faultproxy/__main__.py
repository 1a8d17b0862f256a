"""The command that runs the fault proxy: `python -m loadtests.faultproxy --help`."""

import asyncio
import contextlib
import dataclasses
import importlib
import json
import signal
import sys
from collections.abc import Callable, Coroutine
from typing import Any

from loadtests.faultproxy.cli import Arguments, parse_arguments, trace_path
from loadtests.faultproxy.proxy import FaultProxy
from loadtests.faultproxy.recorder import Counts
from tunnel.traces.jsonl import JsonLinesWriter

EXIT_OK = 0
EXIT_USAGE = 2


async def serve(arguments: Arguments, writer: JsonLinesWriter | None) -> Counts:
    """Run the proxy until SIGINT or SIGTERM, and return its counters. Raise OSError if it cannot listen on its
    address."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stopped.set)
    async with FaultProxy(arguments.options, trace=writer) as proxy:
        print(f"listening on {proxy.url}", file=sys.stderr, flush=True)
        await stopped.wait()
    return proxy.counts


def report(counts: Counts, *, as_json: bool) -> str:
    """Format the counters as text for people, or as JSON for programs."""
    fields = dataclasses.asdict(counts)
    if as_json:
        return json.dumps(fields)
    faults: dict[str, int] = fields.pop("faults")
    lines = [f"{name.replace('_', ' '):20}{value:>14,}" for name, value in fields.items()]
    return "\n".join([*lines, "faults", *(f"  {name:18}{value:>14,}" for name, value in faults.items() if value)])


def runner() -> Callable[[Coroutine[Any, Any, Counts]], Counts]:
    """Return the `run` function of uvloop if uvloop is installed, else that of asyncio."""
    try:
        run: Callable[[Coroutine[Any, Any, Counts]], Counts] = importlib.import_module("uvloop").run
    except ImportError:
        return asyncio.run
    return run


def main() -> int:
    """Run the command; return its exit code."""
    arguments = parse_arguments(sys.argv[1:])
    try:
        with contextlib.ExitStack() as stack:
            writer = None
            if arguments.trace is not None:
                writer = stack.enter_context(JsonLinesWriter(trace_path(arguments.trace)))
            counts = runner()(serve(arguments, writer))
    except OSError as error:
        print(f"faultproxy: {error}", file=sys.stderr)
        return EXIT_USAGE
    print(report(counts, as_json=arguments.json))
    return EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
