"""`tunnel login`: try a relay and a token, and keep them for the commands that follow."""

import argparse
import getpass
import os
import sys
from pathlib import Path

from tunnel.command_line import CommandAdder
from tunnel.exit_codes import OK
from tunnel_client.cli.options import positive_seconds
from tunnel_client.errors import UsageError
from tunnel_client.settings import USER_TIMEOUT_S, RelaySettings

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """The command's arguments."""
    parser = commands.add(
        "login",
        "store a relay and its token for the other commands",
        "tunnel login https://relay.example --token-file token.txt",
    )
    parser.add_argument("url", metavar="URL", help="the relay")
    parser.add_argument(
        "--token-file", default="", metavar="FILE", help="holds the token; - reads standard input (default: ask for it)"
    )
    parser.add_argument("--proxy", default="", metavar="URL", help="proxy to the relay, or none; stored as well")
    parser.add_argument("--ca", default="", metavar="FILE", help="certificates to trust; stored as well")
    parser.add_argument(
        "--wait", type=positive_seconds, default=15.0, metavar="S", help="how long to try to reach the relay (15)"
    )
    parser.add_argument("--no-check", action="store_true", help="store it without trying it")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Nothing is stored that the relay does not accept."""
    from tunnel_client.cli import one_task
    from tunnel_client.login_file import Login, write_login

    ca = os.path.abspath(arguments.ca) if arguments.ca else ""
    login = Login(arguments.url, _token(arguments.token_file), arguments.proxy, ca)
    proxy = None if login.proxy == "none" else login.proxy or "env"
    settings = RelaySettings(login.relay, login.token, proxy, ca or None, "poll", USER_TIMEOUT_S)
    attachment = settings.attach(attach_timeout=arguments.wait)  # what is no URL, and what is no token, is noticed here
    if not arguments.no_check:

        async def attached() -> int:
            async with attachment:
                return OK

        one_task.run(attached())
    path = write_login(login)
    verdict = "not tried" if arguments.no_check else "which accepts the token"
    print(f"stored in {path}: {login.relay}, {verdict}", file=sys.stderr)
    return OK


def _token(file: str) -> str:
    from tunnel_client.login_file import read_private

    if file == "-":
        text = sys.stdin.readline()
    elif file:
        try:
            text = read_private(Path(file)).decode("ascii")
        except FileNotFoundError:
            raise UsageError(f"--token-file {file}: there is no such file") from None
        except UnicodeDecodeError:
            raise UsageError(f"--token-file {file} holds no token: those are plain letters and digits") from None
    else:
        if not sys.stdin.isatty():
            raise UsageError("no token: name a file with --token-file FILE, or - for standard input")
        try:
            text = getpass.getpass("token: ")
        except EOFError:
            text = ""
    token = text.strip()
    if not token:
        raise UsageError("the token is empty")
    return token
