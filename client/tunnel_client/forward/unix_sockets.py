"""Local Unix sockets that a command listens on."""

import errno
import os
import socket
import stat
from contextlib import suppress

from tunnel_client.errors import UsageError
from tunnel_client.places import Address

__all__ = ["SOCKET_MODE", "bind_unix"]

SOCKET_MODE = 0o600  # everybody who may open the socket can use the tunnel with our token
_BACKLOG = 1024

_ADVICE = {
    errno.ENOENT: "its folder does not exist: create the folder, or choose another path",
    errno.EACCES: "you may not create files in its folder: choose another path",
    errno.EROFS: "its file system is read-only: choose another path",
}


class _ListeningSocket(socket.socket):
    """A socket that removes its path when it is closed, if the path still leads to it."""

    _bound: tuple[int, int] | None = None  # device and inode

    def note_path(self) -> None:
        """Remember the file that `bind` has made."""
        found = os.lstat(self.getsockname())
        self._bound = found.st_dev, found.st_ino

    def close(self) -> None:
        bound, self._bound = self._bound, None
        if bound is not None:
            with suppress(OSError):
                path = self.getsockname()
                found = os.lstat(path)
                if bound == (found.st_dev, found.st_ino):
                    os.unlink(path)
        super().close()


def bind_unix(address: Address, mode: int = SOCKET_MODE) -> socket.socket:
    """Return a socket that listens at the path of the address, with these permission bits.

    A socket that is there already is replaced if it belongs to this user and no process listens on it: an earlier
    command that was killed has left it. Raises UsageError if something else is there, or if the path cannot be used.
    Connections wait until they are accepted.
    """
    path = address.path
    _remove_stale(address)
    sock = _ListeningSocket(socket.AF_UNIX)
    try:
        sock.bind(path)
        sock.note_path()
        os.chmod(path, mode)  # early enough: before `listen`, no process can connect
        sock.listen(_BACKLOG)  # now, so that another command sees that the path is in use
    except OSError as error:
        sock.close()
        advice = _ADVICE.get(error.errno or 0, error.strerror)
        raise UsageError(f"cannot listen on {address}: {advice}") from None
    sock.setblocking(False)
    return sock


def _remove_stale(address: Address) -> None:
    path = address.path
    try:
        found = os.lstat(path)
    except OSError:
        return  # `bind` will say what is wrong
    if not stat.S_ISSOCK(found.st_mode):
        raise UsageError(f"cannot listen on {address}: a file that is no socket is there: choose another path")
    if found.st_uid != os.geteuid():
        raise UsageError(f"cannot listen on {address}: the socket there belongs to another user: choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            return
        except OSError:  # for example, its backlog is full
            pass
    raise UsageError(f"cannot listen on {address}: something listens there already: stop it, or choose another path")
