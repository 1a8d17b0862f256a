"""`tunnel peers`: list, trust and forget the keys of exits and services whose connections are encrypted."""

import argparse
import os

from tunnel.ground.exit_codes import OK
from tunnel.ground.relay_lists import split_relays
from tunnel.process.command_line import CommandAdder, show, tell
from tunnel_client.errors import UsageError

__all__ = ["add"]

_KEY = "SHA256:hhzW5GkYbJ0Zxv1kq0y3Vt6l9Qm2n4p7r8s1u5wXyE8"


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    outer = commands.add(
        "peers", "list, trust and forget the keys of exits and services", f"tunnel peers trust exit {_KEY}"
    )
    actions = CommandAdder(outer)
    listing = actions.add(
        "list", "list the known keys, each with its relay and its exit or service", "tunnel peers list"
    )
    listing.set_defaults(run=_list)
    trust = actions.add(
        "trust",
        "add a key of an exit or a service to the keys that are known",
        f"tunnel peers trust service:reports {_KEY}",
    )
    _add_peer(trust)
    trust.add_argument("keys", metavar="KEY", nargs="+", help="the key, which begins with SHA256:")
    trust.set_defaults(run=_trust)
    forget = actions.add(
        "forget",
        "remove a key, or all keys of a peer; if no key of the peer is left, the next key that it shows is accepted "
        "and stored",
        "tunnel peers forget exit",
    )
    _add_peer(forget)
    forget.add_argument("keys", metavar="KEY", nargs="*", help="the key to remove (default: all)")
    forget.set_defaults(run=_forget)


def _add_peer(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("peer", metavar="PEER", help="exit (all exits of the relay), or service:NAME")
    parser.add_argument(
        "--relay", default="", metavar="URL", help="URL of the relay (default: TUNNEL_RELAY, or the stored one)"
    )


def _list(arguments: argparse.Namespace) -> int:
    from tunnel.encryption.known_peers import KnownPeers
    from tunnel_client.login_file import known_peers_path

    file = KnownPeers(known_peers_path())
    try:
        entries = file.entries()
    except ValueError as error:
        raise UsageError(str(error)) from None
    for entry in entries:
        for key in entry.keys:
            show(f"{entry.relay} {entry.peer} {key}")
    if not entries:
        tell(f"no keys are known: {file.path} is empty")
    return OK


def _trust(arguments: argparse.Namespace) -> int:
    from tunnel.encryption.fingerprint import is_fingerprint
    from tunnel.encryption.known_peers import KnownPeers
    from tunnel_client.login_file import known_peers_path

    relay, peer = _relay(arguments), _peer(arguments)
    for key in arguments.keys:
        if not is_fingerprint(key):
            raise UsageError(f"{key!r} is not a key: write SHA256: and the 43 characters that the operator gave you")
    file = KnownPeers(known_peers_path())
    try:
        for key in arguments.keys:
            file.trust(relay, peer, key)
    except ValueError as error:
        raise UsageError(str(error)) from None
    tell(f"trusted for {peer} at {relay}, in {file.path}")
    return OK


def _forget(arguments: argparse.Namespace) -> int:
    from tunnel.encryption.known_peers import KnownPeers
    from tunnel_client.login_file import known_peers_path

    relay, peer = _relay(arguments), _peer(arguments)
    file = KnownPeers(known_peers_path())
    try:
        found = [file.forget(relay, peer, key) for key in arguments.keys or [""]]
    except ValueError as error:
        raise UsageError(str(error)) from None
    if not all(found):
        raise UsageError(f"{peer} at {relay} does not have such a key in {file.path}: `tunnel peers list` shows them")
    tell(f"forgotten for {peer} at {relay}, in {file.path}")
    return OK


def _peer(arguments: argparse.Namespace) -> str:
    peer: str = arguments.peer
    if peer != "exit" and (not peer.startswith("service:") or peer == "service:"):
        raise UsageError(f"{peer!r} is not a peer: write exit, or service: and the name of the service")
    return peer


def _relay(arguments: argparse.Namespace) -> str:
    from tunnel_client.login_file import read_login

    login = None if arguments.relay or os.environ.get("TUNNEL_RELAY") else read_login()
    named = split_relays(arguments.relay) or split_relays(os.environ.get("TUNNEL_RELAY", ""))
    url = named[0] if named else login.relay if login else ""
    if not url:
        raise UsageError("no relay: give --relay URL, set TUNNEL_RELAY, or store one with `tunnel login URL`")
    return str(url)
