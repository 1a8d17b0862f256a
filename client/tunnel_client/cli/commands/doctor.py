"""`tunnel doctor`: what the path to the relay does, and what to do about it."""

from __future__ import annotations

import argparse
import sys

from tunnel.command_line import CommandAdder
from tunnel_client.cli.options import add_relay_options, positive_seconds, relay_settings
from tunnel_client.places import parse_target

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """The command's arguments."""
    parser = commands.add(
        "doctor",
        "find out what stands between here and the relay, and whether a target can be reached",
        "tunnel doctor db.internal:5432 --relay https://relay.example --token-file token",
    )
    parser.add_argument(
        "target", nargs="?", metavar="HOST:PORT", help="try to reach this, too; or the name of a service"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, at the end")
    parser.add_argument(
        "--watch",
        type=positive_seconds,
        default=5.0,
        metavar="S",
        help="how long to watch a waiting request and an idle connection (5)",
    )
    add_relay_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Each finding is printed when it is made."""
    from tunnel_client.cli import one_task
    from tunnel_client.doctor.examination import examine
    from tunnel_client.doctor.findings import Finding, Report, render_finding, render_summary

    target = parse_target(arguments.target) if arguments.target else None
    settings = relay_settings(arguments)
    report = Report(settings.url)

    def tell(finding: Finding) -> None:
        print(render_finding(finding), end="", flush=True)

    async def main() -> int:
        await examine(report, settings, target, arguments.watch)
        return report.exit_code

    if not arguments.json:
        print(f"relay {settings.url} (from {settings.source})", flush=True)
        report.told = tell
    code = one_task.run(main())
    if arguments.json:
        sys.stdout.write(report.encode().decode() + "\n")
    else:
        print(render_summary(report), end="")
    return code
