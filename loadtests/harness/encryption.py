"""The settings of attachments whose streams are encrypted from end to end."""

from pathlib import Path
from typing import Any

from tunnel.encryption.keys import KeyFile

__all__ = ["encryption_settings"]


def encryption_settings(file: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings of a client that accepts only the service's key, and of a service that requires encryption.

    The service's key is made in `file`.
    """
    key = KeyFile(file, make=True)
    return {"peer_key": key.fingerprint}, {"encryption": "require", "key": file}
