"""How much of large messages may be on its way: what the path takes in a few milliseconds, not a number of bytes.

What is on its way stands before everything written later, so a ping waits for all of it. The receiver says how many
bytes it has taken; from that follow the time a part takes and how much of it was waiting. The window is steered so that
about `target_us` of waiting remain: less would leave the path idle at times, more would make pings wait.

Every `PROBE_US` the window is made smaller for one round trip, so that the path's own time is seen anew: it changes
when the tunnel changes its carrier, and when machines become busy. `now` is an integer of microseconds.
"""

from collections import deque

__all__ = ["TARGET_US", "WINDOW_BYTES_MAX", "TimeWindow"]

TARGET_US = 4_000  # of waiting: leaves most of the 20 ms that a ping may take to busy machines
WINDOW_BYTES_MIN = 4 * 1024  # four of the document's parts
WINDOW_BYTES_START = 16 * 1024
WINDOW_BYTES_MAX = 64 * 1024 * 1024  # a gigabit per second over half a second of round trip
PROBE_US = 1_000_000  # the window is wrong for two of these at most
_PROBE_FIRST_US = 100_000
_PROBE_ROUNDS = 25  # between two probes at least: one costs about one round trip
_PROBES = 3  # of which the shortest counts: a single one may have met what others sent
_PROBE_SHARE = 0.75
_PROBE_SHARE_MIN = 0.125
_PART_BYTES = 64 * 1024  # larger parts only where eight fit: each is on its way as a whole, through every stage
_STEP_MAX = 2.0  # of shrinking in one round trip, and of growth while hardly anything waits
_GROW_MAX = 1.1  # else: after a pause a path is faster than it is, and a round or two must not be believed
_REGROW_MAX = 1.5  # towards what the path has proven to take
_RATE_US = 1_000_000  # for so long a rate that was reached is believed
_RATE_SPAN_US = 5_000  # and measured over: after a pause what has waited comes at once, faster than the path is
_IDLE_ROUNDS = 4  # in which nothing waited: the path is faster than we thought, as at the start


class TimeWindow:
    """Bytes in flight, bounded by time. Call `sent` for each part and `received` for each answer."""

    def __init__(self, target_us: int = TARGET_US) -> None:
        self.window_bytes = WINDOW_BYTES_START
        self.sent_bytes = 0
        self.received_bytes = 0
        self.base_us: int | None = None  # what a part takes when nothing waits before it
        self._target_us = target_us
        self._flight: deque[tuple[int, int]] = deque()  # (bytes sent with it, when)
        self._round_end = 0  # the round is over when this much is received
        self._round_us: int | None = None  # the shortest time in this round
        self._round_sum_us = self._round_samples = 0
        self._took_us: int | None = None  # the same of the last round
        self._limited = False
        self._rate_start = (0, 0)  # when, and what was received then
        self._rates: deque[tuple[int, float]] = deque()  # of rounds, falling
        self._idle_rounds = _IDLE_ROUNDS
        self._probe_due_us: int | None = None
        self._low_us: int | None = None  # the shortest round since the last probe
        self._probe_bytes = 0  # in a probe: what may be in flight
        self._ramp_bytes: int | None = None  # after a probe: what may be in flight
        self._probes: deque[int] = deque(maxlen=_PROBES)  # what a part took in the last of them
        self._probing = False

    @property
    def in_flight_bytes(self) -> int:
        return self.sent_bytes - self.received_bytes

    @property
    def part_bytes(self) -> int:
        """How large parts should be: several make up the window, and each takes a fraction of `target_us`."""
        if self._took_us is None:
            return self.window_bytes // 16  # until the path is known, the first part must not be slow by itself
        share = min(self.window_bytes // 4, max(_PART_BYTES, self.window_bytes // 8))
        return min(share, self.window_bytes * self._target_us // (2 * self._took_us))

    def room(self) -> int:
        """Bytes that may be sent now."""
        window = self.window_bytes
        if self._probing:
            window = self._probe_bytes
        elif self._ramp_bytes is not None:
            window = min(window, self._ramp_bytes)
        room = window - self.in_flight_bytes
        if room <= 0:
            self._limited = True
        return room

    def sent(self, size: int, now: int) -> None:
        """A part left."""
        self.sent_bytes += size
        self._flight.append((self.sent_bytes, now))
        if self._probe_due_us is None:
            self._probe_due_us = now + _PROBE_FIRST_US

    def received(self, total: int, now: int) -> bool:
        """The other side has taken so many bytes in all; whether that can be."""
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
            # What was shorter since the last probe counts too: a base that is too long would let the queue grow.
            self._probes.append(took_us if self._low_us is None else min(took_us, self._low_us))
            self._low_us = None
            self.base_us = min(self._probes)
            self._probe_due_us = now + max(PROBE_US, min(_PROBE_ROUNDS * took_us, 5 * PROBE_US))
            self._ramp_bytes = self._probe_bytes
        elif self._ramp_bytes is not None:
            # The whole window at once would be a queue by itself: it is opened by a quarter in each round trip.
            if self._ramp_bytes >= self.window_bytes:
                self._ramp_bytes = None
        elif self._probe_due_us is not None and now >= self._probe_due_us:
            self._probing = True
            # What should be waiting is left out, and a quarter more: then nothing waits, if we know the path at all.
            share = _PROBE_SHARE * (self.base_us or took_us) / took_us
            self._probe_bytes = round(self.window_bytes * min(_PROBE_SHARE, max(_PROBE_SHARE_MIN, share)))
        else:
            self._low_us = took_us if self._low_us is None else min(self._low_us, took_us)
            self.base_us = took_us if self.base_us is None else min(self.base_us, took_us)
            # Between the shortest and the mean: on a busy machine parts come in bursts, and the first never waits.
            step = self._step((took_us + self._round_sum_us // self._round_samples) // 2, self.base_us)
            if step < 1 or self._limited:
                # Delays that are not ours, as on a machine that does other things, must not close the window.
                proven = self._fastest(now) * self._target_us
                window = max(round(self.window_bytes * step), min(proven, _REGROW_MAX * self.window_bytes))
                self.window_bytes = min(WINDOW_BYTES_MAX, max(WINDOW_BYTES_MIN, round(window)))
        self._limited = False
        self._round_us = None
        self._round_sum_us = self._round_samples = 0
        self._round_end = self.sent_bytes + 1

    def _fastest(self, now: int) -> float:
        """Bytes per microsecond at its best of late."""
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
        """By how much the window changes: towards `target_us` of waiting, and twofold while hardly anything waits."""
        if (took_us - base_us) * 4 >= self._target_us:
            self._idle_rounds = 0
        elif self._limited:
            self._idle_rounds += 1
        if self._idle_rounds >= _IDLE_ROUNDS:
            return _STEP_MAX
        return min(_GROW_MAX, max(1 / _STEP_MAX, (base_us + self._target_us) / took_us))
