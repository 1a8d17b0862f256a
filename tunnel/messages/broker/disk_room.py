"""The room on the disk of a broker, looked up now and then, so that messages are refused before a write fails."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

from tunnel.messages.broker.protocol import STORAGE
from tunnel.messages.errors import RemoteCallError

__all__ = ["DiskRoom", "free_bytes"]

_LOOK_S = 0.5  # look at the disk again after this time, because other programs fill it, too


def free_bytes(directory: Path) -> int:
    """Return the number of bytes that this process can still write below a directory."""
    found = os.statvfs(directory)
    return found.f_bavail * found.f_frsize


class DiskRoom:
    """Counts down the room on a disk as messages are appended; looks it up again when the count is old or too small."""

    def __init__(
        self,
        directory: Path,
        reserve_bytes: int,
        *,
        free: Callable[[Path], int] = free_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._directory = directory
        self._reserve = reserve_bytes
        self._free = free
        self._clock = clock
        self._left = 0
        self._looked = float("-inf")

    def take(self, size: int) -> None:
        """Note that `size` bytes will be written. Raise RemoteCallError STORAGE if there is no room for them."""
        if size > self._left or self._clock() - self._looked > _LOOK_S:
            self._looked = self._clock()
            self._left = self._free(self._directory) - self._reserve
            if size > self._left:
                raise RemoteCallError(
                    STORAGE,
                    f"the disk of the broker is full: {self._left + self._reserve} bytes are left, and "
                    f"{self._reserve} of them are reserved; nothing was stored: free the disk, then send again",
                )
        self._left -= size
