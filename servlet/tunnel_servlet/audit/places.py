"""Places for the lines of the audit, other than files: syslog, and standard output."""

import logging
from logging.handlers import SysLogHandler
from typing import NamedTuple, TextIO

from tunnel.logs.writer import write_to

__all__ = ["Place", "Removed", "StreamPlace", "SyslogPlace"]


class Removed(NamedTuple):
    """An older file that was removed, because there were too many, and the times of its first and last event."""

    name: str
    first: str
    last: str


class Place:
    """Where the lines go. A thread calls `write`, which may block and raise OSError."""

    def __init__(self) -> None:
        self.removed: list[Removed] = []  # the caller reports them, and empties the list

    def write(self, data: bytes) -> None:
        """Write whole lines. After an error, the next call has the same lines, and writes those that are missing."""
        raise NotImplementedError

    def give_up(self) -> None:
        """Forget the lines of the last `write`, which has failed."""

    def close(self) -> None:
        """Give back what the place holds."""


class StreamPlace(Place):
    """A stream, such as standard output."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._write = write_to(stream)

    def write(self, data: bytes) -> None:
        self._write(data)


class _Handler(SysLogHandler):
    def handleError(self, record: logging.LogRecord) -> None:
        raise  # noqa: PLE0704  # logging calls this while it handles the error, and would only print it


class SyslogPlace(Place):
    """The system's log, at a socket of this machine (`/dev/log`) or by UDP at `HOST:PORT`: one message for each line,
    of the facility authpriv. UDP loses messages without anybody's knowledge."""

    def __init__(self, address: str) -> None:
        super().__init__()
        host, _, port = address.rpartition(":")
        where = address if address.startswith("/") else (host.removeprefix("[").removesuffix("]"), int(port))
        self._handler = _Handler(where, facility=SysLogHandler.LOG_AUTHPRIV)
        self._handler.ident = "tunnel-relay: "
        self._sent = 0  # lines of a `write` that has failed

    def write(self, data: bytes) -> None:
        for line in data.decode().splitlines()[self._sent :]:
            self._handler.emit(logging.LogRecord("audit", logging.INFO, "", 0, line, None, None))
            self._sent += 1
        self._sent = 0

    def give_up(self) -> None:
        self._sent = 0

    def close(self) -> None:
        self._handler.close()
