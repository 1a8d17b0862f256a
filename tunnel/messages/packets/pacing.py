"""Pacing of split messages: a window bounds the data in flight by time, to what the path takes in a few milliseconds.

Everything in flight is ahead of whatever is written later, so a ping waits for all of it. The receiver reports how many
bytes it has taken. This shows how long a part takes, and how much of that time it spent waiting. The window is adjusted
so that about `target_us` of waiting remains: less would leave the path idle at times, more would delay pings.

About every `PROBE_US` the window shrinks for one round trip, to measure the time of the path itself again. That time
changes when the tunnel changes its carrier, and when machines become busy. `now` is an integer of microseconds.
"""

from collections import deque

__all__ = ["TARGET_US", "WINDOW_BYTES_MAX", "TimeWindow"]

TARGET_US = 4_000  # how long a ping may wait: it should take 20 ms at most, and busy machines delay it, too
WINDOW_BYTES_MIN = 4 * 1024  # four parts of the size in the packet-assembler document (docs/REFERENCES.md)
WINDOW_BYTES_START = 16 * 1024
WINDOW_BYTES_MAX = 64 * 1024 * 1024  # one gigabit per second at a round trip of half a second
PROBE_US = 1_000_000  # a wrong window is corrected within two of these intervals
_PROBE_FIRST_US = 100_000
_PROBE_ROUNDS = 25  # minimum number of round trips between two probes, because a probe costs about one
_PROBES = 3  # the shortest of the last probes counts: a single one may have waited for other traffic
_PROBE_SHARE = 0.75
_PROBE_SHARE_MIN = 0.125
_PART_BYTES = 64 * 1024  # parts are larger only if eight fit into the window: each stage passes on whole parts
_STEP_MAX = 2.0  # factor: the most that the window shrinks in a round trip, or grows while hardly anything waits
_GROW_MAX = 1.1  # factor: the most that it grows otherwise; shortly after a pause, a path seems faster than it is
_REGROW_MAX = 1.5  # factor: the most that it grows towards a rate that the path has reached before
_RATE_US = 1_000_000  # how long a measured rate remains valid
_RATE_SPAN_US = 5_000  # the shortest time to measure a rate over: after a pause, data arrives in a burst
# After this number of rounds in which the window was the limit and nothing waited, the path is taken to be faster than
# the window.
_IDLE_ROUNDS = 4


class TimeWindow:
    """A window of bytes that is bounded by time. Call `on_sent` for each part and `on_received` for each report.

    One thing because each report ends a part, perhaps with it a round, and perhaps with this a probe: the window
    follows from all three, and a probe decides which rounds count.
    """

    def __init__(self, target_us: int = TARGET_US) -> None:
        self.window_bytes = WINDOW_BYTES_START
        self.sent_bytes = 0
        self.received_bytes = 0
        self.base_us: int | None = None  # the time a part takes when nothing waits before it
        self._target_us = target_us
        self._flight: deque[tuple[int, int]] = deque()  # for each part: bytes sent so far, the time of sending
        self._round_end = 0  # the round ends when this number of bytes is received
        self._round_us: int | None = None  # the shortest time of a part in this round
        self._round_sum_us = self._round_samples = 0
        self._took_us: int | None = None  # the shortest time of a part in the last round without a probe or its ramp
        self._limited = False
        self._rate_start = (0, 0)  # a time, and the bytes received until then
        self._rates: deque[tuple[int, float]] = deque()  # (time, rate), with falling rates
        self._idle_rounds = _IDLE_ROUNDS
        self._probe_due_us: int | None = None
        self._low_us: int | None = None  # the shortest time of a round since the last probe
        self._probe_bytes = 0  # the limit of bytes in flight during a probe
        self._ramp_bytes: int | None = None  # the limit of bytes in flight after a probe
        self._probes: deque[int] = deque(maxlen=_PROBES)  # the time of a part in each of the last probes
        self._probing = False

    @property
    def in_flight_bytes(self) -> int:
        return self.sent_bytes - self.received_bytes

    @property
    def part_bytes(self) -> int:
        """The best size of parts: several fill the window, and each takes a fraction of `target_us`."""
        if self._took_us is None:
            return self.window_bytes // 16  # a small first part: a large one could be slow on an unknown path
        share = min(self.window_bytes // 4, max(_PART_BYTES, self.window_bytes // 8))
        return min(share, self.window_bytes * self._target_us // (2 * self._took_us))

    def room(self) -> int:
        """Return the number of bytes that may be sent now; zero or less if there is no room."""
        window = self.window_bytes
        if self._probing:
            window = self._probe_bytes
        elif self._ramp_bytes is not None:
            window = min(window, self._ramp_bytes)
        room = window - self.in_flight_bytes
        if room <= 0:
            self._limited = True
        return room

    def on_sent(self, size: int, now: int) -> None:
        """Note that a part of `size` bytes was sent."""
        self.sent_bytes += size
        self._flight.append((self.sent_bytes, now))
        if self._probe_due_us is None:
            self._probe_due_us = now + _PROBE_FIRST_US

    def on_received(self, total: int, now: int) -> bool:
        """Note that the peer has taken `total` bytes so far; return False if that number is impossible."""
        if not self.received_bytes <= total <= self.sent_bytes:
            return False
        if self._ramp_bytes is not None:
            self._ramp_bytes += (total - self.received_bytes) // 4
        self.received_bytes = total
        sent_us = None
        while self._flight and self._flight[0][0] <= total:
            sent_us = self._flight.popleft()[1]
        if sent_us is not None:
            took_us = max(1, now - sent_us)
            self._round_us = took_us if self._round_us is None else min(self._round_us, took_us)
            self._round_sum_us += took_us
            self._round_samples += 1
        if total >= self._round_end and self._round_us is not None:
            self._end_round(self._round_us, now)
        return True

    def _end_round(self, took_us: int, now: int) -> None:
        if not self._probing and self._ramp_bytes is None:
            self._took_us = took_us
        if self._probing:
            self._probing = False
            # A shorter time since the last probe counts, too: a base that is too long would let the queue grow.
            self._probes.append(took_us if self._low_us is None else min(took_us, self._low_us))
            self._low_us = None
            self.base_us = min(self._probes)
            self._probe_due_us = now + max(PROBE_US, min(_PROBE_ROUNDS * took_us, 5 * PROBE_US))
            self._ramp_bytes = self._probe_bytes
        elif self._ramp_bytes is not None:
            # The whole window at once would form a queue by itself, so it opens by a quarter in each round trip.
            if self._ramp_bytes >= self.window_bytes:
                self._ramp_bytes = None
        elif self._probe_due_us is not None and now >= self._probe_due_us:
            self._probing = True
            # Send three quarters of the bytes that, by the estimate of the path, do not wait. If the estimate is about
            # right, nothing waits then.
            share = _PROBE_SHARE * (self.base_us or took_us) / took_us
            self._probe_bytes = round(self.window_bytes * min(_PROBE_SHARE, max(_PROBE_SHARE_MIN, share)))
        else:
            self._low_us = took_us if self._low_us is None else min(self._low_us, took_us)
            self.base_us = took_us if self.base_us is None else min(self.base_us, took_us)
            # Use the middle of the shortest time and the mean: on a busy machine parts arrive in bursts, and the first
            # part of a burst never waits.
            step = self._step((took_us + self._round_sum_us // self._round_samples) // 2, self.base_us)
            if step < 1 or self._limited:
                # Delays with other causes, as on a busy machine, must not close the window.
                proven = self._fastest(now) * self._target_us
                window = max(round(self.window_bytes * step), min(proven, _REGROW_MAX * self.window_bytes))
                self.window_bytes = min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, round(window)))
        self._limited = False
        self._round_us = None
        self._round_sum_us = self._round_samples = 0
        self._round_end = self.sent_bytes + 1

    def _fastest(self, now: int) -> float:
        """Return the highest recent rate, in bytes per microsecond."""
        start_us, start_bytes = self._rate_start
        rates = self._rates
        while rates and rates[0][0] < now - _RATE_US:
            rates.popleft()
        if now - start_us >= _RATE_SPAN_US:
            rate = (self.received_bytes - start_bytes) / (now - start_us)
            self._rate_start = (now, self.received_bytes)
            while rates and rates[-1][1] <= rate:
                rates.pop()
            rates.append((now, rate))
        return rates[0][1] if rates else 0.0

    def _step(self, took_us: int, base_us: int) -> float:
        """Return the factor for the window: towards `target_us` of waiting, or 2 while hardly anything waits."""
        if (took_us - base_us) * 4 >= self._target_us:
            self._idle_rounds = 0
        elif self._limited:
            self._idle_rounds += 1
        if self._idle_rounds >= _IDLE_ROUNDS:
            return _STEP_MAX
        return min(_GROW_MAX, max(1 / _STEP_MAX, (base_us + self._target_us) / took_us))
