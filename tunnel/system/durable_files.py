"""Files and directories that survive a power failure: names and content are on disk when each function returns."""

import errno
import os
from pathlib import Path

__all__ = ["make_directory", "sync_directory", "write_atomically"]


def sync_directory(directory: Path) -> None:
    """Block until the creation and removal of files in a directory are on disk, safe from a power failure."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def make_directory(directory: Path) -> None:
    """Create a directory and those above it, and block until their names are on disk, safe from a power failure.

    Only their owner can enter the directories that it creates.

    A name is not synced if the directory that contains it cannot be read or synced.
    """
    wanted = [directory, *(above for above in directory.parents if not above.exists())]
    for place in reversed(wanted):
        place.mkdir(mode=0o700, exist_ok=True)
        # Also sync the name of `directory` if it existed: its creator may have died before it synced the name.
        try:
            sync_directory(place.parent)
        except OSError as error:
            # The directory above may be one that this process cannot read, or whose file system cannot sync it.
            if error.errno not in (errno.EACCES, errno.EPERM, errno.EINVAL):
                raise


def write_atomically(path: Path, data: bytes) -> None:
    """Replace a file. A reader finds either the old or the new content, even after a power failure."""
    fresh = path.with_name(f"{path.name}.new")
    descriptor = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        left = memoryview(data)
        while left:
            left = left[os.write(descriptor, left) :]
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
    os.replace(fresh, path)
    sync_directory(path.parent)
