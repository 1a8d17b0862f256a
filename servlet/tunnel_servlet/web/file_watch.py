"""Watches files for changes, within the running event loop."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path

__all__ = ["FileWatch"]

_LOOK_S = 1.0  # interval between two checks


class FileWatch:
    """Checks the files once a second and calls `changed` when one was changed or was replaced by a rename."""

    def __init__(self, files: Iterable[Path], changed: Callable[[], None]) -> None:
        self._files = list(files)
        self._changed = changed
        self._signature = self._sign()
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start checking once a second. Must be called within the running event loop."""
        if self._files:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self.look, True)

    def look(self, again: bool = False) -> None:
        """Check the files now. With `again`, schedule the next check, too."""
        signature = self._sign()
        if signature != self._signature:
            self._signature = signature
            self._changed()
        if again:
            self.start()

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _sign(self) -> list[tuple[int, int, int] | None]:
        return [_sign(path) for path in self._files]


def _sign(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size
