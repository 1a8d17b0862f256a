"""Whether exchanges carry more than a slow road, as a state machine without I/O (PROTOCOL 8.6).

Some paths shape each HTTP connection. A road is one connection, and exchanges use several.

watching  A road is in use, or none is. Its bytes and receipts show whether it is slow, and whether that is the path.
trial     The road was left: exchanges carry everything, so that the two can be compared.
away      Exchanges carried more. The roads rest while the flow lasts.
"""

import enum

import msgspec

from tunnel.exchange.config import KIB, MIB, MILLISECOND_US, SECOND_US

__all__ = ["Carried", "SlowRoad"]

_PERIOD_US = 2 * SECOND_US
_STEADY_PERIODS = 3  # a road is slow if this number of periods in a row are alike and below _BYTES_MAX
_BYTES_MIN = 32 * KIB  # of a period; a flow with less is not worth a trial
_BYTES_MAX = 1 * MIB  # of a period; a faster road is not worth a trial
_QUEUE_US = 200 * MILLISECOND_US  # receipts that take so much longer than the quickest wait behind a queue of data
_TRIAL_PERIODS = 5  # at most; the first is not counted, since exchanges begin with what the road has lost
_WAIT_US_MIN = 60 * SECOND_US  # between a trial in vain and the next, or until the road is used again; doubles
_WAIT_US_MAX = 600 * SECOND_US


class Carried(msgspec.Struct):
    """The bytes that exchanges have carried to the relay, and from it. Only what was answered counts."""

    up_bytes: int = 0
    down_bytes: int = 0


class _State(enum.Enum):
    WATCHING = enum.auto()
    TRIAL = enum.auto()
    AWAY = enum.auto()


class _Way:
    """One direction of the road in use: its bytes of each of the latest periods."""

    def __init__(self) -> None:
        self.bytes = 0
        self._periods: list[int] = []

    @property
    def is_slow(self) -> bool:
        """Whether the flow was steady, and below the rate at which the road counts as slow."""
        if len(self._periods) < _STEADY_PERIODS:
            return False
        least, most = min(self._periods), max(self._periods)
        return least >= _BYTES_MIN and most <= _BYTES_MAX and 4 * least >= 3 * most

    @property
    def usual_bytes(self) -> int:
        """The bytes of a usual period."""
        return sum(self._periods) // max(1, len(self._periods))

    def close(self, took_us: int) -> None:
        """End a period, which has lasted for `took_us`."""
        self._periods = [*self._periods, self.bytes * _PERIOD_US // took_us][-_STEADY_PERIODS:]
        self.bytes = 0

    def forget(self) -> None:
        """Forget all periods."""
        self.bytes = 0
        self._periods = []


class SlowRoad:
    """Decides when to leave the road in use for a trial, and when to return. `carried` is kept by the exchanges.

    A road is slow only while receipts are late: then the path limits the flow. An application that sends or reads
    slowly leaves no queue, so its receipts come at once.
    """

    def __init__(self, carried: Carried) -> None:
        self.keeps_streams = True  # whether exchanges may use streamed answers, of which one is like one road
        self._carried = carried
        self._state = _State.WATCHING
        self._up, self._down = _Way(), _Way()
        self._is_down = False  # the direction that was slow
        self._road_bytes = 0  # what the road carried in a period
        self._least_us = 0  # the quickest receipt ever; 0: none yet
        self._quickest_us = 0  # the quickest receipt of the period; 0: none yet
        self._period_us = 0  # when the present period began; 0: none has
        self.judges_us = _PERIOD_US  # before this time, `is_slow` returns False and changes nothing
        self._before_bytes = 0  # carried by exchanges before the present period
        self._rounds = 0  # periods of the trial that have passed
        self._trial_bytes = 0
        self._not_before_us = 0  # the next trial begins no earlier
        self._wait_us = _WAIT_US_MIN
        self._rest_us = _WAIT_US_MIN
        self._until_us = 0  # the end of the rest

    @property
    def is_left(self) -> bool:
        """Whether exchanges carry everything now, so that no road is to be tried."""
        return self._state is not _State.WATCHING

    # while a road is in use

    def on_received(self, size: int) -> None:
        """Count bytes from the relay that came on the road."""
        self._down.bytes += size

    def on_receipted(self, size: int, took_us: int) -> None:
        """Count bytes of which the road has brought the receipt, which took this long."""
        self._up.bytes += size
        took_us = max(1, took_us)
        self._least_us = min(self._least_us or took_us, took_us)
        self._quickest_us = min(self._quickest_us or took_us, took_us)

    def is_slow(self, now: int, *, waits: bool) -> bool:
        """Return whether the road should be left now; if so, call `left`. Call this after bytes or receipts have come.
        `waits`: something that was sent on the road has no receipt."""
        lasted_us = now - self._period_us
        if lasted_us < _PERIOD_US:
            return False
        quickest_us, self._quickest_us = self._quickest_us, 0
        is_queued = quickest_us >= self._least_us + _QUEUE_US if quickest_us else waits
        if not self._period_us or not is_queued:
            self._forget(now)
            return False
        self._period_us = now
        self.judges_us = now + _PERIOD_US
        self._up.close(lasted_us)
        self._down.close(lasted_us)
        return now >= self._not_before_us and (self._up.is_slow or self._down.is_slow)

    def on_replaced(self) -> None:
        """Watch from the beginning: another connection carries now, or none."""
        self._state = _State.WATCHING
        self.keeps_streams = True
        self._forget(0)

    def on_left(self, now: int) -> str:
        """Begin the trial: the road was closed, and exchanges carry everything. Return why, for people."""
        self._is_down = self._down.is_slow
        self._road_bytes = (self._down if self._is_down else self._up).usual_bytes
        self.keeps_streams = not self._is_down
        self._state = _State.TRIAL
        self._rounds = self._trial_bytes = 0
        self._begin_period(now)
        rate = self._road_bytes * SECOND_US // _PERIOD_US // KIB
        return f"it carried only {rate} KiB/s, and separate requests may carry more"

    # while exchanges carry

    def next_timeout(self) -> int | None:
        """Return when to call `handle_timeout`, or None."""
        return self._period_us + _PERIOD_US if self.is_left else None

    def handle_timeout(self, now: int) -> None:
        """Look at what exchanges have carried, once in each period. Afterwards the roads may be tried again, or not:
        see `is_left`."""
        lasted_us = now - self._period_us
        if not self.is_left or lasted_us < _PERIOD_US:
            return
        size = (self._so_far() - self._before_bytes) * _PERIOD_US // lasted_us
        self._begin_period(now)
        if self._state is _State.AWAY:
            self._look_at_flow(size, now)
        else:
            self._look_at_trial(size, now)

    def _look_at_trial(self, size: int, now: int) -> None:
        self._rounds += 1
        if self._rounds == 1:
            return
        counted = self._rounds - 1
        is_over = 2 * size < self._road_bytes  # exchanges carry far less, or the flow has ended
        if is_over:
            counted -= 1
        else:
            self._trial_bytes += size
        if not is_over and self._rounds < _TRIAL_PERIODS:
            return
        if counted and 2 * self._trial_bytes >= 3 * counted * self._road_bytes:
            self._state = _State.AWAY
            self._wait_us = _WAIT_US_MIN
            self._until_us = now + self._rest_us
            self._rest_us = min(2 * self._rest_us, _WAIT_US_MAX)
        else:
            self._not_before_us = now + self._wait_us
            self._wait_us = min(2 * self._wait_us, _WAIT_US_MAX)
            self.on_replaced()

    def _look_at_flow(self, size: int, now: int) -> None:
        """Return to the roads if the flow has ended, or the rest is over."""
        if size < self._road_bytes:
            self._rest_us = _WAIT_US_MIN
        if size < self._road_bytes or now >= self._until_us:
            self.on_replaced()

    # internal

    def _so_far(self) -> int:
        return self._carried.down_bytes if self._is_down else self._carried.up_bytes

    def _begin_period(self, now: int) -> None:
        self._period_us = now
        self.judges_us = now + _PERIOD_US
        self._before_bytes = self._so_far()

    def _forget(self, now: int) -> None:
        self._period_us = now
        self.judges_us = now + _PERIOD_US
        self._up.forget()
        self._down.forget()
