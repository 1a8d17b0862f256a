"""The file `known_peers`: the keys of exits and services, which an initiator of encrypted streams knows.

A line holds the relay's URL, the peer and one or more keys. The peer is `exit` for all exits of the relay together, or
`service:NAME`. Empty lines and lines that begin with `#` are kept as they are.

    https://relay.example exit SHA256:hhz…E8 SHA256:0Xv…Yw
    https://relay.example service:reports SHA256:mGk…p4
"""

import contextlib
import fcntl
import functools
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from tunnel.encryption.fingerprint import is_fingerprint
from tunnel.ground.relay_urls import relay_key
from tunnel.system.private_files import make_private_directory, read_private, write_private
from tunnel.wire import Target, TargetKind

__all__ = ["EXIT", "KnownPeer", "KnownPeers", "peer_name", "relay_name", "service_peer"]

EXIT = "exit"
_SERVICE = "service:"
_FILE_BYTES_MAX = 1 << 20  # about 10,000 peers
_LOCK_S = 1.0  # longest wait for the lock of another process; a change takes some milliseconds
_LOCK_PAUSE_S = 0.01
_Signature = tuple[int, int, int, int]
_MISSING: _Signature = (0, 0, 0, 0)
_IF_SEEN = "compare its keys with those that the peers show, in case another user has changed them"


@dataclass(frozen=True, slots=True)
class KnownPeer:
    """The keys of one peer, and the line of the file that lists them, counting from 1."""

    relay: str
    peer: str
    keys: tuple[str, ...]
    line: int = 0


@functools.lru_cache(maxsize=16)
def relay_name(url: str) -> str:
    """Return the form of a relay's URL in the file, which all its spellings share."""
    return quote(relay_key(url), safe=":/?#[]@!$&'()*+,;=%~")


def peer_name(target: Target) -> str:
    """Return how the file names the peer that accepts connections to this target."""
    return EXIT if target.kind == TargetKind.TCP else service_peer(target.host)


def service_peer(name: str) -> str:
    """Return how the file names the peer that offers a service."""
    return _SERVICE + name


class KnownPeers:
    """The file, which several processes may use at once. Every change replaces it atomically.

    The methods raise ValueError, with advice, if they cannot use the file: for example, it is malformed, other users
    can read it, or it cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._read: tuple[_Signature, list[KnownPeer]] | None = None  # the entries, while the file is the same

    def find(self, relay: str, peer: str) -> KnownPeer | None:
        """Return what is known about a peer, or None."""
        return _find(self.entries(), relay_name(relay), peer)

    def entries(self) -> list[KnownPeer]:
        """Return all known peers, in the order of the file."""
        signature = self._sign()
        if self._read is not None and signature is not None and self._read[0] == signature:
            return self._read[1]
        found = self._parsed()
        self._read = None if signature is None else (signature, found)
        return found

    def _sign(self) -> _Signature | None:
        """Return numbers that change with the file's content or mode; None if they cannot be found out."""
        try:
            found = self.path.stat()
        except FileNotFoundError:
            return _MISSING
        except OSError:
            return None
        return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns

    def _parsed(self) -> list[KnownPeer]:
        found: dict[tuple[str, str], KnownPeer] = {}
        for number, line in enumerate(self._lines(), 1):
            entry = self._parse(number, line)
            if entry is None:
                continue
            first = found.setdefault((entry.relay, entry.peer), entry)
            if first is not entry:  # a person must decide which of the two counts
                raise ValueError(
                    f"{self.path}, line {number} names the same relay and peer as line {first.line}: put all keys of a "
                    "peer on one line, and remove the other"
                )
        return list(found.values())

    def remember(self, relay: str, peer: str, key: str) -> KnownPeer:
        """Add the first key of a peer, unless the file has one meanwhile. Return what is known then."""
        with self._locked():
            known = self.find(relay, peer)
            if known is None:
                self._write([*self._lines(), _line(relay_name(relay), peer, (key,))])
                known = KnownPeer(relay_name(relay), peer, (key,), len(self._lines()))
            return known

    def trust(self, relay: str, peer: str, key: str) -> None:
        """Add a key to those of a peer, at the end of the peer's line. A new peer gets a line."""
        with self._locked():
            known, lines = self.find(relay, peer), self._lines()
            if known is None:
                self._write([*lines, _line(relay_name(relay), peer, (key,))])
            elif key not in known.keys:
                lines[known.line - 1] = _line(known.relay, known.peer, (*known.keys, key))
                self._write(lines)

    def forget(self, relay: str, peer: str, key: str = "") -> bool:
        """Remove a peer, or one of its keys. Return whether it was known."""
        with self._locked():
            known, lines = self.find(relay, peer), self._lines()
            if known is None or (key and key not in known.keys):
                return False
            kept = tuple(one for one in known.keys if key and one != key)
            lines[known.line - 1 : known.line] = [_line(known.relay, known.peer, kept)] if kept else []
            self._write(lines)
            return True

    def _parse(self, number: int, line: str) -> KnownPeer | None:
        if not line.strip() or line.lstrip().startswith("#"):
            return None
        relay, peer, keys = (*line.split(maxsplit=2), "", "")[:3]
        found = tuple(keys.split())
        if not found or not all(map(is_fingerprint, found)) or not (peer == EXIT or peer.startswith(_SERVICE)):
            raise ValueError(
                f"{self.path}, line {number} is malformed: it must hold the relay's URL, exit or service:NAME, and one "
                "or more keys (SHA256:...): correct or remove the line"
            )
        return KnownPeer(relay_name(relay), unquote(peer), found, number)

    def _lines(self) -> list[str]:
        try:
            return read_private(self.path, if_seen=_IF_SEEN, bytes_max=_FILE_BYTES_MAX).decode("utf-8").splitlines()
        except FileNotFoundError:
            return []
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not a text file: correct or remove it") from None

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        """Keep other processes from changing the file. The lock is another file, since changes replace this one."""
        try:
            make_private_directory(self.path.parent)
            lock = self.path.with_name(f".{self.path.name}.lock")
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            self._lock(descriptor)
            yield
        finally:
            os.close(descriptor)

    def _lock(self, descriptor: int) -> None:
        """Take the lock, or raise ValueError after a second, since this wait perhaps holds up an event loop."""
        deadline = time.monotonic() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise ValueError(
                        f"{self.path} cannot be changed: another process has held its lock for {_LOCK_S:g} s. Is a "
                        "tunnel command stopped? Continue or end it, and try again"
                    ) from None
                time.sleep(_LOCK_PAUSE_S)
            except OSError as error:  # such as: the file system has no locks
                raise self._unwritable(error) from None

    def _write(self, lines: list[str]) -> None:
        content = "".join(f"{line}\n" for line in lines).encode()
        if len(content) > _FILE_BYTES_MAX:
            raise ValueError(
                f"{self.path} would become too long: remove peers that you do not use, `tunnel peers forget PEER`"
            )
        try:
            write_private(self.path, content)
        except OSError as error:
            raise self._unwritable(error) from None

    def _unwritable(self, error: OSError) -> ValueError:
        return ValueError(f"{self.path} cannot be written: {error.strerror}: check its directory and the disk")


def _find(entries: list[KnownPeer], relay: str, peer: str) -> KnownPeer | None:
    return next((entry for entry in entries if (entry.relay, entry.peer) == (relay, peer)), None)


def _line(relay: str, peer: str, keys: tuple[str, ...]) -> str:
    return " ".join((relay, quote(peer, safe=":"), *keys))
