"""The policy that decides when to pull, how many pulls to keep in flight and which hold to ask for (7.4, 7.15).

The path and the configuration choose one of three modes:

holding   One pull is kept in flight; the relay holds it until something waits or the hold ends. While packets flow, two
          are in flight if there are more than two lanes and the path lets two be held.
polling   Used where no response may be held, for example with one lane: pull at once after packets, else with
          exponential backoff.
interval  One pull at each interval, without a hold.

In every mode, while answers are full or say that more waits, all lanes but one pull at once and without a hold. Such a
short exchange has a short deadline, and a push still finds a lane.
"""

import enum

import msgspec

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["NEVER_US", "PullMode", "PullPolicy", "Pulled"]

NEVER_US = 1 << 62
_BACKOFF_US_MIN = 50 * MILLISECOND_US
_BACKOFF_US_MAX = SECOND_US


class PullMode(enum.Enum):
    """The three modes that the module describes."""

    HOLDING = enum.auto()
    POLLING = enum.auto()
    INTERVAL = enum.auto()


class Pulled(msgspec.Struct):
    """The properties of an answer that matter for pulls."""

    pull: bool  # the answer to a pull; else to a push
    empty: bool
    more: bool  # the answer was full or said that more waits
    hold_us: int  # the hold that the request asked for; 0 for a push
    took_us: int
    repeated: bool


class PullPolicy:
    """Decides when to pull and with which hold.

    `hold_us_short` is the first hold after packets came: if that pull is lost, packets wait for about that long.
    Holds double while nothing comes.
    """

    def __init__(self, hold_us_short: int) -> None:
        self._hold_us_short = hold_us_short
        self.configure(0, can_hold=True, held_max=2)

    def configure(self, interval_us: int, *, can_hold: bool, held_max: int) -> None:
        """Set what the relay and the path allow, and reset the policy. At most `held_max` pulls are held at once."""
        self._held_max = held_max
        self.mode = PullMode.INTERVAL if interval_us else PullMode.HOLDING if can_hold else PullMode.POLLING
        self.interval_us = interval_us
        self.resume()

    def resume(self) -> None:
        """Pull at once, and hold briefly: nothing is known about what waits, as after the end of a stream."""
        self.more_waits = False
        self._active = False  # the last pull brought packets
        self._hold_us = self._hold_us_short
        self._next_us = 0  # the next pull leaves no earlier, unless `more_waits`
        self._backoff_us = _BACKOFF_US_MIN

    def due_us(self, outstanding: int, lanes: int) -> int:
        """Return when the next pull is due, with `outstanding` pulls in flight on `lanes` lanes.

        Return NEVER_US while enough pulls are in flight.
        """
        if self.more_waits:
            return 0 if outstanding < max(1, lanes - 1) else NEVER_US
        has_two = self._active and self.mode is PullMode.HOLDING and lanes > 2 and self._held_max > 1
        return self._next_us if outstanding < 1 + has_two else NEVER_US

    def on_started(self, hold_us_max: int, now: int) -> int:
        """Record that a pull leaves now, and return the hold that it must ask for."""
        if self.mode is PullMode.INTERVAL:
            self._next_us = now + self.interval_us
        if self.mode is not PullMode.HOLDING or self.more_waits:
            return 0
        return min(self._hold_us, hold_us_max)

    def on_answered(self, pulled: Pulled, now: int) -> None:
        """Learn from the answer to any exchange."""
        self.more_waits = pulled.more
        if self.mode is PullMode.HOLDING:
            self._answered_holding(pulled, now)
        elif self.mode is PullMode.POLLING:
            self._answered_polling(pulled, now)

    def _answered_holding(self, pulled: Pulled, now: int) -> None:
        if not pulled.empty:
            self._hold_us = self._hold_us_short
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = 0
        if pulled.pull:
            self._active = not pulled.empty
        if not pulled.empty or not pulled.hold_us or pulled.repeated:
            return
        if pulled.took_us * 2 >= pulled.hold_us:
            self._hold_us = max(self._hold_us, 2 * pulled.hold_us)
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = 0
        else:
            # The relay or a proxy ended the hold early: back off instead of pulling in a tight loop.
            self._back_off(now)

    def _answered_polling(self, pulled: Pulled, now: int) -> None:
        if not pulled.empty:
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = now
        elif pulled.pull:
            self._back_off(now)
        else:
            # The peer may soon answer what was pushed.
            self._backoff_us = _BACKOFF_US_MIN
            self._next_us = min(self._next_us, now + _BACKOFF_US_MIN)

    def _back_off(self, now: int) -> None:
        self._next_us = now + self._backoff_us
        self._backoff_us = min(_BACKOFF_US_MAX, 2 * self._backoff_us)
