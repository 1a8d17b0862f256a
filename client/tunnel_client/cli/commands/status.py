"""`tunnel status`: show the running tunnel commands of this user and their connections."""

import argparse
import shutil
import sys
import time

from tunnel.ground.exit_codes import OK
from tunnel.process.command_line import CommandAdder, may_escape, show, show_json
from tunnel_client.cli.status_table import Rates, render
from tunnel_client.status import running_clients

__all__ = ["add"]

_INTERVAL_S = 1.0
_CLEAR = "\x1b[H\x1b[J"  # ECMA-48: cursor home, erase below
_LINES_AROUND = 8  # lines of a table that do not show a connection


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add("status", "show your running tunnel commands and their connections", "tunnel status --once")
    parser.add_argument(
        "--once", action="store_true", help="print once and exit (default: refresh every second on a terminal)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON array and exit")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Print the reports once, or on a terminal every second until interrupted."""
    if arguments.json:
        show_json(running_clients())
    elif arguments.once or not may_escape(sys.stdout):  # a live table is redrawn with escape codes
        show(render(running_clients(), time.time()), end="")
    else:
        _watch()
    return OK


def _watch() -> None:
    rates = Rates()
    looked_s = time.monotonic()
    while True:
        reports = running_clients()
        now_s = time.monotonic()
        rates.note(reports, now_s - looked_s)
        looked_s = now_s
        rows_max = max(1, shutil.get_terminal_size().lines - _LINES_AROUND)
        show(render(reports, time.time(), rates, rows_max=rows_max), end="", codes=_CLEAR, flush=True)
        time.sleep(_INTERVAL_S)
