"""The status of an attachment: listeners for changes, a collector of byte counts, and a snapshot."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import msgspec

from tunnel.core import ConnectionStats
from tunnel.exchange import RoadReport

__all__ = [
    "AttachmentStats",
    "ConnectionListener",
    "ErrorListener",
    "Listeners",
    "MoveState",
    "RelayState",
    "StatisticsCollector",
    "WaitListener",
]


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


class RelayState(msgspec.Struct):
    """One of the relays of an endpoint. `is_used`: new connections go there first. `is_refused`: this relay has refused
    the endpoint for good. `services_refused`: why it does not take these services."""

    url: str
    attached: bool
    is_used: bool
    carrier: str
    trouble: str
    connections: int
    is_refused: bool = False
    services_refused: dict[str, str] = {}


class MoveState(msgspec.Struct):
    """A connection that has moved to another relay: when (Unix time), from where, to where, and why."""

    at_s: float
    connection: int
    target: str
    before: str
    now: str
    why: str


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
    relays: list[RelayState] = []  # at several relays: each of them that this endpoint has asked so far
    relay_of: dict[int, str] = {}  # at several relays: the relay of each connection
    moves: list[MoveState] = []  # at several relays: the latest moves of connections, the oldest first
    moves_count: int = 0  # all moves
    stays: dict[int, str] = {}  # at several relays: why connections stay at one that does not serve them


class Listeners:
    """The listeners of an attachment. An exception that one raises is reported and does not disturb the others."""

    def __init__(
        self,
        report: Callable[[str, Exception], None],
        outer: Listeners | None = None,
        on_change: Callable[[str], None] = lambda reason: None,
    ) -> None:
        """`outer`: the listeners of an attachment to several relays, which hear all but the changes of this one. Those
        go to `on_change`: the reason for which the relay is lost, or ""."""
        self.connection: list[ConnectionListener] = []
        self.error: list[ErrorListener] = []
        self.wait: list[WaitListener] = []
        self.statistics: StatisticsCollector | None = None
        self.is_connected = False
        self.outages = 0  # times that the relay was lost
        self.failures = 0  # connections to the relay that failed
        self._was_connected = False
        self._report = report
        self._outer = outer
        self._on_change = on_change

    def present(self) -> None:
        """Record that the relay knows the attachment; notify the connection listeners, except for the first time."""
        if self.is_connected:
            return
        self.is_connected = True
        if self._was_connected:
            for listener in list(self.connection):
                self._call(listener.reconnected)
        self._was_connected = True
        self._on_change("")

    def absent(self, reason: str, *, is_final: bool = False) -> None:
        """Record that the relay does not know the attachment or does not answer; notify the connection listeners.
        `is_final`: it has ended the attachment for good, which is a change even if it was absent before."""
        if self.is_connected:
            self.is_connected = False
            self.outages += 1
            for listener in list(self.connection):
                self._call(listener.disconnected, reason)
            self._on_change(reason or "no answer")
        elif is_final:
            self._on_change(reason)

    def on_failed(self, text: str) -> None:
        """Notify the error listeners that a connection to the relay failed."""
        self.failures += 1
        for listener in list(self.error):
            self._call(listener.read_closed, text)
        if self._outer is not None:
            self._outer.on_failed(text)

    def on_unanswered(self, target: str, seconds: float, why: str) -> None:
        """Notify the wait listeners that a connection has had no answer for this time."""
        for listener in list(self.wait):
            self._call(listener.unanswered, target, seconds, why)
        if self._outer is not None:
            self._outer.on_unanswered(target, seconds, why)

    def _call(self, function: Callable[..., None], *arguments: str | float) -> None:
        try:
            function(*arguments)
        except Exception as error:
            self._report("a listener of the attachment raised", error)
