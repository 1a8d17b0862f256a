"""The liveness of the peer: keepalive, PING and PONG, and the user timeout of a connection (PROTOCOL 4.15, 4.16)."""

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US
from tunnel.core.timers import Timer, TimerTable

__all__ = ["Liveness"]

PONGS_MAX = 4  # largest number of PONGs that wait to leave


class Liveness:
    """Keepalive and user timeout of one connection.

    Both timers are lazy: they check the state only when they fire. The timer of the user timeout is set from the
    creation of the connection on, so no wait has to start it. It never fires later than the first wait can
    expire. It may fire earlier; then it is set again.
    """

    __slots__ = (
        "_keepalive_us",
        "_ping_due",
        "_pings",
        "_pongs",
        "_timers",
        "heard_us",
        "packet_due",
        "pinging_since_us",
        "pings_left",
        "pongs_received",
        "user_timeout_us",
    )

    def __init__(self, timers: TimerTable, keepalive_us: int, user_timeout_us: int, now: int) -> None:
        self.user_timeout_us = user_timeout_us
        self.heard_us = now
        self.packet_due = False  # a PING or a PONG must leave
        self.pinging_since_us = NEVER_US  # time of the first unanswered PING
        self.pings_left = 0  # for the watch of silence (6.11), and the next one
        self.pongs_received = 0
        self._ping_due = False
        self._pongs: list[bytes] = []
        self._keepalive_us = keepalive_us
        self._timers = timers
        self._pings = 0
        timers.set(Timer.USER_TIMEOUT, now + user_timeout_us)

    def on_heard(self, now: int) -> None:
        """Record that a packet of the peer came."""
        self.heard_us = now
        if self._pings:
            self._pings = 0
            self.pinging_since_us = NEVER_US
            self._ping_due = False
            self.packet_due = bool(self._pongs)

    def begin(self, now: int) -> None:
        """Start the keepalive, because the stream begins."""
        self.heard_us = now
        if self._keepalive_us:
            self._timers.set(Timer.KEEPALIVE, now + self._keepalive_us)

    def handle_keepalive(self, rto_us: int, now: int, *, is_over: bool = False) -> None:
        """Handle KEEPALIVE: send a PING if the peer has been silent, or again if it does not answer.

        Without a keepalive, or when everything of the peer has come (`is_over`), only what `ask` has begun is repeated,
        until the peer is heard.
        """
        if not self._pings:
            if is_over or not self._keepalive_us:
                return
            deadline = self.heard_us + self._keepalive_us
            if deadline > now:
                self._timers.set(Timer.KEEPALIVE, deadline)
                return
        self.ask(rto_us, now)

    def ask(self, rto_us: int, now: int) -> None:
        """Send a PING now. Repeat it after RTO, with exponential backoff."""
        if not self._pings:
            self.pinging_since_us = now
        interval_us = min(rto_us << min(self._pings, 16), BACKOFF_MAX_US)
        self._pings += 1
        self._ping_due = self.packet_due = True
        self._timers.set(Timer.KEEPALIVE, now + interval_us)

    def queue_pong(self, payload: bytes) -> None:
        """Queue the answer to a PING, unless PONGS_MAX answers wait already."""
        if len(self._pongs) < PONGS_MAX:
            self._pongs.append(payload)
            self.packet_due = True

    def take(self) -> tuple[list[bytes], bool]:
        """Return the payloads of the PONGs that leave now, and whether a PING leaves. Nothing is due afterwards."""
        pongs, ping_due = self._pongs, self._ping_due
        self.pings_left += ping_due
        self._pongs = []
        self._ping_due = self.packet_due = False
        return pongs, ping_due

    def limit(self, user_timeout_us: int) -> None:
        """Set the user timeout to this value, the smaller one of both sides (4.15), also for waits that run already."""
        shorter_us = self.user_timeout_us - user_timeout_us
        self.user_timeout_us = user_timeout_us
        if shorter_us > 0:
            self._timers.set(Timer.USER_TIMEOUT, self._timers.get(Timer.USER_TIMEOUT) - shorter_us)

    def handle_user_timeout(self, since_us: int, now: int) -> bool:
        """Handle USER_TIMEOUT. Return whether the wait that began at `since_us` has expired; else set the timer again.

        `since_us` is NEVER_US if nothing waits.
        """
        deadline = min(since_us, now) + self.user_timeout_us
        if deadline <= now:
            return True
        self._timers.set(Timer.USER_TIMEOUT, deadline)
        return False
