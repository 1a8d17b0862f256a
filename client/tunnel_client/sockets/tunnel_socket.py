"""TunnelSocket: a socket of the standard library, with a descriptor of its own, that connects through a tunnel.

The descriptor is one end of a loopback connection; the loop thread moves the bytes at the other end. So reading,
writing, polling and closing work as on any connected TCP socket. `getpeername` names the target; `getsockname` and the
options concern the loopback connection.
"""

from __future__ import annotations

import enum
import errno
import os
import select
import socket
from concurrent.futures import Future
from typing import Any, TypeAlias

from tunnel_client.borrowed.pair import forget_error, renew, unmute
from tunnel_client.sockets.connector import ResolveError, errno_of
from tunnel_client.sockets.runtime import Runtime, connecting, default_runtime

__all__ = ["Address", "TunnelSocket", "create_connection"]

Address: TypeAlias = "tuple[str, int | None] | str"  # a port of None, or a name alone, means a service


class TunnelSocket(socket.socket):
    """A TCP socket that connects through a tunnel. It cannot listen; otherwise it behaves as its base class."""

    def __init__(
        self,
        family: int = -1,
        type: int = -1,  # noqa: A002 - as in the base class
        proto: int = -1,
        fileno: int | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> None:
        super().__init__(family, type, proto, fileno)
        self._runtime = runtime
        self._target: tuple[str, int] | None = None
        self._pending: Future[None] | None = None
        self._failed = False
        self._check_kind()

    def _check_kind(self) -> None:
        if self.type != socket.SOCK_STREAM or self.family not in (socket.AF_INET, socket.AF_INET6):
            self.close()
            raise OSError(errno.EPROTONOSUPPORT, "only TCP goes through a tunnel: use AF_INET and SOCK_STREAM")

    def connect(self, address: Any) -> None:
        """Connect through the tunnel; the far side resolves the name.

        Raises the errors that socket code expects, each with a text that says what to do.
        """
        host, port = read_address(address)
        self.getsockname()  # raises EBADF if the socket is closed
        timeout = self.gettimeout()
        if self._pending is not None:
            self._ask_again()
            return
        if self._target is not None:
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        if self._failed:
            renew(self)
            self._failed = False
        runtime = connecting(self._runtime or default_runtime())
        if timeout == 0:
            self._pending = runtime.connect_soon(self, host, port)
            self._target = host, port or 0
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        runtime.connect(self, host, port, timeout)
        self._target = host, port or 0

    def connect_ex(self, address: Any) -> int:
        """Connect as `connect` does, but return the error number. An unknown name raises, as with every socket."""
        try:
            self.connect(address)
        except ResolveError:
            raise
        except OSError as error:
            return errno_of(error)
        return 0

    def getpeername(self) -> Any:
        """Return the target, as long as the socket is connected."""
        near = super().getpeername()
        return near if self._target is None else self._target

    def getsockopt(self, *arguments: Any) -> Any:
        """Return a socket option. SO_ERROR also reports the outcome of a non-blocking connect."""
        if self._pending is not None and arguments[:2] == (socket.SOL_SOCKET, socket.SO_ERROR):
            error = self._outcome()
            if error is not None:
                return errno_of(error)
        return super().getsockopt(*arguments)

    def dup(self) -> TunnelSocket:
        """Return a socket with another descriptor of the same connection."""
        copy = super().dup()
        copy.__dict__.update(self.__dict__)
        return copy

    def bind(self, address: Any) -> None:
        """Accept only wildcard addresses with port 0, and ignore them: the exit decides the source of a connection."""
        if address[0] not in ("", "0.0.0.0", "::") or address[1]:
            raise OSError(errno.EADDRNOTAVAIL, "a TunnelSocket has no address of its own at the far side: do not bind")

    def listen(self, backlog: int = 0) -> None:
        """Raise OSError: a TunnelSocket cannot listen."""
        raise OSError(errno.EOPNOTSUPP, "a TunnelSocket only connects: offer a service with tunnel expose")

    def _outcome(self) -> OSError | None:
        """Return the error of a failed non-blocking connect, only once; in every other case, return None.

        While the socket still polls as connecting, the connect remains pending.
        """
        pending = self._pending
        if pending is None or not _is_writable(self):
            return None
        self._pending = None
        error = pending.exception()  # the socket is writable, so this hardly waits
        if error is None:
            unmute(self)
            return None
        forget_error(self)
        self._target = None
        self._failed = True
        if isinstance(error, OSError):
            return error
        return ConnectionAbortedError(errno.ECONNABORTED, "the runtime was closed while the socket connected")

    def _ask_again(self) -> None:
        """Handle a second connect, which asks for the outcome of the first one."""
        error = self._outcome()
        if error is not None:
            raise error
        if self._pending is not None:
            raise OSError(errno.EALREADY, os.strerror(errno.EALREADY))


class _Default(enum.Enum):
    TIMEOUT = "the default timeout of sockets"


def create_connection(
    address: Address, timeout: float | _Default | None = _Default.TIMEOUT, *, runtime: Runtime | None = None
) -> TunnelSocket:
    """Connect to (host, port) through the tunnel, or to the service with this name. Return a TunnelSocket.

    `timeout` applies to the connect, and then to the socket, as with `socket.create_connection`. Raises TimeoutError,
    ConnectionRefusedError, PermissionError (denied, or not authenticated), socket.gaierror (unknown name) and other
    OSErrors, each with a text that says what to do.
    """
    sock = TunnelSocket(socket.AF_INET, socket.SOCK_STREAM, runtime=runtime)
    try:
        if not isinstance(timeout, _Default):
            sock.settimeout(timeout)
        seconds = sock.gettimeout()
        if seconds == 0:
            raise ValueError("create_connection waits: give a timeout above 0, or None")
        sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock


def read_address(address: Any) -> tuple[str, int | None]:
    """Return the host and the port of a socket address. The port of a service is None."""
    if isinstance(address, str):
        return address, None
    if not isinstance(address, tuple) or len(address) < 2:
        raise TypeError(f"an address is a pair of host and port, or the name of a service, not {address!r}")
    host, port = address[:2]
    if isinstance(host, bytes | bytearray):
        host = bytes(host).decode("ascii")
    if not isinstance(host, str) or not (port is None or isinstance(port, int)):
        raise TypeError(f"an address is a pair of host and port, not {address!r}")
    if port is not None and not 0 < port < 65536:
        raise OverflowError(f"a port lies between 1 and 65535, not {port}")
    return host, port


def _is_writable(sock: socket.socket) -> bool:
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLOUT)
    return bool(poll.poll(0))
