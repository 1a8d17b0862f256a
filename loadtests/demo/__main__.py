"""The command of the demo: `python -m loadtests.demo --help`."""

import argparse
import asyncio
import sys
from pathlib import Path

from loadtests.demo.play import Play
from loadtests.demo.recording import RecordingShow
from loadtests.demo.show import JsonShow, LiveShow, PlainShow, Show
from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.harness.processes import NotReadyError
from tunnel.process.command_line import may_escape
from tunnel.process.event_loops import new_event_loop

EXIT_OK, EXIT_WRONG, EXIT_INTERRUPTED = 0, 1, 130


def main(argv: list[str] | None = None) -> int:
    """Run the demo; return 0 only if every byte was right."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.demo",
        description="Moves a stream up and down through a proxy that loses requests and responses, and kills the relay "
        "twice on the way. Needs nothing but this machine.",
        epilog="example: make demo. Exit code 0 only if every byte was right.",
        allow_abbrev=False,
    )
    parser.add_argument("--size", default="128MiB", metavar="SIZE", help="bytes in each direction (default: 128MiB)")
    parser.add_argument("--seed", type=int, default=7, metavar="N", help="seed of the faults (default: 7)")
    output = parser.add_mutually_exclusive_group()
    output.add_argument("--json", action="store_true", help="print only JSON")
    output.add_argument("--record", type=Path, metavar="FILE", help="write the run to FILE, as an animated SVG")
    options = parser.parse_args(argv)
    try:
        size_bytes = parse_size_bytes(options.size)
    except ValueError as error:
        parser.error(str(error))
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            return runner.run(_perform(size_bytes, options.seed, _show(options)))
    except NotReadyError as error:
        print(f"the demo could not start: {error}", file=sys.stderr)
        return EXIT_WRONG
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED


def _show(options: argparse.Namespace) -> Show:
    if options.json:
        return JsonShow()
    if options.record:
        return RecordingShow(options.record)
    return LiveShow() if may_escape(sys.stdout) else PlainShow()


async def _perform(size_bytes: int, seed: int, show: Show) -> int:
    play = Play(size_bytes, seed, show.said)
    async with show.watching(play):
        report = await play.perform()
    show.conclude(report)
    return EXIT_WRONG if report.failure else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())
