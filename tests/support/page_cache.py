"""Files that are to be read from the disk."""

import os
import time
from collections.abc import Callable

__all__ = ["drop_from_page_cache"]

_TRIES = 1_200  # 60 s


def drop_from_page_cache(descriptor: int, is_cached: Callable[[], bool | None]) -> None:
    """Ask the kernel to forget a file until it has done so: it may keep pages that are in use at that moment, and keeps
    those that are not on the disk yet."""
    os.fsync(descriptor)
    for _ in range(_TRIES):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        if not is_cached():
            return
        time.sleep(0.05)
    raise AssertionError("the kernel keeps the file in its page cache")
