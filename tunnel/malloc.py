"""What a process that moves bytes asks of its allocator, and one that is measured."""

import ctypes
from contextlib import suppress

__all__ = ["give_back_freed_memory", "keep_freed_memory"]

# mallopt(3)
_M_TRIM_THRESHOLD = -1
_M_MMAP_THRESHOLD = -3
_MMAP_BYTES = 32 * 1024 * 1024  # the most that glibc takes; larger blocks have a mapping of their own
_TRIM_BYTES = 64 * 1024 * 1024  # so much free memory stays with the process


def keep_freed_memory() -> None:
    """Let malloc use freed blocks again instead of giving each back to the system: bodies and read buffers are large,
    live shortly, and fresh pages cost more than what is copied into them. For commands; harmless where it is not known.
    """
    with suppress(OSError, AttributeError, TypeError):
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def give_back_freed_memory() -> None:
    """Return to the system what malloc keeps though nobody uses it: what is resident then is what is held. Costs some
    milliseconds; harmless where it is not known."""
    with suppress(OSError, AttributeError, TypeError):
        ctypes.CDLL(None).malloc_trim(0)
