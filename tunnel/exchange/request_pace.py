"""The rate of requests that the path lets pass, learned from refusals of too many requests (429, 503; 7.18).

Requests are judged in blocks. When a part of a block is refused, the gap between requests grows, beginning with the gap
that they had on average: a smaller one would change nothing. When nothing is refused although requests wait for the
gap, it shrinks by an eighth. If requests are then refused, the previous gap is used again, for a time that doubles each
time. For the first second, the gap is twice as large, since many limits go on refusing until the last second has fewer
requests.
If requests are refused however large the gap is, the refusals have another cause, and no gap is used.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["RequestPace"]

_GAP_US_MIN = 5 * MILLISECOND_US  # 200 requests per second; few paths limit that, and few tunnels send that many
_GAP_US_MAX = 10 * SECOND_US
_BLOCK = 10  # number of requests that are judged together
# If less than half of a block is refused in more than this many successive blocks, although the gap was changed, the
# refusals are not due to the rate.
_NEAR_BLOCKS_MAX = 4
# If no request was answered for this long, the relay may have been away; refusals from that time say nothing about the
# rate.
_AWAY_US = 1_500 * MILLISECOND_US
_PAUSE_US = SECOND_US  # a longer gap is a pause of the application, and does not count
# A longer average gap counts as this one. Otherwise refusals with another cause would hold up an application that sends
# little.
_REAL_GAP_US_MAX = 100 * MILLISECOND_US
_SETTLE_US = SECOND_US  # a gap shrinks only after at least this time, since a limit that allows bursts refuses late
# When a trial of a smaller gap has failed, twice the previous gap is used for this time: many limits count the requests
# of the last second, refused ones included, and so go on refusing for a time although the previous gap is large enough.
_WINDOW_US = SECOND_US
_LONG_US_MIN = 30 * SECOND_US  # how long a gap that worked is kept, or refusals are ignored; doubles each time
_LONG_US_MAX = 600 * SECOND_US


class RequestPace:
    """The least time between two requests. Without refusals it is 0."""

    def __init__(self) -> None:
        self.gap_us = 0
        self.next_us = 0
        """When the next request may leave."""
        self._has_waited = False  # a request waited for the present gap, so the gap was tested
        self._changed_us = 0  # requests sent before this say nothing about the present gap
        self._settled_us = 0  # from then on the gap may shrink
        self._gap_us_before = 0  # the gap before it shrank at the last change; 0 if it did not shrink then
        self._slow_until_us = 0  # until then, twice the gap is used
        self._found_us = _LONG_US_MIN
        self._near_blocks = 0
        self._ignored_us = _LONG_US_MIN
        self._ignored_until_us = 0  # until then, refusals are ignored: they are known to have another cause
        self._answered_us = 0  # when the newest request that was answered was sent
        self._passed = 0  # requests of the present block that were answered
        self._refused = 0  # requests of the present block that were refused
        self._sent_us = 0  # when the newest request was sent
        self._gaps = 0  # number of gaps between requests in the present block, without pauses
        self._gaps_us = 0  # sum of these gaps

    def allows(self, now: int) -> bool:
        """Return whether a request may leave now. If not, note that one waits."""
        if now >= self.next_us:
            return True
        self._has_waited = True
        return False

    def sent(self, now: int) -> None:
        """Record that a request leaves."""
        gap_us = 2 * self.gap_us if now < self._slow_until_us else self.gap_us
        self.next_us = now + gap_us if gap_us else 0
        if now - self._sent_us < _PAUSE_US:
            self._gaps += 1
            self._gaps_us += now - self._sent_us
        self._sent_us = now

    def refused(self, sent_us: int, now: int, *, surely: bool) -> None:
        """Record that an intermediary refused a request that was sent at `sent_us`. `surely`: the number of requests
        is certainly the cause; otherwise, it is a possible cause."""
        if sent_us < max(self._changed_us, self._ignored_until_us):
            return
        self._refused += 1
        # Some limits count refused requests, too, so that no answer comes until there are fewer requests.
        if surely and self._refused >= _BLOCK:
            self._slow_down(now)

    def answered(self, sent_us: int, now: int) -> None:
        """Learn from the relay's answer to a request that was sent at `sent_us`."""
        if sent_us - self._answered_us > max(_AWAY_US, 3 * self.gap_us):
            self._begin_block()
        self._answered_us = max(self._answered_us, sent_us)
        if sent_us < self._changed_us or not (self._refused or self.gap_us):
            return
        self._passed += 1
        if self._passed + self._refused >= _BLOCK:
            if self._refused:
                self._slow_down(now)
            elif self._has_waited and now >= self._settled_us:
                self._speed_up(now)
            else:
                self._begin_block()

    def _slow_down(self, now: int) -> None:
        """Use a larger gap, because a part of a block was refused."""
        share = self._refused / (self._passed + self._refused)
        self._near_blocks = self._near_blocks + 1 if share < 0.5 else 0
        # Less than half is refused: the limit is near the gap that the requests really had.
        base_us = self._real_gap_us() if share < 0.5 else self.gap_us
        gap_us = int(base_us * min(2.0, 1.1 / max(0.1, 1 - share)))
        if self._near_blocks > _NEAR_BLOCKS_MAX:
            gap_us = self._near_blocks = 0
            self._ignored_until_us = now + self._ignored_us
            self._ignored_us = min(_LONG_US_MAX, 2 * self._ignored_us)
        elif self._gap_us_before:
            self._go_back(now)
            return
        else:
            gap_us = min(_GAP_US_MAX, max(_GAP_US_MIN, gap_us))
        self._use(gap_us, _SETTLE_US, now)

    def _go_back(self, now: int) -> None:
        """Use the gap that worked again, because the trial of a smaller one has failed."""
        self._use(self._gap_us_before, self._found_us, now)
        self._found_us = min(_LONG_US_MAX, 2 * self._found_us)
        self._changed_us = self._slow_until_us = now + _WINDOW_US

    def _speed_up(self, now: int) -> None:
        self._near_blocks = 0
        before_us = self.gap_us
        smaller_us = before_us - before_us // 8
        self._use(smaller_us if smaller_us >= _GAP_US_MIN else 0, _SETTLE_US, now)
        self._gap_us_before = before_us

    def _use(self, gap_us: int, settle_us: int, now: int) -> None:
        self.gap_us = gap_us
        self.next_us = min(self.next_us, now) + gap_us if gap_us else 0
        self._changed_us, self._settled_us = now, now + settle_us
        self._gap_us_before = 0
        self._has_waited = False
        self._begin_block()

    def _begin_block(self) -> None:
        self._passed = self._refused = self._gaps = self._gaps_us = 0

    def _real_gap_us(self) -> int:
        """Return the gap that the requests of the block had on average: at least the gap in use."""
        average_us = self._gaps_us // self._gaps if self._gaps else 0
        return max(self.gap_us, min(average_us, _REAL_GAP_US_MAX))
