"""`tunnel login`: try a relay and a token, or sign in for one, and store both for the other commands.

Several relays may be stored, each with a token of its own.
"""

from __future__ import annotations

import argparse
import getpass
import os
import sys
from dataclasses import replace
from pathlib import Path

from tunnel.ground.exit_codes import OK
from tunnel.ground.relay_options import RelayKeywords
from tunnel.process.command_line import CommandAdder, tell
from tunnel.process.gateway_options import add_path_options
from tunnel_client.cli.attaching import add_wait_option, attached
from tunnel_client.cli.options import given
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings, read_token
from tunnel_client.stored_login import Login

__all__ = ["add"]


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "login",
        "try a relay and its token, and store them for the other commands",
        "tunnel login https://relay.example --token-file token.txt, or: tunnel login --sso https://relay.example",
    )
    parser.add_argument("url", metavar="URL", help="URL of the relay")
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="file that holds the token, or - for standard input (default: ask for the token)",
    )
    parser.add_argument(
        "--add",
        action="store_true",
        help="store the relay after those that are stored: commands use the first of all that answers (default: in "
        "place of the one that is stored; a relay that is stored already keeps its place)",
    )
    _add_sso(parser)
    add_wait_option(parser, 15.0)
    parser.add_argument("--no-check", action="store_true", help="store relay and token without trying them")
    group = parser.add_argument_group(
        "path to the relay", "`tunnel login` stores these options as well, so that the other commands use them."
    )
    add_path_options(group, has_cert=False)
    parser.set_defaults(run=run)


def _add_sso(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "single sign-on",
        "The relay names the identity provider, unless --issuer and --client-id do. The command shows a URL and a "
        "code, and waits until you have signed in there.",
    )
    group.add_argument("--sso", action="store_true", help="sign in at the identity provider of the relay")
    group.add_argument("--open", action="store_true", help="open the URL in the browser of this machine")
    group.add_argument("--issuer", default="", metavar="URL", help="URL of the identity provider")
    group.add_argument("--client-id", default="", metavar="ID", help="client id of the commands at the provider")
    group.add_argument(
        "--audience", default="", metavar="NAME", help="audience that the relay believes (default: the client id)"
    )
    group.add_argument(
        "--scope",
        default="",
        metavar="SCOPES",
        help="scopes, with spaces between them (default: openid offline_access)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Try the token at the relay, unless --no-check is given, and store both. A rejected token is not stored."""
    from tunnel_client.cli import one_task

    _check_sso(arguments)
    _check_place(arguments)
    options = given(arguments)
    if "ca" in options:
        options["ca"] = os.path.abspath(arguments.ca)
    options["token"] = "any" if arguments.sso else _token(arguments.token_file)
    settings = RelaySettings(arguments.url, **options)
    settings.check()  # raises UsageError for a malformed URL or token, and if no token may go there
    return one_task.run(_log_in(settings, options, arguments))


async def _log_in(settings: RelaySettings, options: RelayKeywords, arguments: argparse.Namespace) -> int:
    sign_in = None
    if arguments.sso:
        from tunnel_client.cli.signing_in import sign_in_for

        options["token"], sign_in = await sign_in_for(replace(settings, token=None), arguments)
    if not arguments.no_check:
        async with attached(replace(settings, token=options["token"], carrier="poll"), arguments, quiet_s=0):
            pass
    verdict = "not tried" if arguments.no_check else "which accepts the token"
    _store(Login(arguments.url, sign_in, **options), verdict, is_added=arguments.add)
    return OK


def _store(login: Login, verdict: str, *, is_added: bool) -> None:
    """Store the login in its place, and say so."""
    from tunnel_client.login_file import changing_logins, write_login

    with changing_logins():
        before = _stored(is_needed=is_added)
        is_known = any(one.is_for(login.relay) for one in before)
        if is_known:
            logins = [login if one.is_for(login.relay) else one for one in before]
        else:
            logins = [*before, login] if is_added else [login]
        path = write_login(*logins)
    instead = "" if is_known or is_added or not before else f", in place of {before[0].relay}"
    tell(f"stored in {path}: {login.relay}, {verdict}{instead}")
    if len(logins) > 1:
        tell(f"the stored relays, in the order of preference: {', '.join(one.relay for one in logins)}")


def _stored(*, is_needed: bool) -> list[Login]:
    """Return the stored logins. A file that cannot be read is an error only if its content is needed."""
    from tunnel_client.login_file import read_logins

    try:
        return read_logins()
    except UsageError:
        if is_needed:
            raise
        return []


def _check_place(arguments: argparse.Namespace) -> None:
    """Raise UsageError if it is not clear where to store the relay."""
    logins = _stored(is_needed=arguments.add)
    if len(logins) > 1 and not arguments.add and not any(one.is_for(arguments.url) for one in logins):
        raise UsageError(
            f"{len(logins)} relays are stored, and {arguments.url} is none of them: store it after them with --add, or "
            "remove them first with `tunnel logout`"
        )


def _check_sso(arguments: argparse.Namespace) -> None:
    """Raise UsageError if options do not go together."""
    if arguments.sso and arguments.token_file:
        raise UsageError("--sso and --token-file are two ways to get a token: choose one")
    if bool(arguments.issuer) != bool(arguments.client_id):
        raise UsageError("--issuer and --client-id belong together: give both, or neither")
    for name in ("open", "issuer", "audience", "scope"):
        if getattr(arguments, name) and not arguments.sso:
            raise UsageError(f"--{name} does nothing without --sso: add it")
    if (arguments.audience or arguments.scope) and not arguments.issuer:
        raise UsageError("--audience and --scope need --issuer and --client-id: without them, the relay names them")


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
