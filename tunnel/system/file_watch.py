"""Watches files for changes, within the running event loop."""

import asyncio
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeAlias

__all__ = ["FileWatch"]

_LOOK_S = 0.5  # interval between two checks
_AGAIN_LOOKS = 10  # checks until files that could not be used are tried again: they may be readable by then
_Signature: TypeAlias = tuple[int, int, int] | None  # inode, time of the last change, size; None without a file
_NEVER: _Signature = (-1, -1, -1)  # stands for a file that was never reported; no file has this signature


class FileWatch:
    """Checks the files twice a second and calls `changed` when one was changed, created, removed or replaced.

    A file that is written in place is taken for whole when it is the same in two checks. `changed` returns whether it
    could use the files. If it could not, `again` (by default `changed`) is called every 5 s until it returns True.
    """

    def __init__(
        self, files: Iterable[Path], changed: Callable[[], bool], again: Callable[[], bool] | None = None
    ) -> None:
        self._files = list(files)
        self._changed = changed
        self._again = again or changed
        self._reported = self._seen = self._sign()  # reported: known to `changed`
        self._looks_left = 0  # checks until the files are tried again; 0: they need not be tried again
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start checking twice a second. Must be called within the running event loop."""
        if self._files:
            self._timer = asyncio.get_running_loop().call_later(_LOOK_S, self.look, True)

    def follow(self, files: Iterable[Path]) -> None:
        """Watch these files in place of the present ones. The next check counts those not watched before as changed."""
        reported = dict(zip(self._files, self._reported, strict=True))
        self._files = list(files)
        self._seen = self._sign()
        self._reported = [reported.get(path, _NEVER) for path in self._files]

    def look(self, reschedule: bool = False) -> None:
        """Check the files now. With `reschedule`, schedule the next check, too."""
        if reschedule:
            self.start()  # first, so that an error does not end the watch
        seen, self._seen = self._seen, self._sign()
        is_changed, is_due = self._seen != self._reported, self._looks_left == 1
        self._looks_left = max(0, self._looks_left - 1)
        if not (is_changed or is_due) or any(map(_may_be_unfinished, seen, self._seen)):
            return
        self._reported = self._seen
        is_used = self._changed() if is_changed else self._again()
        self._looks_left = 0 if is_used else _AGAIN_LOOKS

    def stop(self) -> None:
        """Stop checking."""
        if self._timer is not None:
            self._timer.cancel()

    def _sign(self) -> list[_Signature]:
        return [_sign(path) for path in self._files]


def _sign(path: Path) -> _Signature:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def _may_be_unfinished(seen: _Signature, now: _Signature) -> bool:
    """Whether the file may still be being written: it is new, or was changed in place, since the last check."""
    return now is not None and now != seen and (seen is None or seen[0] == now[0])
