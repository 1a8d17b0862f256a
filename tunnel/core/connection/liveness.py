"""Whether the peer is still there: keepalive, PING and PONG, and the user timeout of a connection (4.15, 4.16)."""

from tunnel.core.constants import BACKOFF_MAX_US, NEVER_US
from tunnel.core.timers import Timer, TimerTable

__all__ = ["Liveness"]

PONGS_MAX = 4  # answers that wait


class Liveness:
    """Both timers are lazy: they check the state only when they fire. The user timeout runs from creation, so no wait
    has to start it; it fires before any wait can expire, then is set again."""

    __slots__ = (
        "_keepalive_us",
        "_ping_due",
        "_pings",
        "_pongs",
        "_timers",
        "heard_us",
        "packet_due",
        "pinging_since_us",
        "user_timeout_us",
    )

    def __init__(self, timers: TimerTable, keepalive_us: int, user_timeout_us: int, now: int) -> None:
        self.user_timeout_us = user_timeout_us
        self.heard_us = now
        self.packet_due = False  # a PING, or a PONG
        self.pinging_since_us = NEVER_US  # the first unanswered PING
        self._ping_due = False
        self._pongs: list[bytes] = []
        self._keepalive_us = keepalive_us
        self._timers = timers
        self._pings = 0
        timers.set(Timer.USER_TIMEOUT, now + user_timeout_us)

    def heard(self, now: int) -> None:
        """A valid packet of the peer came."""
        self.heard_us = now
        if self._pings:
            self._pings = 0
            self.pinging_since_us = NEVER_US
            self._ping_due = False
            self.packet_due = bool(self._pongs)

    def begin(self, now: int) -> None:
        """The connection is open: from now on silence means something."""
        self.heard_us = now
        if self._keepalive_us:
            self._timers.set(Timer.KEEPALIVE, now + self._keepalive_us)

    def handle_keepalive(self, rto_us: int, now: int) -> None:
        """KEEPALIVE fired: send a PING if the connection has been silent; repeat it after RTO, with exponential
        backoff."""
        deadline = self.heard_us + self._keepalive_us
        if deadline > now:
            self._timers.set(Timer.KEEPALIVE, deadline)
            return
        if not self._pings:
            self.pinging_since_us = now
        interval_us = min(rto_us << min(self._pings, 16), BACKOFF_MAX_US)
        self._pings += 1
        self._ping_due = self.packet_due = True
        self._timers.set(Timer.KEEPALIVE, now + interval_us)

    def owe_pong(self, payload: bytes) -> None:
        """A PING came: queue its answer, unless PONGS_MAX answers wait already."""
        if len(self._pongs) < PONGS_MAX:
            self._pongs.append(payload)
            self.packet_due = True

    def take(self) -> tuple[list[bytes], bool]:
        """The payloads of the PONGs that leave now, and whether a PING does; nothing is due afterwards."""
        pongs, ping_due = self._pongs, self._ping_due
        self._pongs = []
        self._ping_due = self.packet_due = False
        return pongs, ping_due

    def limit(self, user_timeout_us: int) -> None:
        """The smaller value of both sides (4.15), from now on and for what waits already."""
        shorter_us = self.user_timeout_us - user_timeout_us
        self.user_timeout_us = user_timeout_us
        if shorter_us > 0:
            self._timers.set(Timer.USER_TIMEOUT, self._timers.get(Timer.USER_TIMEOUT) - shorter_us)

    def expired(self, since_us: int, now: int) -> bool:
        """USER_TIMEOUT fired and the oldest unanswered thing is `since_us` old (NEVER_US: nothing): is it over?"""
        deadline = min(since_us, now) + self.user_timeout_us
        if deadline <= now:
            return True
        self._timers.set(Timer.USER_TIMEOUT, deadline)
        return False
