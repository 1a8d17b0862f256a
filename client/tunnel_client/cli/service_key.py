"""The key with which commands encrypt the services that they offer."""

import argparse
from dataclasses import replace

from tunnel.encryption.keys import KeyFile, own_key
from tunnel.ground.exit_codes import OK
from tunnel.process.command_line import show
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings

__all__ = ["add_key_options", "show_key", "with_service_key"]


def add_key_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the key and print its fingerprint."""
    parser.add_argument(
        "--key",
        default="",
        metavar="FILE",
        help="file with the key for encryption from end to end; a FILE that does not exist is created. Without this "
        "option, the command uses the key in ~/.config/tunnel/service.pem. If that file is missing, --encryption "
        "require and --show-key create it, and otherwise the command has no key",
    )
    parser.add_argument(
        "--show-key",
        action="store_true",
        help="print the fingerprint of the public key, for `tunnel peers trust` and --peer-key, and end; the key is "
        "created if it does not exist",
    )


def show_key(file: str) -> int:
    """Print the fingerprint of the public key; return the exit code. The key is made if it is missing."""
    key = _service_key(file, make=True)
    assert key is not None  # it exists now
    show(key.fingerprint)
    return OK


def _service_key(file: str, *, make: bool) -> KeyFile | None:
    """Return the key in `file`, which is made if it is missing. If `file` is empty, return the default key.

    A missing default key is made if `make` is set; otherwise None is returned. Raise UsageError, with advice, if the
    key cannot be used.
    """
    try:
        return own_key(file, "service.pem", make=make)
    except ValueError as error:
        raise UsageError(str(error)) from None


def with_service_key(settings: RelaySettings, file: str) -> RelaySettings:
    """Return the settings of a command that offers services, with the key in `file` or the default one.

    If encryption is required, a missing default key is made; if it is off, the settings are returned as they are. Raise
    UsageError if the key cannot be used.
    """
    if settings.encryption == "off":
        return settings
    is_required = settings.encryption == "require" or bool(settings.peer_key)
    key = _service_key(file, make=is_required)
    return settings if key is None else replace(settings, key=str(key.path))
