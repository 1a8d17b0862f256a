"""`tunnel logout`: remove the relay and the token that `tunnel login` stored."""

import argparse

from tunnel.command_line import CommandAdder, tell
from tunnel.exit_codes import OK

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """Add the command."""
    parser = commands.add("logout", "remove the relay and the token that `tunnel login` stored", "tunnel logout")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Remove the stored login. Has no effect if nothing is stored."""
    from tunnel_client.login_file import login_path, remove_login

    text = "removed" if remove_login() else "nothing was stored at"
    tell(f"{text} {login_path()}")
    return OK
