"""Who wants to know how the attachment fares: listeners, and a collector of what was buffered and written."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tunnel.core import ConnectionStats

__all__ = ["AttachmentStats", "ConnectionListener", "ErrorListener", "Listeners", "StatisticsCollector"]


class ConnectionListener(Protocol):
    """Told when the relay cannot be reached any more, and when it can again. Streams live on meanwhile."""

    def disconnected(self, reason: str) -> None: ...

    def reconnected(self) -> None: ...


class ErrorListener(Protocol):
    """Told of each connection to the relay that failed beneath the tunnel; `text` says how."""

    def read_closed(self, text: str) -> None: ...


class StatisticsCollector(Protocol):
    """Counts batches: bytes that were moved from streams into a batch, then the write that carried them (and perhaps
    what repeats and headers add). What was incremented and not registered has not left the process."""

    def increment_out_bytes(self, size_bytes: int) -> None: ...

    def register_write(self, size_bytes: int) -> None: ...


class AttachmentStats(msgspec.Struct):
    """How an attachment is at one moment; `connections` by id, and of those that are in use, whither they lead."""

    attached: bool
    carrier: str
    trouble: str
    batches_unreceipted: int
    packets_discarded: int
    connections: dict[int, ConnectionStats]
    targets: dict[int, str] = {}


class Listeners:
    """Calls them; one that raises is told to the loop and does not disturb the others."""

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self.connection: list[ConnectionListener] = []
        self.error: list[ErrorListener] = []
        self.statistics: StatisticsCollector | None = None
        self.is_connected = False
        self._was_connected = False
        self._report = report

    def present(self) -> None:
        """The relay knows us."""
        if self.is_connected:
            return
        self.is_connected = True
        if self._was_connected:
            for listener in list(self.connection):
                self._call(listener.reconnected)
        self._was_connected = True

    def absent(self, reason: str) -> None:
        """The relay forgot us, or does not answer."""
        if self.is_connected:
            self.is_connected = False
            for listener in list(self.connection):
                self._call(listener.disconnected, reason)

    def failed(self, text: str) -> None:
        """A connection to the relay failed."""
        for listener in list(self.error):
            self._call(listener.read_closed, text)

    def _call(self, function: Callable[..., None], *arguments: str) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._report("a listener of the attachment raised", error)
