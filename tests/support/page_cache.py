"""Files that are to be read from the disk."""

import os
from collections.abc import Iterator

__all__ = ["dropped_from_page_cache"]

_TRIES = 1_000


def dropped_from_page_cache(descriptor: int) -> Iterator[None]:
    """Ask the kernel to forget a file, again before each turn of a loop that ends once it has.

    It keeps pages that are not on the disk yet, and may keep those that are in use at that moment. To ask what it has
    may make it read ahead.
    """
    os.fsync(descriptor)
    for _ in range(_TRIES):
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        yield
    raise AssertionError("the kernel keeps the file in its page cache")
