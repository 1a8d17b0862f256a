"""The command of the message-loss experiment: `python -m loadtests.experiments.message_loss --help`."""

import argparse
import asyncio
import json
import shutil
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from loadtests.experiments.message_loss.report import Report, side_by_side
from loadtests.experiments.message_loss.run import Experiment, run
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.exit_codes import USAGE
from tunnel.process.command_line import configure_log

__all__ = ["main"]

LOST_WITH_TUNNEL = 1


def main(argv: Sequence[str] | None = None) -> int:
    """Run the experiment and print its report; return 1 if the tunnel lost or doubled a message, or if nothing was
    proved."""
    parser = _parser()
    arguments = parser.parse_args(argv)
    if arguments.broker == "nats" and shutil.which("nats-server") is None:
        print("nats-server is not installed: run make system-deps, or use --broker builtin", file=sys.stderr)
        return USAGE
    configure_log(arguments.log)
    experiment = Experiment(
        broker=arguments.broker,
        rate=arguments.tps,
        size_bytes=arguments.size,
        receivers=arguments.receivers,
        break_after_s=arguments.break_after,
        delay_ms=arguments.delay_ms,
        outage_s=arguments.outage,
        carrier=arguments.carrier,
        directory=arguments.directory,
    )
    modes = ("raw", "tunnel") if arguments.mode == "both" else (arguments.mode,)
    reports = [asyncio.run(run(replace(experiment, mode=mode))) for mode in modes]
    if arguments.json:
        print(json.dumps([{**asdict(report), "lost": report.lost, "total": report.total} for report in reports]))
    else:
        print("\n".join(_shown(reports)))
    failures = [report.failure for report in reports if report.failure]
    for failure in failures:
        print(f"FAILED: {failure}", file=sys.stderr)
    return LOST_WITH_TUNNEL if failures else 0


def _shown(reports: Sequence[Report]) -> list[str]:
    if len(reports) == 1:
        return reports[0].lines()
    return side_by_side(reports[0].lines(), reports[1].lines())


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.message_loss",
        description="Publish messages through a path that is killed on the way, and count those that no receiver got.",
        epilog="example: python -m loadtests.experiments.message_loss --mode both --broker nats. "
        "Exit codes: 0 ok, 1 the tunnel lost or doubled a message, or the path did not break, 2 wrong usage.",
    )
    parser.add_argument(
        "--mode", choices=("raw", "tunnel", "both"), default="both", help="the way to the broker (default: both)"
    )
    parser.add_argument(
        "--broker", choices=("builtin", "nats"), default="builtin", help="broker to use (default: builtin)"
    )
    parser.add_argument("--tps", type=int, default=1000, help="messages per second (default: 1000)")
    parser.add_argument("--size", type=int, default=12_288, metavar="BYTES", help="size of a message (default: 12288)")
    parser.add_argument("--receivers", type=int, default=3, help="number of receivers (default: 3)")
    parser.add_argument(
        "--break-after", type=float, default=5.0, metavar="S", help="kill the path after S seconds (default: 5)"
    )
    parser.add_argument(
        "--delay-ms", type=float, default=20.0, metavar="MS", help="delay of the path, each way (default: 20)"
    )
    parser.add_argument(
        "--outage",
        type=float,
        default=2.0,
        metavar="S",
        help="start the path again after S seconds; a tunnel may not report an outage of less than one second to its "
        "listeners (default: 2)",
    )
    parser.add_argument("--carrier", choices=CARRIERS, default="poll", help="carrier of the tunnel (default: poll)")
    parser.add_argument(
        "--directory",
        type=Path,
        default=Path("build/message-loss"),
        help="directory for the records (default: build/message-loss)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--log", choices=("info", "warning"), default="warning")
    return parser


if __name__ == "__main__":
    sys.exit(main())
