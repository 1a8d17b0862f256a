"""`tunnel doctor`: examine the path to the relay, and say what to do about its faults."""

from __future__ import annotations

import argparse

import msgspec

from tunnel.command_line import CommandAdder, show, show_json, tell
from tunnel.printable import counted
from tunnel_client.cli.options import add_relay_options, positive_seconds, relay_settings
from tunnel_client.places import parse_target
from tunnel_client.proposals import given_options

__all__ = ["add"]

_OTHERS_S = 6  # what all steps but those that watch take on a healthy path


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "doctor",
        "find out what limits the path to the relay, say what to do about it, and try to reach a target",
        "tunnel doctor db.internal:5432",
    )
    parser.add_argument(
        "target", nargs="?", metavar="HOST:PORT", help="target to try to reach: HOST:PORT, or the name of a service"
    )
    parser.add_argument("--json", action="store_true", help="print the whole report as JSON at the end")
    parser.add_argument(
        "--watch",
        type=positive_seconds,
        default=5.0,
        metavar="S",
        help="number of seconds for which the doctor lets the relay hold one request unanswered, and leaves one HTTP "
        "connection idle, to see whether the path cuts them (default: 5)",
    )
    parser.add_argument(
        "--long",
        action="store_true",
        help="also watch the path for 70 s: connections that are cut at an age, quotas, limiters that answer late",
    )
    parser.add_argument(
        "--forget", action="store_true", help="first forget what earlier commands have learned of paths to relays"
    )
    add_relay_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Examine the path and return the exit code of the report.

    Prints each finding as soon as there is one, or, with --json, the whole report at the end.
    """
    from tunnel_client.cli import one_task
    from tunnel_client.cli.attaching import say_to_people
    from tunnel_client.cli.progress import told_of_progress
    from tunnel_client.doctor.examination import examine
    from tunnel_client.doctor.findings import Finding, Report, render_finding, render_summary
    from tunnel_client.doctor.long_steps import LONG_S
    from tunnel_client.doctor.road_steps import forget_roads

    target = parse_target(arguments.target) if arguments.target else None
    settings = relay_settings(arguments)
    report = Report(settings.url)

    def show_finding(finding: Finding) -> None:
        show(render_finding(finding), end="", flush=True)

    async def main() -> int:
        async with told_of_progress(report):
            long_s = LONG_S if arguments.long else 0.0
            await examine(report, settings, target, arguments.watch, given_options(arguments), long_s)
        return report.exit_code

    if arguments.forget and settings.road_memory is not None:
        count = forget_roads(settings.road_memory)
        told_forgotten = f"forgot what was learned of {counted(count, 'path')} ({settings.road_memory})"
        (tell if arguments.json else show)(told_forgotten)
    if not arguments.json:
        show(f"relay {settings.url} (from {settings.source})", flush=True)
        report.told = show_finding
    if arguments.long:
        seconds = LONG_S + arguments.watch + _OTHERS_S
        say_to_people(
            "long", f"--long watches the path for {LONG_S:g} s; the whole examination takes about {seconds:.0f} s"
        )
    code = one_task.run(main())
    if arguments.json:
        show_json(msgspec.Raw(report.encode()))
    else:
        show(render_summary(report), end="")
    return code
