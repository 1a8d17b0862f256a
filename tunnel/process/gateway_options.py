"""The options of commands for the way to a relay and for a gateway before it, and what a command line gives of them."""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from tunnel.ground.relay_options import RelayKeywords, from_environment, given_by
from tunnel.system.private_files import read_private

__all__ = [
    "TOKEN_FILES_HELP",
    "Joined",
    "add_path_options",
    "add_same_users",
    "given_keywords",
    "parse_headers",
    "parse_proxy",
    "read_proxy_file",
]

TOKEN_FILES_HELP = "with several relays, give one for each, in the same order"

_IF_SEEN = "replace the secrets in it if another user may have seen them"
_IF_PASSWORD_SEEN = "change the password if another user may have seen it"
_FORM = "write 'NAME: VALUE', or @FILE with such lines"


class Joined(argparse.Action):
    """Keeps the values of a repeated option in one text, each on a line of its own."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: object,
        option_string: str | None = None,
    ) -> None:
        before = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{before}\n{values}" if before else values)


def given_keywords(arguments: argparse.Namespace) -> RelayKeywords:
    """Return the options of a relay that a command line gives; variables of the environment give its flags, too.

    Files that options name are read. Raise ValueError, with advice but no secrets, if one is wrong.
    """
    found: RelayKeywords = {**from_environment(os.environ, flags_only=True), **given_by(arguments)}
    if "proxy" in found:
        found["proxy"] = parse_proxy(arguments.proxy)
    if "headers" in found:
        found["headers"] = parse_headers(arguments.headers) or None
    return found


def add_same_users(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """Add the option of a command that accepts connections at several relays."""
    parser.add_argument(
        "--same-users",
        action="store_true",
        help="with several relays: each name of a user stands for the same user at all of them, so a connection moves "
        "to another relay when its relay is away or drains",
    )


def add_path_options(
    parser: argparse.ArgumentParser | argparse._ArgumentGroup, *, has_cert: bool = True, may_be_stored: bool = False
) -> None:
    """Add the options for the way to a relay, and for a gateway before it. `may_be_stored`: the command uses what
    `tunnel login` stored."""
    stored = " (default: the stored one)" if may_be_stored else ""
    parser.add_argument(
        "--proxy",
        default="",
        metavar="URL",
        help="URL of a proxy to the relay, @FILE for a file of mode 0600 that holds the URL (all users of this machine "
        "can see a password in a command line), or the word none for a direct connection (default: "
        f"{'the stored one, or else ' if may_be_stored else ''}https_proxy, http_proxy or all_proxy)",
    )
    parser.add_argument(
        "--ca",
        metavar="FILE",
        help=f"PEM file with the authorities to trust instead of the system's{stored}",
    )
    if has_cert:
        parser.add_argument(
            "--cert", metavar="FILE", help="PEM file with your certificate and its key, if the relay asks for one"
        )
    parser.add_argument(
        "--insecure-http",
        action="store_true",
        help="allow the token and any --header to cross a network without encryption, to an http:// relay or proxy on "
        "another machine; everybody on the way can read them (default: only if TUNNEL_INSECURE_HTTP is 1"
        f"{', or if this option was stored' if may_be_stored else ''})",
    )
    parser.add_argument(
        "--header",
        dest="headers",
        action="append",
        default=[],
        metavar="HEADER",
        help="header for a gateway in front of the relay: 'NAME: VALUE', or @FILE, a file with one header on each "
        "line; repeatable. All users of this machine can see command lines: put secrets into a file with mode 0600"
        f"{' (default: the stored ones)' if may_be_stored else ''}",
    )
    parser.add_argument(
        "--hostname",
        default="",
        metavar="NAME",
        help="host name to send in the Host header instead of the one in the URL; also the server name in TLS, unless "
        f"--sni is given{' or stored' if may_be_stored else ''}{stored}",
    )
    parser.add_argument(
        "--sni",
        default="",
        metavar="NAME",
        help="server name in TLS; the certificate is checked against it (default: "
        f"{'the stored one, or ' if may_be_stored else ''}--hostname, or the URL's host)",
    )


def parse_headers(given: Sequence[str]) -> dict[str, str]:
    """Return the headers that --header options name. Raise ValueError, with advice but no values, if one is wrong.

    A file counts as one that holds secrets: it is an error if other users can read it.
    """
    found: dict[str, str] = {}
    for text in given:
        if text.startswith("@"):
            for number, line in enumerate(_lines(Path(text[1:])), 1):
                if line.strip():
                    _add(found, line, f"line {number} of {text[1:]}")
        else:
            _add(found, text, "--header")
    return found


def parse_proxy(given: str) -> str:
    """Return the proxy that a --proxy option names: `given` itself, or with @FILE, the URL in that file.

    Raise ValueError as `read_proxy_file` does, and for the name of a file without @, which could pass for a host.
    """
    if given.startswith("@"):
        return read_proxy_file(Path(given[1:]), "--proxy @")
    if given.lower() != "none" and "://" not in given and os.path.isfile(given):
        raise ValueError(f"--proxy {given}: this is a file: write --proxy @{given} for the URL that it holds")
    return given


def read_proxy_file(path: Path, option: str) -> str:
    """Return the URL in a file. Raise ValueError, which begins with the option, if there is no such file, if other
    users can read it, or if it does not hold exactly one URL."""
    try:
        text = read_private(path, if_seen=_IF_PASSWORD_SEEN).decode().strip()
    except FileNotFoundError:
        raise ValueError(f"{option}{path}: there is no such file: write the URL of the proxy into it") from None
    except UnicodeDecodeError:
        text = ""
    except ValueError as error:
        raise ValueError(f"{option}{error}") from None
    if not text or len(text.split()) != 1 or text.startswith("@"):
        raise ValueError(f"{option}{path} must hold one URL, such as http://user:password@proxy.example:3128")
    return text


def _add(found: dict[str, str], line: str, where: str) -> None:
    name, colon, value = line.partition(":")
    if not colon:
        raise ValueError(f"{where} is not a header, since it has no colon: {_FORM}")
    if name.lower() in {each.lower() for each in found}:
        raise ValueError(f"{where} names a header that is already given: give it once")
    found[name] = value.strip()


def _lines(path: Path) -> list[str]:
    try:
        return read_private(path, if_seen=_IF_SEEN).decode().splitlines()
    except FileNotFoundError:
        raise ValueError(f"--header @{path}: there is no such file: name a file that holds the headers") from None
    except UnicodeDecodeError:
        raise ValueError(f"--header @{path}: the file is not text in UTF-8: {_FORM}") from None
    except ValueError as error:
        raise ValueError(f"--header @{error}") from None
