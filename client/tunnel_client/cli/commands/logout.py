"""`tunnel logout`: remove what `tunnel login` stored: all relays with their tokens, or one of them."""

from __future__ import annotations

import argparse
import contextlib
from datetime import UTC, datetime

from tunnel.ground.exit_codes import OK
from tunnel.process.command_line import CommandAdder, tell
from tunnel_client.errors import UsageError
from tunnel_client.stored_login import Login

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """Add the command."""
    parser = commands.add("logout", "remove the relays and the tokens that `tunnel login` stored", "tunnel logout")
    parser.add_argument(
        "url", nargs="?", default="", metavar="URL", help="remove this relay alone (default: all that are stored)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Remove the stored logins, or one of them. It is an error if that one is not stored."""
    from tunnel_client.login_file import changing_logins

    with contextlib.ExitStack() as stack:
        with contextlib.suppress(*([] if arguments.url else [UsageError])):  # all are removed even without a lock
            stack.enter_context(changing_logins())
        gone = _removed(arguments.url)
    for login in gone:
        _tell_of_session(login)
    return OK


def _removed(url: str) -> list[Login]:
    """Remove the login for this relay, or without a URL all, and return them."""
    from tunnel_client.login_file import login_path, read_logins, remove_login, write_login

    logins: list[Login] = []
    with contextlib.suppress(*([] if url else [UsageError])):  # a damaged file is removed as a whole
        logins = read_logins()
    gone = [login for login in logins if not url or login.is_for(url)]
    kept = [login for login in logins if login not in gone]
    if url and not gone:
        stored = ", ".join(login.relay for login in kept)
        if not stored:
            raise UsageError(f"{url} is not stored, nor is another relay: name none if nothing is to be stored")
        raise UsageError(f"{url} is not stored: name one of {stored}, or none to remove all")
    if kept:
        tell(f"removed from {write_login(*kept)}: {gone[0].relay}")
    else:
        text = "removed" if remove_login() else "nothing was stored at"
        tell(f"{text} {login_path()}")
    return gone


def _tell_of_session(login: Login) -> None:
    """Say what goes on after the end of a sign-in here."""
    if login.sign_in is not None:
        ends = datetime.fromtimestamp(login.sign_in.expires_s, UTC)
        tell(
            f"{login.relay} still accepts the token of the sign-in until {ends:%Y-%m-%d %H:%M} UTC, so commands that "
            f"run now go on until then. Your session at {login.sign_in.issuer} goes on, too: end it there"
        )
