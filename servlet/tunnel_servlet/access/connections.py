"""The limits of connections, and of the bytes held in memory for them, for each source address and each user."""

from collections.abc import Callable

from tunnel_servlet.access.sources import SourceGroup, networks_of

__all__ = ["Connections", "CountedConnection"]

_TLS_BYTES = 64 * 1024  # that OpenSSL and the event loop hold for a connection in or after its handshake
_SHARES = (4, 2, 1)  # times the limit of a source: for the IPv6 networks of `sources.PREFIXES`


class Connections:
    """Counts open connections, and the bytes of requests and answers that the relay holds in memory for them.

    The payer of a connection is its source address until a valid token has come, and then the user of the token.

    Connections on which no valid token has come yet take at most half of all, and one source takes at most half of
    those. Those of them with TLS take at most half of `bytes_max`, at `_TLS_BYTES` each. When one of these limits is
    reached, the oldest connection of the source that holds most makes room for a new one: an attacker who holds all of
    them displaces itself. A user may have more connections only while at least as many stay free for others as the user
    has. A payer is charged for more bytes only if it then holds no more than remain free. So one payer alone can hold
    half of `bytes_max`, and two that hold the same a third each.
    """

    def __init__(self, total_max: int, per_source_max: int, per_user_max: int, bytes_max: int) -> None:
        self.total = 0
        self.held_bytes = 0
        self.opened = self.refused = self.evicted = 0  # since the start; the second ones found no room
        self._bytes_max = bytes_max
        self._bytes_of: dict[str, int] = {}
        self.unauthenticated = 0  # of the total; no valid token has come on them yet
        self._total_max = total_max
        self._unauthenticated_max = max(1, total_max // 2)
        self._per_source_max = min(per_source_max, max(1, self._unauthenticated_max // 2))
        self._per_user_max = per_user_max
        self._strangers: SourceGroup[CountedConnection] = SourceGroup()
        self._tls_strangers: SourceGroup[CountedConnection] = SourceGroup()  # those of them with TLS
        self._tls_strangers_max = max(1, bytes_max // 2 // _TLS_BYTES)
        self._of_source: dict[str, int] = {}
        self._of_user: dict[str, int] = {}

    @property
    def payers(self) -> list[str]:
        """The sources and users that have connections, and the payers (`CountedConnection.payer`) that hold bytes."""
        return sorted({*self._of_source, *self._of_user, *self._bytes_of})

    def admit(self, source: str, *, has_tls: bool = False) -> "CountedConnection | None":
        """Count a new connection from this source, after the eviction of others if necessary (`may_evict`).

        Return None if there is no room for it.
        """
        if not self._makes_room(networks_of(source), has_tls=has_tls):
            self.refused += 1
            return None
        counted = CountedConnection(self, source, has_tls=has_tls)
        self.total += 1
        self.opened += 1
        self._add_stranger(counted)
        return counted

    def _makes_room(self, networks: list[str], *, has_tls: bool) -> bool:
        """Evict what must go before another connection comes from these networks. Return False if that is not
        possible."""
        while (crowd := self._crowd(networks, has_tls=has_tls)) is not None:
            oldest = crowd.oldest_of_largest()
            if oldest is None or not oldest.evict():
                return False
            self.evicted += 1
        return True

    def _add_stranger(self, counted: "CountedConnection") -> None:
        networks = networks_of(counted.source)
        self.unauthenticated += 1
        _add(self._of_source, counted.source, 1)
        _add(self._bytes_of, counted.payer, counted.held_bytes)
        self._strangers.add(networks, counted)
        if counted.has_tls:
            self._tls_strangers.add(networks, counted)

    def _crowd(self, networks: list[str], *, has_tls: bool) -> "SourceGroup[CountedConnection] | None":
        """Return the connections of which one must go before another comes from these networks; None if none must."""
        if self.total >= self._total_max or self.unauthenticated >= self._unauthenticated_max:
            return self._strangers
        if has_tls and self._tls_strangers.count >= self._tls_strangers_max:
            return self._tls_strangers
        most = max(1, self._unauthenticated_max // 2)
        group: SourceGroup[CountedConnection] | None = self._strangers
        for network, share in zip(networks, _SHARES[-len(networks) :], strict=True):
            group = None if group is None else group.part(network)
            if group is not None and group.count >= min(share * self._per_source_max, most):
                return group
        return None

    def move_source(self, counted: "CountedConnection", source: str) -> bool:
        """Count a connection on which no valid token has come for another source: the client of a trusted proxy.

        Return False if there is no room for it; the caller must then end the connection.
        """
        networks = networks_of(source)
        self._uncharge(counted)
        self.total -= 1
        is_admitted = self._makes_room(networks, has_tls=counted.has_tls)
        if is_admitted:
            counted.source = source
        else:
            self.refused += 1
        self.total += 1
        self._add_stranger(counted)
        return is_admitted

    def move(self, counted: "CountedConnection", user: str) -> bool:
        """Charge the connection to this user. Return False, and change nothing, if the user has too many."""
        if counted.user == user:
            return True
        held = self._of_user.get(user, 0)
        free = self._total_max - (self.total - self.unauthenticated)  # those without a token can be evicted
        if held >= min(self._per_user_max, max(1, free)):
            return False
        self._uncharge(counted)
        _add(self._of_user, user, 1)
        _add(self._bytes_of, user, counted.held_bytes)
        return True

    def hold(self, counted: "CountedConnection", count: int) -> bool:
        """Charge bytes to the payer of a connection. Return False, and change nothing, if that would be too many."""
        if self._bytes_of.get(counted.payer, 0) + count > self._bytes_max - self.held_bytes - count:
            return False
        self._charge_bytes(counted, count)
        return True

    def free(self, counted: "CountedConnection", count: int) -> None:
        """Give charged bytes back."""
        self._charge_bytes(counted, -count)

    def _charge_bytes(self, counted: "CountedConnection", count: int) -> None:
        self.held_bytes += count
        counted.held_bytes += count
        _add(self._bytes_of, counted.payer, count)

    def leave(self, counted: "CountedConnection") -> None:
        """Forget a connection that has ended."""
        self.held_bytes -= counted.held_bytes
        self._uncharge(counted)
        self.total -= 1

    def _uncharge(self, counted: "CountedConnection") -> None:
        _add(self._bytes_of, counted.payer, -counted.held_bytes)
        if counted.user:
            _add(self._of_user, counted.user, -1)
        else:
            self.unauthenticated -= 1
            _add(self._of_source, counted.source, -1)
            networks = networks_of(counted.source)
            self._strangers.remove(networks, counted)
            if counted.has_tls:
                self._tls_strangers.remove(networks, counted)


class CountedConnection:
    """One open connection, as the limits count it. `leave` ends this: then the connection is charged no more.

    `user` is empty until a valid token has come on the connection.
    """

    __slots__ = ("_connections", "_end", "_has_left", "has_tls", "held_bytes", "on_move", "source", "spent_us", "user")

    def __init__(self, connections: Connections, source: str, *, has_tls: bool) -> None:
        self.source = source
        self.has_tls = has_tls
        self.user = ""
        self.held_bytes = 0
        self.spent_us = 0.0  # processor time that a payer was charged before the connection had a protocol
        self.on_move: Callable[[], None] | None = None  # called when a user has begun to pay
        self._connections = connections
        self._has_left = False
        self._end: Callable[[], None] | None = None

    @property
    def has_left(self) -> bool:
        """Whether the connection has ended, or was evicted."""
        return self._has_left

    def may_evict(self, end: Callable[[], None]) -> None:
        """Let the connection be evicted while no valid token has come on it; `end` ends it. A new call replaces this.

        A connection for which this was never called is not evicted: then new ones are refused.
        """
        self._end = end

    def evict(self) -> bool:
        """Make room for another connection. Return False if this one must stay."""
        if self._end is None:
            return False
        self.leave()
        self._end()
        return True

    @property
    def payer(self) -> str:
        """The name under which the connection's bytes count."""
        return self.user or f"@{self.source}"  # no user's name begins with @

    def hold(self, count: int) -> bool:
        """Charge bytes that wait on this connection. Return False if its payer has too many."""
        return self._has_left or self._connections.hold(self, count)

    def free(self, count: int) -> None:
        """Give back bytes that `hold` charged."""
        if not self._has_left:
            self._connections.free(self, count)

    def charge_to(self, user: str) -> bool:
        """Charge the connection to this user from now on. Return False if the user has too many connections."""
        if self._has_left:
            return True
        if not self._connections.move(self, user):
            return False
        is_moved, self.user = user != self.user, user
        if is_moved:
            self._end = None  # only connections without a token are evicted
        if is_moved and self.on_move is not None:
            self.on_move()
        return True

    def comes_from(self, source: str) -> bool:
        """Count the connection for this source from now on. Return False if the caller must end it."""
        return not self._has_left and self._connections.move_source(self, source)

    def leave(self) -> None:
        """Note that the connection has ended. Has no effect the second time."""
        if not self._has_left:
            self._has_left = True
            self._connections.leave(self)


def _add(counts: dict[str, int], key: str, number: int) -> None:
    counts[key] = counts.get(key, 0) + number
    if not counts[key]:
        del counts[key]
