"""Settings of glibc's malloc: for processes that move bytes, and for processes whose memory is measured."""

import ctypes
from contextlib import suppress

__all__ = ["give_back_freed_memory", "keep_freed_memory"]

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 * 1024 * 1024  # the largest value that glibc accepts; larger blocks get a mapping of their own
_TRIM_BYTES = 64 * 1024 * 1024  # the free memory that stays with the process


def keep_freed_memory() -> None:
    """Make malloc reuse freed blocks instead of returning each one to the system. Only commands call this.

    Bodies and read buffers are large and short-lived, and fresh pages cost more than copying into them. The call has no
    effect where malloc is not glibc's.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_freed_memory() -> None:
    """Return malloc's unused memory to the system, so that the resident size shows the memory in use.

    The call takes some milliseconds. It has no effect where malloc is not glibc's.
    """
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
