"""The files in which a relay keeps the use of its tokens: when each was last used, and which single-use token is used.

They are in a folder beside the tokens file, whose name ends in `.use`. The relay writes them, and `tunnel-relay user
list` reads them. Only their owner can read them.
"""

import contextlib
import hashlib
from collections.abc import Container, Mapping
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tunnel.system.durable_files import sync_directory
from tunnel.system.private_files import make_private_directory, write_private
from tunnel_servlet.access.instants import read_instant

__all__ = ["TokenUseFiles", "endpoint_hash", "use_folder", "write_instant"]

_LAST = "last.json"
_SUFFIX = ".used"
_FORGET_S = 30 * 86_400  # after a single-use token has expired, nothing makes it valid again but a clock that is wrong


def write_instant(seconds: float) -> str:
    """Return the text for a time in seconds since the epoch, as it is stored and as `read_instant` reads it."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class _Claim(msgspec.Struct):
    """The content of the file that a single-use token has once it is used."""

    endpoint: str  # the SHA-256 hash of the attachment id, in hex
    expires: str  # the time from which the token is not valid


def use_folder(tokens_file: Path) -> Path:
    """Return the folder with the files about the use of the tokens in this file."""
    return tokens_file.with_suffix(".use")


class TokenUseFiles:
    """The folder and its files. The methods block until what they write is on disk; OSError if it cannot be written."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def last_uses(self) -> dict[str, str]:
        """Return the time of the last use by key id. A file that is missing or damaged says nothing."""
        try:
            return msgspec.json.decode((self.folder / _LAST).read_bytes(), type=dict[str, str])
        except (OSError, msgspec.DecodeError, UnicodeDecodeError):
            return {}

    def store_last_uses(self, uses: Mapping[str, str]) -> None:
        """Replace the times of the last use in one step. A later time that another relay has stored stays."""
        make_private_directory(self.folder)
        stored = self.last_uses()
        newest = {key_id: max(used, stored.get(key_id, "")) for key_id, used in uses.items()}
        write_private(self.folder / _LAST, msgspec.json.encode(newest), is_synced=False)

    def is_used(self, key_id: str) -> bool:
        """Whether an endpoint has used this single-use token."""
        return self._claim(key_id).exists()

    def use(self, key_id: str, endpoint: bytes, expires: str) -> str:
        """Let this endpoint have a single-use token if none has it yet. Return the hash of the endpoint that has it.

        However many relays and endpoints ask at the same moment, the answer is the same for all. It holds after a crash
        and a power failure, too. Raise OSError or ValueError if the files cannot be used.
        """
        path = self._claim(key_id)
        if not path.exists():
            make_private_directory(self.folder)
            claim = _Claim(endpoint_hash(endpoint), expires)
            write_private(path, msgspec.json.encode(claim), replaces=False)
            sync_directory(self.folder)
        return msgspec.json.decode(path.read_bytes(), type=_Claim).endpoint

    def forget(self, now_s: float, present: Container[str]) -> None:
        """Remove the files of single-use tokens that expired long ago and are not `present`, by their key ids.

        The file of a token has the time of expiry that it had when it was used. A later one may have been set.
        """
        for path in self.folder.glob(f"*{_SUFFIX}"):
            if path.stem in present:
                continue
            # If it cannot be read, it is not known when the token expires, so the file stays.
            with contextlib.suppress(OSError, ValueError):
                expires_s = read_instant(msgspec.json.decode(path.read_bytes(), type=_Claim).expires)
                if expires_s + _FORGET_S < now_s:
                    path.unlink(missing_ok=True)

    def _claim(self, key_id: str) -> Path:
        return self.folder / f"{key_id}{_SUFFIX}"


def endpoint_hash(endpoint: bytes) -> str:
    """Return what is stored for an endpoint, whose id is a secret of its user."""
    return hashlib.sha256(endpoint).hexdigest()
