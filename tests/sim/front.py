"""The relay's front without I/O: it counts connections, waiting bytes and processor time by payer, as the web server
does, in virtual time."""

from __future__ import annotations

from dataclasses import dataclass

from tests.sim.clock import SECOND
from tests.sim.violation import Violation
from tunnel.turns.shares import ProcessorShares
from tunnel_servlet.access.connections import Connections, CountedConnection

__all__ = ["Front", "FrontLimits"]

REQUEST_US = 300  # as the web server charges a request
PACKET_US = 5
BYTES_PER_US = 1000


@dataclass(frozen=True, slots=True)
class FrontLimits:
    """The limits outside the switch, as `ServiceLimits` has them."""

    connections_max: int = 10_000
    per_source_max: int = 1024
    per_user_max: int = 2048
    bytes_max: int = 256 << 20
    body_us: int = 30 * SECOND
    """Time for the rest of a body or batch."""
    answer_us: int = 60 * SECOND
    """Time to read an answer."""
    charges: bool = False
    """Users wait while they have spent more than their share of the processor."""


class Front:
    """The accounts of one life of the relay."""

    def __init__(self, limits: FrontLimits) -> None:
        self.limits = limits
        self.connections = Connections(
            limits.connections_max, limits.per_source_max, limits.per_user_max, limits.bytes_max
        )
        self._shares = ProcessorShares()
        self._free_at_us: dict[str, int] = {}  # by user: when the relay reads again
        self._counted: dict[CountedConnection, None] = {}

    def open(self, source: str, user: str, size: int) -> CountedConnection | None:
        """Open a connection on which a body of this size comes. Return None if it is refused."""
        counted = self.connections.admit(source)
        if counted is None:
            return None
        self._counted[counted] = None
        if not counted.charge_to(user) or not counted.hold(size):
            self.leave(counted)
            return None
        return counted

    def leave(self, counted: CountedConnection) -> None:
        """Close a connection; the second time has no effect."""
        counted.leave()
        self._counted.pop(counted, None)

    def wait_us(self, user: str, now_us: int) -> int:
        """Return for how long the relay reads nothing from this user."""
        return max(0, self._free_at_us.get(user, 0) - now_us)

    def charge(self, user: str, packets: int, size: int, now_us: int) -> None:
        """Charge the processor time of a body."""
        if self.limits.charges:
            cost_us = REQUEST_US + packets * PACKET_US + size // BYTES_PER_US
            self._free_at_us[user] = now_us + self._shares.charge(user, cost_us, now_us)

    def check(self) -> None:
        """Raise Violation unless the sums equal a recount, and every payer is within the limits."""
        found, limits = self.connections, self.limits
        bytes_of: dict[str, int] = {}
        count_of: dict[str, int] = {}
        for counted in self._counted:
            bytes_of[counted.payer] = bytes_of.get(counted.payer, 0) + counted.held_bytes
            count_of[counted.payer] = count_of.get(counted.payer, 0) + 1
        if (found.total, found.held_bytes) != (len(self._counted), sum(bytes_of.values())):
            raise Violation(f"front: {found.total} connections with {found.held_bytes} bytes are counted")
        if found.total > limits.connections_max or found.held_bytes > limits.bytes_max:
            raise Violation(f"front: {found.total} connections hold {found.held_bytes} bytes")
        for payer, count in count_of.items():
            if count > limits.per_user_max or bytes_of[payer] > limits.bytes_max // 2:
                raise Violation(f"front: {payer} has {count} connections that hold {bytes_of[payer]} bytes")

    def check_empty(self) -> None:
        """Raise Violation unless every account is exactly zero."""
        found = self.connections
        if self._counted or found.total or found.unauthenticated or found.held_bytes or found.payers:
            raise Violation(f"front: {found.total} connections, {found.held_bytes} bytes and {found.payers} are left")
