"""The silence of acceptors at a relay that answers (PROTOCOL 6.11): they may have lost it, and sit at another one.

The initiator finds it out by itself: the relay has a PING of its own, and no answer comes. No packet asks for a move,
so that no one else can make a connection move.
"""

from collections.abc import Collection

from tunnel.core.connection.connection import Connection
from tunnel.core.connection.state import State
from tunnel.core.constants import NEVER_US, SILENCE_US, WATCH_IDLE_US, WATCH_US

__all__ = ["SilenceWatch"]


class SilenceWatch:
    """Looks after the acceptors of the connections that an endpoint has initiated, and that may move.

    This includes connections that have ended here, until the acceptor has released the route: perhaps the acceptor
    still waits for the acknowledgement of its CLOSE, and would report a loss after the user timeout.

    It asks each acceptor by one PING for all its connections: a second after the last packet, and while nothing else
    comes every 15 s. `due_us` is the time for the next look. An endpoint that only accepts never looks.
    """

    __slots__ = ("_acceptors", "_is_needed", "_is_waiting", "_looked_us", "due_us")

    def __init__(self) -> None:
        self.due_us = NEVER_US
        self._acceptors: dict[bytes, _Acceptor] = {}
        self._is_needed = False  # there may be connections that this endpoint has initiated
        self._is_waiting = False  # the relay has not receipted each PING
        self._looked_us = 0

    def begin(self, now: int) -> None:
        """Note that there is a connection that this endpoint has initiated."""
        self._is_needed = True
        self.look_soon(now)

    def look_soon(self, now: int) -> None:
        """Look within a second, because something has come or has changed."""
        if self._is_needed:
            self.due_us = min(self.due_us, now + WATCH_US)

    def look_now(self, now: int) -> None:
        """Look at once, because something has no answer; but not so often that many connections cost much."""
        if self._is_needed:
            self.due_us = min(self.due_us, max(now, self._looked_us + WATCH_US // 4))

    def look_by(self, due_us: int) -> None:
        """Look at this time at the latest."""
        self.due_us = min(self.due_us, due_us)

    def stop(self) -> None:
        """Look no more, and forget what was asked: the relay does not answer, or drains."""
        self.due_us = NEVER_US
        self._acceptors.clear()
        self._is_waiting = False

    def look(self, connections: Collection[Connection], now: int) -> tuple[list[Connection], ...]:
        """Return the connections whose acceptor is silent, and those on which a PING is to leave."""
        self._looked_us = now
        self._is_needed = False
        found: dict[bytes, list[Connection]] = {}
        for connection in connections:
            identity = connection.identity
            if identity.initiator:
                self._is_needed = True
                # An acceptor that has not closed awaits nothing when this end is over.
                is_over = connection.state is State.DRAIN and not connection.receiver.window.closed
                if identity.further_ids and not connection.closing.is_released and not is_over:
                    found.setdefault(identity.acceptor_endpoint or b"", []).append(connection)
        self._acceptors = {number: self._acceptors.get(number) or _Acceptor() for number in found}
        silent: list[Connection] = []
        asked: list[Connection] = []
        self.due_us = now + WATCH_IDLE_US if self._is_needed else NEVER_US
        for number, group in found.items():
            acceptor = self._acceptors[number]
            silent += acceptor.silent(group, now)
            if (one := acceptor.ask(group, now)) is not None:
                asked.append(one)
                self._is_waiting = True
            self.due_us = min(self.due_us, acceptor.due_us)
        return silent, asked

    def on_batch(self, token: int) -> None:
        """Note that a batch leaves, perhaps with a PING that was asked for, or with its repeat."""
        if self._is_waiting:
            for acceptor in self._acceptors.values():
                acceptor.on_batch(token)

    def on_receipt(self, token: int, now: int, *, ok: bool) -> None:
        """Note that the relay has a batch, or that it was given up. Silence counts from the receipt of the PING on, so
        that a slow way to the relay is not taken for it."""
        if not self._is_waiting:
            return
        self._is_waiting = False
        for acceptor in self._acceptors.values():
            acceptor.on_receipt(token, now, ok=ok)
            self._is_waiting = self._is_waiting or acceptor.is_waiting
            self.due_us = min(self.due_us, acceptor.due_us)


class _Acceptor:
    """What is known of one acceptor: whether it was asked, and when it has answered."""

    __slots__ = (
        "_answered_us",
        "_asked",
        "_asked_us",
        "_bound_us",
        "_pings_left",
        "_receipted_us",
        "_spoken",
        "_tokens",
        "due_us",
    )

    def __init__(self) -> None:
        self.due_us = NEVER_US  # when to look again
        self._asked: Connection | None = None  # the connection on which it was asked, until it answers
        self._asked_us = NEVER_US
        self._tokens: list[int] = []  # of the batches with the PING, and with its repeats
        self._pings_left = 0  # how many PINGs had left on that connection at the latest batch
        self._spoken = 0  # how many packets other than PONG had come on it when it was asked
        self._receipted_us = NEVER_US  # when the relay has got the PING
        self._answered_us = -1  # when it has answered a PING, and sent nothing else since the question
        self._bound_us = SILENCE_US  # how long its answer may take

    @property
    def is_waiting(self) -> bool:
        """Whether the relay has not receipted the PING."""
        return self._asked is not None and self._receipted_us == NEVER_US

    def silent(self, group: list[Connection], now: int) -> list[Connection]:
        """Return those of its connections on which it does not answer: neither the PING nor, after the loss of a route,
        a resume."""
        newest = max(group, key=_heard_us)
        heard_us = newest.liveness.heard_us
        self._bound_us = max(SILENCE_US, 2 * (newest.sender.rtt.base_rto_us() + newest.owner.carrier.round_trip_us))
        if self._asked is not None and heard_us >= self._asked_us:
            if _spoken(self._asked) == self._spoken and all(
                one is self._asked or one.liveness.heard_us < self._asked_us for one in group
            ):
                self._answered_us = heard_us
            self._asked = None
        elif self._asked is not None and (self._asked not in group or _is_suspended(self._asked)):
            self._asked = None  # nothing repeats the PING any more
        if self._asked is not None and self._receipted_us + self._bound_us <= now:
            return group
        return [one for one in group if one.handshake.suspended_since_us <= now - self._bound_us]

    def ask(self, group: list[Connection], now: int) -> Connection | None:
        """Return the connection on which to ask the acceptor now, if it is time to, and set the time for the next
        look."""
        self.due_us = now + SILENCE_US
        if self._asked is not None:
            if now < self._receipted_us + self._bound_us:
                self.due_us = self._receipted_us + self._bound_us
            return None
        bound = [one for one in group if not _is_suspended(one)]
        if not bound:
            return None
        newest = max(bound, key=_heard_us)
        is_idle = newest.liveness.heard_us == self._answered_us and not any(one.sender.rtt.backoff for one in bound)
        due_us = newest.liveness.heard_us + max(WATCH_IDLE_US if is_idle else WATCH_US, self._bound_us // 2)
        if due_us > now:
            self.due_us = due_us if len(bound) == len(group) else min(due_us, self.due_us)
            return None
        self._asked, self._asked_us, self._receipted_us = newest, now, NEVER_US
        self._pings_left, self._spoken = newest.liveness.pings_left, _spoken(newest)
        self._tokens.clear()
        self.due_us = NEVER_US
        return newest

    def on_batch(self, token: int) -> None:
        """Note that a batch leaves. Only a receipt of one with the PING counts: on several lanes or links, a later
        batch may be at the relay long before it."""
        if self._asked is not None and self._asked.liveness.pings_left != self._pings_left:
            self._pings_left = self._asked.liveness.pings_left
            self._tokens.append(token)

    def on_receipt(self, token: int, now: int, *, ok: bool) -> None:
        """Note that a batch was receipted or given up; with the PING in it, the time for the answer begins."""
        if not self.is_waiting or token not in self._tokens:
            return
        if ok:
            self._receipted_us = now
            self.due_us = now + self._bound_us
            return
        self._tokens.remove(token)
        if not self._tokens:  # the PING may be lost
            self._asked, self.due_us = None, now


def _heard_us(connection: Connection) -> int:
    return connection.liveness.heard_us


def _spoken(connection: Connection) -> int:
    """Return how many packets have come, without answers to a PING."""
    return connection.stats.packets_received - connection.liveness.pongs_received


def _is_suspended(connection: Connection) -> bool:
    return connection.handshake.suspended_since_us != NEVER_US
