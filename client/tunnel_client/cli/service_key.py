"""The key with which commands encrypt the services that they offer."""

from dataclasses import replace

from tunnel.encryption.keys import KeyFile, own_key
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings

__all__ = ["service_key", "with_service_key"]


def service_key(file: str, *, make: bool) -> KeyFile | None:
    """Return the key in `file`, else the default one, which `make` makes if it is missing. None: there is none.

    Raise UsageError, with advice, if it cannot be used.
    """
    try:
        return own_key(file, "service.pem", make=make)
    except ValueError as error:
        raise UsageError(str(error)) from None


def with_service_key(settings: RelaySettings, file: str) -> RelaySettings:
    """Return the settings of a command that offers services, with the key in `file` or the default one.

    If encryption is required, the default key is made. Raise UsageError if the key cannot be used.
    """
    if settings.encryption == "off":
        return settings
    is_required = settings.encryption == "require" or bool(settings.peer_keys)
    key = service_key(file, make=is_required)
    return settings if key is None else replace(settings, key=str(key.path))
