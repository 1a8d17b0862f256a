"""The other end of a borrowed tunnel: `tunnel run` has it, and a program that it runs asks for connections.

It needs nothing but the standard library, and Python 3.8: `site/sitecustomize.py` loads it by its path.

On a Unix socket, lines of JSON. The program: {"open": [host, port], "timeout": seconds or null}. `tunnel run`: {"port":
a loopback port}. The program connects its socket there: {"name": that socket's name, "skip": bytes to take away}.
`tunnel run`: {} when the target has accepted, or {"kind", "errno", "text"} of the error.
"""

from __future__ import annotations

import errno
import json
import os
import socket
from typing import Any

__all__ = ["Borrowed", "errno_of"]

_KINDS = {"gaierror": socket.gaierror, "timeout": socket.timeout}


class Borrowed:
    """Connects sockets through the tunnel of another process. `pair` is the module `pair`."""

    def __init__(self, path: str, pair: Any) -> None:
        self._path = path
        self._pair = pair

    def hello(self) -> None:
        """Say that this process would use the tunnel."""
        with self._ask({"hello": os.getpid()}):
            pass

    def connect(self, sock: socket.socket, host: str, port: int, timeout: float | None) -> None:
        """Connect this socket and wait for it."""
        error = self._begin(sock, host, port, timeout).exception()
        if error is not None:
            self._pair.renew(sock)
            raise error
        self._pair.unpark(sock)

    def connect_soon(self, sock: socket.socket, host: str, port: int) -> _Pending:
        """Connect it without waiting."""
        return self._begin(sock, host, port, None)

    def _begin(self, sock: socket.socket, host: str, port: int, timeout: float | None) -> _Pending:
        lines = self._ask({"open": [host, port], "timeout": timeout})
        try:
            near = lines.read()["port"]
            self._pair.park(sock)
            name = self._pair.connect_near(sock, near)
            lines.write({"name": name, "skip": self._pair.fill(sock)})
        except BaseException:
            lines.close()
            raise
        return _Pending(lines)

    def _ask(self, question: dict[str, Any]) -> _Lines:
        lines = _Lines(self._path)
        lines.write(question)
        return lines


class _Lines:
    """JSON in lines, over a Unix socket of this process."""

    def __init__(self, path: str) -> None:
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(None)
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
        return OSError(errno.ENETUNREACH, "the `tunnel run` of this program has ended, and its tunnel with it")


class _Pending:
    """The outcome of a connect."""

    def __init__(self, lines: _Lines) -> None:
        self._lines = lines

    def exception(self) -> OSError | None:
        """Wait for it, once."""
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
    """The number for callers that know numbers alone."""
    return error.errno or errno.EAGAIN
