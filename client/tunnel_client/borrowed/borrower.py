"""The borrower of a tunnel: a program under `tunnel run` asks that command for connections.

This file needs only the standard library and Python 3.8, because `site/sitecustomize.py` loads it by its path.

The two talk over a Unix socket in lines of JSON. Each request below has a connection of its own. A program that
will use the tunnel sends {"hello": its process id}; one that has loaded a client in C sends {"loaded": the client's
name, "process": its id}. Both are answered with {}, so that `tunnel run` knows it even if the program ends at once. To
open a connection:

1. The program sends {"open": [host, port], "timeout": seconds or null}.
2. `tunnel run` answers {"port": a loopback port}.
3. The program connects its socket to that port and sends {"name": the socket's own address, as in
   "127.0.0.1:40000", "skip": the number of bytes to discard}.
4. `tunnel run` answers {} when the target has accepted, or {"kind", "errno", "text"} of the error.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import suppress
from typing import Any

__all__ = ["Borrowed", "errno_of"]

GRACE_S = 1.0  # `tunnel run` counts as stuck if it is still silent this long after the timeout
_KINDS = {"gaierror": socket.gaierror, "timeout": socket.timeout}


class Borrowed:
    """Connects sockets through the tunnel of another process. `pair` is the module of that name."""

    def __init__(self, path: str, pair: Any) -> None:
        self._path = path
        self._pair = pair

    def hello(self) -> None:
        """Announce that this process will use the tunnel."""
        self._tell({"hello": os.getpid()})

    def has_loaded(self, client: str) -> None:
        """Tell that this process has loaded a client whose connections do not use the tunnel."""
        with suppress(OSError):
            self._tell({"loaded": client, "process": os.getpid()})

    def _tell(self, news: dict[str, Any]) -> None:
        with self._ask(news, GRACE_S) as lines, suppress(_Stuck):
            lines.read()

    def connect(self, sock: socket.socket, host: str, port: int, timeout: float | None) -> None:
        """Connect this socket, and wait until it is connected."""
        try:
            error = self._begin(sock, host, port, timeout).exception()
            if error is not None:
                raise error
        except BaseException as error:
            self._pair.renew(sock)
            if isinstance(error, _Stuck):
                text = "%s:%d: no answer within %s s: the `tunnel run` of this program is stuck; start both again"
                raise socket.timeout(text % (host, port, timeout)) from None  # noqa: UP041 - Python 3.8
            raise
        self._pair.unmute(sock)

    def connect_soon(self, sock: socket.socket, host: str, port: int) -> _Pending:
        """Start to connect this socket, without waiting for the target."""
        return self._begin(sock, host, port, None)

    def _begin(self, sock: socket.socket, host: str, port: int, timeout: float | None) -> _Pending:
        lines = self._ask({"open": [host, port], "timeout": timeout}, timeout)
        try:
            near = lines.read()["port"]
            self._pair.mute(sock)
            name = self._pair.connect_near(sock, near)
            lines.write({"name": name, "skip": self._pair.fill(sock)})
        except BaseException:
            lines.close()
            raise
        return _Pending(lines)

    def _ask(self, question: dict[str, Any], timeout: float | None = None) -> _Lines:
        lines = _Lines(self._path, timeout)
        lines.write(question)
        return lines


class _Stuck(OSError):
    """`tunnel run` does not answer in time: it does not even report that the timeout has passed."""


class _Lines:
    """Sends and receives lines of JSON over a connection to a Unix socket."""

    def __init__(self, path: str, timeout: float | None) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(None if timeout is None else timeout + GRACE_S)
        try:
            self._sock.connect(path)
        except OSError as error:
            self._sock.close()
            raise self._over() from error
        self._file = self._sock.makefile("rb")

    def __enter__(self) -> _Lines:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def write(self, value: dict[str, Any]) -> None:
        try:
            self._sock.sendall(json.dumps(value).encode() + b"\n")
        except OSError as error:
            raise self._over() from error

    def read(self) -> dict[str, Any]:
        try:
            line = self._file.readline()
        except socket.timeout as error:  # noqa: UP041 - Python 3.8
            raise _Stuck from error
        except OSError as error:
            raise self._over() from error
        if not line:
            raise self._over()
        return dict(json.loads(line))

    def close(self) -> None:
        self._file.close()
        self._sock.close()

    @staticmethod
    def _over() -> OSError:
        return OSError(errno.ENETUNREACH, "the `tunnel run` of this program has ended: start both again")


class _Pending:
    """The future outcome of a connect."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def exception(self) -> OSError | None:
        """Wait for the outcome; return the error, or None for success. Call it only once."""
        try:
            with self._lines as lines:
                answer = lines.read()
        except OSError as error:
            return error
        if not answer:
            return None
        kind = _KINDS.get(answer["kind"], OSError)
        return kind(answer["errno"], answer["text"]) if answer["errno"] else kind(answer["text"])


def errno_of(error: OSError) -> int:
    """Return the number of the error, or EAGAIN if it has none, for callers that know only numbers."""
    return error.errno or errno.EAGAIN
