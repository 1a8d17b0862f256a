"""Replaces functions and methods of `socket` and of event loops, so that they reach matching hosts through a tunnel.

This file needs only the standard library and Python 3.8: programs that borrow a tunnel load it by its path, and pass in
what it would otherwise import.
"""

from __future__ import annotations

import errno
import os
import socket
import sys
import threading
from typing import Any, Callable  # noqa: UP035 - Python 3.8
from weakref import WeakKeyDictionary

__all__ = ["Engine", "Route"]

_MISSING = object()
_OF_ADDRESSES = ("family", "proto", "flags", "local_addr", "happy_eyeballs_delay", "interleave", "all_errors")
_INTERNET = (socket.AF_INET, socket.AF_INET6)
_CONNECTING, _ASKING = ("connect", "connect_ex", "sendto"), ("getpeername", "getsockopt")  # methods of sockets


class Route:
    """A set of hosts, and the backend that connects to them.

    `backend.connect(sock, host, port, timeout)` connects a socket and waits. `backend.connect_soon(sock, host, port)`
    does not wait for the target; the `exception()` of its result waits for the outcome. Until the connect is done, the
    socket polls as neither readable nor writable.
    """

    def __init__(self, hosts: Any, backend: Any) -> None:
        self.hosts = hosts
        self.backend = backend


class _Connect:
    """A socket's connect through a route: the target, the outcome while it is pending, and the error if it failed."""

    def __init__(self, target: tuple[str, int]) -> None:
        self.target = target
        self.pending: Any = None
        self.error: OSError | None = None


class Engine:
    """Replaces functions and methods while it has routes, and restores them afterwards.

    One engine serves all patches of a process. A process under `tunnel run` has another one, for the tunnel of that
    command.
    """

    def __init__(
        self,
        placeholders: Any,
        is_literal: Callable[[str], bool],
        is_inside: Callable[[], bool],
        pair: Any,
        errno_of: Callable[[OSError], int],
        late: Any,
    ) -> None:
        self._placeholders = placeholders
        self._is_literal = is_literal
        self._is_inside = is_inside
        self._pair = pair
        self._errno_of = errno_of
        self._late = late
        self._routes: list[Route] = []
        self._connects: WeakKeyDictionary[socket.socket, _Connect] = WeakKeyDictionary()
        self._replaced: list[tuple[Any, str, Any]] = []
        self._originals: dict[str, Any] = {}
        self._lock = threading.Lock()

    def add(self, route: Route) -> None:
        """Use this route from now on. If several routes have a host, the newest one decides."""
        with self._lock:
            if not self._routes:
                self._install()
            self._routes = [route, *self._routes]

    def remove(self, route: Route) -> None:
        """Stop using this route. Its existing connections continue."""
        with self._lock:
            self._routes = [other for other in self._routes if other is not route]
            if not self._routes:
                self._uninstall()

    # --- installing

    def _install(self) -> None:
        self._replace_all(socket.socket, socket)
        self._late.watch("gevent.socket", self._follow_gevent)
        self._late.watch("eventlet.green.socket", self._follow_eventlet)
        self._late.watch(
            "asyncio.selector_events", lambda module: self._replace(module.BaseSelectorEventLoop, "sock_connect")
        )
        # A loop of uvloop connects in C, so its create_connection is replaced.
        self._late.watch("uvloop", lambda module: self._replace(module.Loop, "create_connection"))

    def _follow_gevent(self, module: Any) -> None:
        """Replace the functions and methods of gevent's own sockets. If gevent has put these sockets into the standard
        library, replace only getaddrinfo."""
        if module.socket is not socket.socket:
            self._replace_all(module.socket, module)
        else:
            self._replace(module, "getaddrinfo")  # gevent's own create_connection uses this one

    def _follow_eventlet(self, module: Any) -> None:
        """Replace what eventlet is about to put into the standard library.

        A socket of eventlet wraps a socket of a copy of the `socket` module. The wrapped socket answers `getpeername`
        and `getsockopt`.
        """
        for name in _CONNECTING:
            self._replace(module.socket, name)
        for name in _ASKING:
            self._replace(sys.modules["eventlet.patcher"].original("socket").socket, name)
        self._replace_functions(module)

    def _replace_all(self, sockets: Any, module: Any) -> None:
        for name in (*_CONNECTING, *_ASKING):
            self._replace(sockets, name)
        self._replace_functions(module)

    def _replace_functions(self, module: Any) -> None:
        for name in ("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr", "getnameinfo"):
            self._replace(module, name)

    def _replace(self, owner: Any, name: str) -> None:
        """Replace an attribute, and note whether `owner` itself had it.

        Some methods are inherited from C. They must be deleted afterwards instead of being restored.
        """
        original = getattr(owner, name)
        self._replaced.append((owner, name, owner.__dict__.get(name, _MISSING)))
        make = getattr(self, f"_make_{name}")
        replacement = make(original)
        replacement.__name__ = replacement.__qualname__ = name
        replacement.__doc__ = original.__doc__
        setattr(owner, name, replacement)

    def _uninstall(self) -> None:
        self._late.stop()
        while self._replaced:
            owner, name, before = self._replaced.pop()
            if before is _MISSING:
                delattr(owner, name)
            else:
                setattr(owner, name, before)

    # --- which hosts

    def _route_of(self, host: Any) -> tuple[Route, str] | None:
        """Return the route that leads to this host, and the name of the host; None if there is no route."""
        if self._is_inside():
            return None
        if isinstance(host, (bytes, bytearray)):
            host = bytes(host).decode("ascii", "replace")
        if not isinstance(host, str) or not host:
            return None
        name = self._placeholders.name(host) or host
        return next(((route, name) for route in self._routes if name in route.hosts), None)

    def _name_of(self, host: Any) -> str:
        """Return the name of the host if the far side has to resolve it, otherwise an empty string."""
        found = self._route_of(host)
        return "" if found is None or self._is_literal(found[1]) else found[1]

    def _found(self, sock: socket.socket, address: Any) -> tuple[Route, str, int] | None:
        if sock.family not in _INTERNET or not isinstance(address, tuple) or len(address) < 2:
            return None
        found = self._route_of(address[0])
        if found is None:
            if isinstance(address[0], str) and self._placeholders.name(address[0]):
                raise OSError(errno.ENETUNREACH, "%s was resolved under a patch that has ended" % address[0])  # noqa: UP031
            return None
        if sock.type != socket.SOCK_STREAM:
            raise OSError(errno.EPROTONOSUPPORT, "only TCP goes through the tunnel, not UDP to %s" % found[1])  # noqa: UP031
        return found[0], found[1], address[1]

    # --- methods of sockets

    def _make_connect(self, original: Any) -> Any:
        def connect(sock: socket.socket, address: Any) -> None:
            found = self._found(sock, address)
            if found is None:
                original(sock, address)
            else:
                self._connect(sock, *found)

        return connect

    def _make_connect_ex(self, original: Any) -> Any:
        def connect_ex(sock: socket.socket, address: Any) -> int:
            found = self._found(sock, address)
            if found is None:
                return int(original(sock, address))
            try:
                self._connect(sock, *found)
            except socket.gaierror:
                raise
            except OSError as error:
                return self._errno_of(error)
            return 0

        return connect_ex

    def _connect(self, sock: socket.socket, route: Route, host: str, port: int) -> None:
        sock.getsockname()  # raises EBADF if the socket is closed
        inner = self._pair.wrapped(sock)
        known = self._connects.get(inner)
        if known is not None and known.error is None:
            self._ask_again(sock, known)
            return
        if known is not None:
            self._pair.renew(sock)  # the connect before this one failed
        connect = _Connect((host, port))
        if sock.gettimeout() == 0:
            connect.pending = route.backend.connect_soon(sock, host, port)
            self._connects[inner] = connect
            raise BlockingIOError(errno.EINPROGRESS, os.strerror(errno.EINPROGRESS))
        route.backend.connect(sock, host, port, sock.gettimeout())
        self._connects[inner] = connect

    def _ask_again(self, sock: socket.socket, known: _Connect) -> None:
        if known.pending is None:
            raise OSError(errno.EISCONN, os.strerror(errno.EISCONN))
        error = self._outcome(sock, known)
        if error is not None:
            raise error
        if known.pending is not None:
            raise OSError(errno.EALREADY, os.strerror(errno.EALREADY))

    def _outcome(self, sock: socket.socket, known: _Connect) -> OSError | None:
        """Return the error of a failed non-blocking connect, only once; in every other case, return None.

        While the socket still polls as connecting, the connect remains pending.
        """
        if known.pending is None or not self._pair.is_writable(sock, 0):
            return None
        pending, known.pending = known.pending, None
        error = pending.exception()
        if error is None:
            self._pair.unmute(sock)
            return None
        self._pair.forget_error(sock)
        if isinstance(error, OSError):
            known.error = error
        else:
            known.error = ConnectionAbortedError(errno.ECONNABORTED, "the tunnel was closed while the socket connected")
        return known.error

    def _make_getsockopt(self, original: Any) -> Any:
        def getsockopt(sock: socket.socket, *arguments: Any) -> Any:
            if arguments[:2] == (socket.SOL_SOCKET, socket.SO_ERROR):
                known = self._connects.get(sock)
                error = None if known is None else self._outcome(sock, known)
                if error is not None:
                    return self._errno_of(error)
            return original(sock, *arguments)

        return getsockopt

    def _make_getpeername(self, original: Any) -> Any:
        def getpeername(sock: socket.socket) -> Any:
            near = original(sock)
            known = self._connects.get(sock)
            return near if known is None else known.target

        return getpeername

    def _make_sendto(self, original: Any) -> Any:
        def sendto(sock: socket.socket, *arguments: Any) -> Any:
            if len(arguments) > 1 and sock.type == socket.SOCK_DGRAM:
                self._found(sock, arguments[-1])  # raises if a route has the host: datagrams would bypass the tunnel
            return original(sock, *arguments)

        return sendto

    # --- functions of the module

    def _make_getaddrinfo(self, original: Any) -> Any:
        def getaddrinfo(
            host: Any,
            port: Any,
            family: int = 0,
            type: int = 0,  # noqa: A002
            proto: int = 0,
            flags: int = 0,
        ) -> list[Any]:
            name = self._name_of(host)
            if not name or flags & socket.AI_NUMERICHOST:
                return list(original(host, port, family, type, proto, flags))
            if type not in (0, socket.SOCK_STREAM) or proto not in (0, socket.IPPROTO_TCP):
                raise socket.gaierror(socket.EAI_SOCKTYPE, "only TCP goes through the tunnel, not UDP to " + name)
            number = original("127.0.0.1", port, socket.AF_INET, socket.SOCK_STREAM)[0][4][1]
            address: Any = (self._placeholders.address(name), number)
            if family == socket.AF_INET6:
                address = ("::ffff:" + address[0], number, 0, 0)
            kind = socket.AF_INET6 if family == socket.AF_INET6 else socket.AF_INET
            canonical = name if flags & socket.AI_CANONNAME else ""
            return [(kind, socket.SOCK_STREAM, socket.IPPROTO_TCP, canonical, address)]

        return getaddrinfo

    def _make_gethostbyname(self, original: Any) -> Any:
        def gethostbyname(host: Any) -> Any:
            name = self._name_of(host)
            return self._placeholders.address(name) if name else original(host)

        return gethostbyname

    def _make_gethostbyname_ex(self, original: Any) -> Any:
        def gethostbyname_ex(host: Any) -> Any:
            name = self._name_of(host)
            return (name, [], [self._placeholders.address(name)]) if name else original(host)

        return gethostbyname_ex

    def _make_gethostbyaddr(self, original: Any) -> Any:
        def gethostbyaddr(host: Any) -> Any:
            name = self._name_of(host)
            return (name, [], [self._placeholders.address(name)]) if name else original(host)

        return gethostbyaddr

    def _make_getnameinfo(self, original: Any) -> Any:
        def getnameinfo(address: Any, flags: int) -> Any:
            name = self._name_of(address[0])
            return (name, str(address[1])) if name else original(address, flags)

        return getnameinfo

    # --- asyncio

    def _make_sock_connect(self, original: Any) -> Any:
        async def sock_connect(loop: Any, sock: socket.socket, address: Any) -> None:
            try:
                await original(loop, sock, address)
            except OSError:
                known = self._connects.get(sock)
                if known is not None and known.error is not None:
                    raise known.error.with_traceback(None) from None  # asyncio's own error has only the number
                raise

        return sock_connect

    def _make_create_connection(self, original: Any) -> Any:
        async def create_connection(
            loop: Any, protocol_factory: Any, host: Any = None, port: Any = None, **options: Any
        ) -> Any:
            found = None if host is None or options.get("sock") is not None else self._route_of(host)
            if found is None:
                return await original(loop, protocol_factory, host, port, **options)
            for name in _OF_ADDRESSES:
                options.pop(name, None)
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            try:
                sock.setblocking(False)
                await loop.sock_connect(sock, (self._placeholders.address(found[1]), port))
                if options.get("ssl") and options.get("server_hostname") is None:
                    options["server_hostname"] = found[1]
                return await original(loop, protocol_factory, sock=sock, **options)
            except OSError:
                sock.close()
                known = self._connects.get(sock)
                if known is not None and known.error is not None:
                    raise known.error.with_traceback(None) from None
                raise
            except BaseException:
                sock.close()
                raise

        return create_connection
