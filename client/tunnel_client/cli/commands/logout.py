"""`tunnel logout`: forget what `tunnel login` stored."""

import argparse
import sys

from tunnel.command_line import CommandAdder
from tunnel.exit_codes import OK

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """The command's arguments."""
    parser = commands.add("logout", "forget the relay and the token that were stored", "tunnel logout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Harmless when nothing was stored."""
    from tunnel_client.login_file import login_path, remove_login

    text = "removed" if remove_login() else "nothing was stored at"
    print(f"{text} {login_path()}", file=sys.stderr)
    return OK
