"""`tunnel login`: try a relay and a token, and store them for the other commands."""

import argparse
import getpass
import os
import sys
from pathlib import Path

from tunnel.command_line import CommandAdder, allows_insecure_http, tell
from tunnel.exit_codes import OK
from tunnel.gateway_options import add_gateway_options
from tunnel_client.cli.attaching import add_wait_option, attached
from tunnel_client.cli.options import add_insecure_http, headers_of, proxy_of
from tunnel_client.errors import UsageError
from tunnel_client.settings import USER_TIMEOUT_S, RelaySettings, read_token

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "login",
        "try a relay and its token, and store them for the other commands",
        "tunnel login https://relay.example --token-file token.txt",
    )
    parser.add_argument("url", metavar="URL", help="URL of the relay")
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="file that holds the token, or - for standard input (default: ask for the token)",
    )
    add_wait_option(parser, 15.0)
    parser.add_argument("--no-check", action="store_true", help="store relay and token without trying them")
    group = parser.add_argument_group(
        "path to the relay", "`tunnel login` stores these options as well, so that the other commands use them."
    )
    group.add_argument(
        "--proxy",
        default="",
        metavar="URL",
        help="URL of a proxy to the relay, @FILE for a file of mode 0600 that holds the URL (all users of this machine "
        "can see a password in a command line), or the word none for a direct connection",
    )
    group.add_argument(
        "--ca",
        default="",
        metavar="FILE",
        help="PEM file with the authorities to trust instead of the system's",
    )
    add_insecure_http(group)
    add_gateway_options(group)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Try the token at the relay, unless --no-check is given, and store both. A rejected token is not stored."""
    from tunnel_client.cli import one_task
    from tunnel_client.login_file import Login, write_login

    ca = os.path.abspath(arguments.ca) if arguments.ca else ""
    insecure = allows_insecure_http(arguments.insecure_http)
    headers = headers_of(arguments)
    login = Login(
        arguments.url,
        _token(arguments.token_file),
        proxy_of(arguments),
        ca,
        insecure,
        headers,
        arguments.hostname,
        arguments.sni,
    )
    proxy = None if login.proxy.lower() == "none" else login.proxy or "env"
    settings = RelaySettings(
        login.relay,
        login.token,
        proxy,
        ca or None,
        "poll",
        USER_TIMEOUT_S,
        insecure_http=insecure,
        headers=headers,
        hostname=login.hostname,
        sni=login.sni,
    )
    settings.check()  # raises UsageError for a malformed URL or token
    if not arguments.no_check:

        async def tried() -> int:
            async with attached(settings, arguments, quiet_s=0):
                return OK

        one_task.run(tried())
    path = write_login(login)
    verdict = "not tried" if arguments.no_check else "which accepts the token"
    tell(f"stored in {path}: {login.relay}, {verdict}")
    return OK


def _token(file: str) -> str:
    if file == "-":
        text = sys.stdin.readline()
    elif file:
        return read_token(Path(file))
    else:
        if not sys.stdin.isatty():
            raise UsageError("no token: name a file with --token-file FILE, or - for standard input")
        try:
            text = getpass.getpass("token: ")
        except EOFError:
            text = ""
    token = text.strip()
    if not token:
        raise UsageError("the token is empty: enter it, or name the file that holds it with --token-file FILE")
    return token
