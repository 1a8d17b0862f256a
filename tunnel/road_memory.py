"""Remembers for a day which road worked on which path, so that the next attachment there tries it first."""

import contextlib
import logging
import socket
import time
from collections.abc import Callable, Sequence
from ipaddress import ip_interface
from pathlib import Path

import msgspec

from tunnel.exchange import RoadReport
from tunnel.ground.relay_urls import relay_key
from tunnel.system.private_files import make_private_directory, read_private, write_private

__all__ = ["RememberedPath", "RoadMemory", "local_network", "path_name"]

_VERSION = 1
_KEPT_S = 24 * 3600.0
_PATHS_MAX = 100  # the oldest are dropped
_FILE_BYTES_MAX = 1 << 20
_WHY_CHARACTERS_MAX = 200
_log = logging.getLogger("tunnel.roads")

# Addresses for documentation (RFC 5737, RFC 3849). Nothing is sent there: the system only says from which of its own
# addresses it would send.
_ELSEWHERE = ((socket.AF_INET, "192.0.2.1", 24), (socket.AF_INET6, "2001:db8::1", 64))


class RememberedPath(msgspec.Struct):
    """The road that worked on a path. `road` is the name of that road, or "poll" if none worked."""

    road: str
    at_s: float  # since the epoch
    roads: list[RoadReport] = []


class _File(msgspec.Struct):
    version: int
    paths: dict[str, RememberedPath]


class RoadMemory:
    """A file of paths. A file that cannot be used is ignored, and the log says why.

    `clock` gives the seconds since the epoch.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self._clock = clock

    def recall(self, name: str) -> RememberedPath | None:
        """Return what was learned of a path within the last day, or None."""
        return self._read().get(name)

    def keep(self, name: str, road: str, roads: Sequence[RoadReport]) -> None:
        """Remember the road of a path."""
        reports = [msgspec.structs.replace(report, why=report.why[:_WHY_CHARACTERS_MAX]) for report in roads]
        paths = self._read() | {name: RememberedPath(road, self._clock(), reports)}
        newest = sorted(paths.items(), key=lambda item: item[1].at_s)[-_PATHS_MAX:]
        self._write(_File(_VERSION, dict(newest)))

    def forget(self) -> int:
        """Remove the file; return the number of paths of the last day in it. Raise OSError if it cannot be removed."""
        count = len(self._read())
        with contextlib.suppress(FileNotFoundError):
            self.path.unlink()
        return count

    def _read(self) -> dict[str, RememberedPath]:
        try:
            found = msgspec.json.decode(read_private(self.path, if_seen="", bytes_max=_FILE_BYTES_MAX), type=_File)
            if found.version != _VERSION:
                raise ValueError(f"{self.path} has version {found.version}, and this program writes {_VERSION}")
        except FileNotFoundError:
            return {}
        except (ValueError, OSError) as error:
            _log.warning("what was learned of paths is not used: %s: %s", self.path, error)
            return {}
        now_s = self._clock()
        return {name: path for name, path in found.paths.items() if now_s - _KEPT_S < path.at_s <= now_s}

    def _write(self, content: _File) -> None:
        try:
            make_private_directory(self.path.parent)
            write_private(self.path, msgspec.json.encode(content), is_synced=False)
        except OSError as error:
            # No warning: a user without a directory, as in a container, cannot change it, and loses nothing but time.
            _log.info("what was learned of a path is not kept: %s: %s", self.path, error.strerror or error)


def local_network() -> str:
    """Return the network of this machine's address towards the internet, /24 or /64; empty if it has none.

    A machine that moves to another network gets another path.
    """
    for family, elsewhere, bits in _ELSEWHERE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((elsewhere, 9))
            address = str(probe.getsockname()[0]).partition("%")[0]
            return str(ip_interface(f"{address}/{bits}").network)
    return ""


def path_name(relay: str, proxy: str | None, network: str) -> str:
    """Return the name of a path. The URLs must hold no credentials."""
    return " ".join((relay_key(relay), f"through {proxy}" if proxy else "direct", f"from {network or 'nowhere'}"))
