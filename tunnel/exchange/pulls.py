"""When to pull, how many at once and with which hold (7.4). Three ways, chosen by what the path and the config allow:

holding   one pull is always out; the relay keeps it until something waits. Two while packets flow, if lanes allow.
polling   where a response cannot wait (one lane, or no hold): at once after packets, else ever less often.
interval  one pull each so often, without a hold.

In each way, while answers come full or say that more waits, all lanes but one pull at once and without a hold: so short
an exchange has a short deadline, and a push still finds a lane.
"""

import enum

import msgspec

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["NEVER_US", "PullMode", "PullPolicy", "Pulled"]

NEVER_US = 1 << 62
_BACKOFF_US_MIN = 50 * MILLISECOND_US
_BACKOFF_US_MAX = SECOND_US


class PullMode(enum.Enum):
    """The three ways."""

    HOLDING = enum.auto()
    POLLING = enum.auto()
    INTERVAL = enum.auto()


class Pulled(msgspec.Struct):
    """An answer, as far as pulling is concerned."""

    pull: bool  # else it answered a push
    empty: bool
    more: bool  # the answer was full or said that more waits
    hold_us: int  # that was asked for
    took_us: int
    repeated: bool


class PullPolicy:
    """`hold_us_short` is the first hold after packets came: a pull that is lost then costs a stream no more than that.
    Holds double while nothing comes."""

    def __init__(self, hold_us_short: int) -> None:
        self.mode = PullMode.HOLDING
        self.hungry = False
        self.interval_us = 0
        self._active = False  # the last pull brought packets
        self._hold_us_short = hold_us_short
        self._hold_us = hold_us_short
        self._next_us = 0  # not earlier, unless hungry
        self._backoff_us = _BACKOFF_US_MIN

    def configure(self, interval_us: int, *, can_hold: bool) -> None:
        """What the relay and the path allow; starts anew."""
        self.mode = PullMode.INTERVAL if interval_us else PullMode.HOLDING if can_hold else PullMode.POLLING
        self.interval_us = interval_us
        self.hungry = self._active = False
        self._hold_us = self._hold_us_short
        self._next_us = 0
        self._backoff_us = _BACKOFF_US_MIN

    def due_us(self, outstanding: int, lanes: int) -> int:
        """When the next pull is wanted, with so many out on so many lanes; NEVER_US while there are enough."""
        if outstanding >= self._target(lanes):
            return NEVER_US
        return 0 if self.hungry else self._next_us

    def started(self, hold_us_max: int, now: int) -> int:
        """A pull leaves now: its hold."""
        if self.mode is PullMode.INTERVAL:
            self._next_us = now + self.interval_us
        if self.mode is not PullMode.HOLDING or self.hungry:
            return 0
        return min(self._hold_us, hold_us_max)

    def answered(self, pulled: Pulled, now: int) -> None:
        """Any exchange was answered."""
        self.hungry = pulled.more
        if self.mode is PullMode.HOLDING:
            self._answered_holding(pulled, now)
        elif self.mode is PullMode.POLLING:
            self._answered_polling(pulled, now)

    def _target(self, lanes: int) -> int:
        if self.hungry:
            return max(1, lanes - 1)
        return 2 if self._active and self.mode is PullMode.HOLDING and lanes > 2 else 1

    def _answered_holding(self, pulled: Pulled, now: int) -> None:
        if not pulled.empty:
            self._hold_us = self._hold_us_short
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = 0
        if pulled.pull:
            self._active = not pulled.empty
        if not pulled.pull or not pulled.empty or not pulled.hold_us or pulled.repeated:
            return
        if pulled.took_us * 2 >= pulled.hold_us:
            self._hold_us = max(self._hold_us, 2 * pulled.hold_us)
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = 0
        else:
            # Someone does not hold what we ask to be held: do not ask again and again.
            self._back_off(now)

    def _answered_polling(self, pulled: Pulled, now: int) -> None:
        if not pulled.empty:
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = now
        elif pulled.pull:
            self._back_off(now)
        else:
            # What was pushed may be answered by the peer soon.
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = min(self._next_us, now + _BACKOFF_US_MIN)

    def _back_off(self, now: int) -> None:
        self._next_us = now + self._backoff_us
        self._backoff_us = min(_BACKOFF_US_MAX, 2 * self._backoff_us)
