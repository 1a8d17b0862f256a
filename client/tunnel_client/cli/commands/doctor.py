"""`tunnel doctor`: examine the path to the relay, and say what to do about its faults."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path

import msgspec

from tunnel import TunnelError
from tunnel.ground.exit_codes import OK
from tunnel.ground.printable import counted
from tunnel.ground.relay_options import FOR_ONE, OPTIONS
from tunnel.process.command_line import CommandAdder, show, show_json, tell
from tunnel_client.cli.options import add_relay_options, positive_seconds, relay_settings
from tunnel_client.places import parse_target
from tunnel_client.proposals import Given, given_options
from tunnel_client.settings import RelaySettings

__all__ = ["add"]

_OTHERS_S = 6  # what all steps but those that watch take on a healthy path
_OF_THE_FIRST = {OPTIONS[name].flag for name in FOR_ONE}


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
    from tunnel_client.doctor.findings import Finding, Report, render_choice, render_finding, render_summary
    from tunnel_client.doctor.long_steps import LONG_S
    from tunnel_client.doctor.road_steps import forget_roads

    target = parse_target(arguments.target) if arguments.target else None
    settings = relay_settings(arguments)
    relays = settings.each()
    reports = [Report(each.url) for each in relays]

    def show_finding(finding: Finding) -> None:
        show(render_finding(finding), end="", flush=True)

    async def main() -> int:
        given, long_s = given_options(arguments), LONG_S if arguments.long else 0.0
        for report, stored in zip(reports, relays, strict=True):
            each = await _with_fresh_token(stored)
            if not arguments.json:
                show(f"relay {each.url} (from {each.source})", flush=True)
                report.told = show_finding
            is_alone = len(relays) == 1
            alone = given if is_alone else _alone(given, reports.index(report), each.url)
            async with told_of_progress(report):
                await examine(report, each, target, arguments.watch, alone, long_s, None if is_alone else given)
            if not arguments.json:
                show(render_summary(report), end="")
        return min(report.exit_code for report in reports)

    if arguments.forget and settings.road_memory is not None:
        count = forget_roads(Path(settings.road_memory))
        told_forgotten = f"forgot what was learned of {counted(count, 'path')} ({settings.road_memory})"
        (tell if arguments.json else show)(told_forgotten)
    if arguments.long:
        seconds = LONG_S + arguments.watch + _OTHERS_S
        say_to_people(
            "long", f"--long watches the path for {LONG_S:g} s; the whole examination takes about {seconds:.0f} s"
        )
    code = one_task.run(main())
    works = next((report for report in reports if report.exit_code == OK), None)
    if works is not None:
        works.used = True
    if arguments.json and len(reports) == 1:
        show_json(msgspec.Raw(reports[0].encode()))
    elif arguments.json:
        show_json([msgspec.Raw(report.encode()) for report in reports])
    elif len(reports) > 1:
        show(render_choice(reports), end="")
    return code


async def _with_fresh_token(settings: RelaySettings) -> RelaySettings:
    """Renew the token of a sign-in. If that fails, say why, and examine with the present one."""
    if settings.sign_in is None:
        return settings
    from tunnel_client.signed_in import Renewal

    try:
        return replace(settings, token=await Renewal(settings.url, settings, settings.sign_in).fresh())
    except TunnelError as error:
        tell(f"tunnel: the token is not renewed: {error}")
        return settings


def _alone(given: Given, place: int, url: str) -> Given:
    """Return the options for one of several relays. Those in FOR_ONE were given for the first relay alone."""
    files = given.get("--token-file", [])
    kept = {flag: values for flag, values in given.items() if place == 0 or flag not in _OF_THE_FIRST}
    return {**kept, "--relay": [url], **({"--token-file": [files[place]]} if len(files) > 1 else {})}
