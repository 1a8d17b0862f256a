"""Names for endpoints that were given none, so that each is replaced by its own successor and by no other endpoint."""

import contextlib
import fcntl
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from types import TracebackType
from typing import Self

from tunnel.system.private_files import config_directory, make_private_directory

__all__ = ["OwnName"]

_HOST_LETTERS_MAX = 64
_SUFFIX = re.compile(rb"[0-9a-f]{8}")
_SUFFIX_BYTES = 4
_SLOTS_MAX = 1000  # endpoints of one kind at one relay that one user of this machine may run at the same time


class OwnName:
    """The name of an endpoint at a relay: the machine's name, the endpoint's kind and a random suffix.

    The suffix is kept in a file, which is locked while the endpoint runs. An endpoint that starts again gets the suffix
    of its predecessor: then the relay ends the predecessor's connections at once, instead of waiting for it. Endpoints
    that run at the same time get different suffixes. The suffix also tells machines of the same name apart. If the user
    has no directory for the file, there is no suffix. Use it with `with`.
    """

    def __init__(self, kind: str, relay: str, task: str = "") -> None:
        """`task` tells endpoints of one kind apart that are not successors of each other, such as their services."""
        self.text = f"{_host()}-{kind}"
        self._key = hashlib.sha256(f"{kind} {relay.rstrip('/')} {task}".encode(errors="replace")).hexdigest()[:16]
        self._descriptor = -1

    def __enter__(self) -> Self:
        with contextlib.suppress(OSError, ValueError):
            directory = config_directory() / "names"
            make_private_directory(directory)
            for path in self._slots(directory):
                suffix = self._take(path)
                if suffix:
                    self.text += f"-{suffix}"
                    break
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)  # this also releases the lock
            self._descriptor = -1

    def _slots(self, directory: Path) -> Iterator[Path]:
        return (directory / f"{self._key}-{number}" for number in range(_SLOTS_MAX))

    def _take(self, path: Path) -> str:
        """Lock the file, and return the suffix in it. Return an empty string if another process has locked it."""
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            suffix = os.read(descriptor, 2 * _SUFFIX_BYTES + 1)
            if not _SUFFIX.fullmatch(suffix):  # new, or damaged
                suffix = os.urandom(_SUFFIX_BYTES).hex().encode()
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, suffix, 0)
        except BlockingIOError:
            os.close(descriptor)
            return ""
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return suffix.decode()


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9.-]+", "-", gethostname())[:_HOST_LETTERS_MAX] or "host"
