"""The status of an attachment: listeners for changes, a collector of byte counts, and a snapshot."""

from collections.abc import Callable
from typing import Protocol

import msgspec

from tunnel.core import ConnectionStats
from tunnel.exchange import RoadReport

__all__ = ["AttachmentStats", "ConnectionListener", "ErrorListener", "Listeners", "StatisticsCollector", "WaitListener"]


class ConnectionListener(Protocol):
    """Is notified when the relay does not answer or does not know the attachment, and when it does both again.

    Streams survive in between, until the user timeout. `disconnected` is also called when the relay has refused the
    attachment for good, which ends all streams.
    """

    def disconnected(self, reason: str) -> None: ...

    def reconnected(self) -> None: ...


class ErrorListener(Protocol):
    """Is notified when an HTTP connection to the relay has failed, and with it an exchange or a link."""

    def read_closed(self, text: str) -> None: ...  # reports one such failure; `text` says how the connection failed


class WaitListener(Protocol):
    """Is notified within 2 s of a connection that has no answer, and again at longer and longer intervals.

    `why` is the relay's word for it, such as an exit that has fallen silent; empty if the relay does not say it.
    """

    def unanswered(self, target: str, seconds: float, why: str) -> None: ...


class StatisticsCollector(Protocol):
    """Counts the bytes of batches: first when a batch is filled, then when it is written to a connection.

    Writes include repeats and headers. A batch that was counted as filled but not yet as written has not left
    this process.
    """

    def increment_out_bytes(self, size_bytes: int) -> None: ...

    def register_write(self, size_bytes: int) -> None: ...


class AttachmentStats(msgspec.Struct):
    """A snapshot of an attachment. `connections`, `targets` and `encryption` are by connection id; the last two contain
    only the connections that have a transport. `encryption`: as `Transport.encryption` says it. `pull_interval`: the
    seconds between pulls on which the relay has settled, while no link carries the traffic; with 0, the relay holds
    pulls. `roads`: the state of each road that this attachment may use besides poll."""

    attached: bool
    carrier: str
    trouble: str
    batches_unreceipted: int
    packets_discarded: int
    connections: dict[int, ConnectionStats]
    targets: dict[int, str] = {}
    encryption: dict[int, str] = {}
    pull_interval: float = 0.0
    roads: list[RoadReport] = []


class Listeners:
    """The listeners of an attachment. An exception that one raises is reported and does not disturb the others."""

    def __init__(self, report: Callable[[str, Exception], None]) -> None:
        self.connection: list[ConnectionListener] = []
        self.error: list[ErrorListener] = []
        self.wait: list[WaitListener] = []
        self.statistics: StatisticsCollector | None = None
        self.is_connected = False
        self._was_connected = False
        self._report = report

    def present(self) -> None:
        """Record that the relay knows the attachment; notify the connection listeners, except for the first time."""
        if self.is_connected:
            return
        self.is_connected = True
        if self._was_connected:
            for listener in list(self.connection):
                self._call(listener.reconnected)
        self._was_connected = True

    def absent(self, reason: str) -> None:
        """Record that the relay does not know the attachment or does not answer; notify the connection listeners."""
        if self.is_connected:
            self.is_connected = False
            for listener in list(self.connection):
                self._call(listener.disconnected, reason)

    def failed(self, text: str) -> None:
        """Notify the error listeners that a connection to the relay failed."""
        for listener in list(self.error):
            self._call(listener.read_closed, text)

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        """Notify the wait listeners that a connection has had no answer for this time."""
        for listener in list(self.wait):
            self._call(listener.unanswered, target, seconds, why)

    def _call(self, function: Callable[..., None], *arguments: str | float) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._report("a listener of the attachment raised", error)
