"""The rate of requests that the path lets pass, learned from refusals of too many requests (429, 503; 7.18).

Requests are judged in blocks. When a part of a block is refused, the gap between requests grows, beginning with the gap
that they had on average: a smaller one would change nothing. When nothing is refused although requests wait for the
gap, it shrinks by an eighth. If requests are then refused, the previous gap is used again, for a time that doubles each
time. For the first second, the gap is twice as large, since many limits go on refusing until the last second has fewer
requests.
If requests are refused however large the gap is, the refusals have another cause, and no gap is used.

A 429 names the cause, and while it goes on, one request after another asks whether there is room again (7.9). The time
that this took, together with the second or two before, shows at what pace requests pass: the gap is this time divided
by the number of requests that were answered in it. Later 429s show it, too: a limit that lets a burst pass has none
left at each 429, whatever the gap is, so what passes from one to the next is its pace. Those that a growing gap does
not end are given up as random ones only if this pace is no slower than the gap. And a gap grows only while requests
wait for it: an application that sends little would learn nothing from a larger one, and only wait.

A ban refuses all requests for a time, so that a trial of a smaller gap costs far more: the gap after it is kept for ten
minutes.
"""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["RequestPace"]

_GAP_US_MIN = 5 * MILLISECOND_US  # 200 requests per second; few paths limit that, and few tunnels send that many
_GAP_US_MAX = 10 * SECOND_US
_BLOCK = 10  # number of requests that are judged together
# If less than half of a block is refused in more than this many successive blocks, although the gap was changed, the
# refusals are not due to the rate.
_NEAR_BLOCKS_MAX = 4
_GROWTHS_MAX = 10  # the same for 429s that go on although the gap has grown so often, each time by a quarter or more
_WORKED_FACTOR = 8  # and for those that go on although the gap is so many times one of which a whole block has passed
# If no request was answered for this long, the relay may have been away; refusals from that time say nothing about the
# rate.
_AWAY_US = 1_500 * MILLISECOND_US
_PAUSE_US = SECOND_US  # a longer gap is a pause of the application, and does not count
# A longer average gap counts as this one. Otherwise refusals with another cause would hold up an application that sends
# little.
_REAL_GAP_US_MAX = 100 * MILLISECOND_US
_LIMIT_GAP_US_MAX = 4 * SECOND_US  # a limit that asks for a larger one refuses for so long that it counts as a ban
_SPAN_US = SECOND_US  # answers are counted in spans of this time, since most limits count the requests of one second
_ROW_US = 500 * MILLISECOND_US  # 429s that go on for so long, and for three gaps, are hardly at random
_BAN_US = 10 * SECOND_US  # if 429s go on for so long, there is a ban, and the back-off knows what it leaves
_SETTLE_US = SECOND_US  # a gap shrinks only after at least this time, since a limit that allows bursts refuses late
# When a trial of a smaller gap has failed, twice the previous gap is used for this time: many limits count the requests
# of the last second, refused ones included, and so go on refusing for a time although the previous gap is large enough.
_WINDOW_US = SECOND_US
_LONG_US_MIN = 30 * SECOND_US  # how long a gap that worked is kept, or refusals are ignored; doubles each time
_LONG_US_MAX = 600 * SECOND_US


class _Answers:
    """How many requests were answered in the present span and in the one before. A span begins with an answer."""

    def __init__(self) -> None:
        self._count = self._count_before = 0
        self._began_us = self._began_us_before = 0

    def on_answered(self, now: int, *, may_end: bool) -> None:
        """Count an answer. `may_end`: begin a span with it if the present one is over."""
        if may_end and now - self._began_us >= _SPAN_US:
            self._count_before, self._began_us_before = self._count, self._began_us
            self._count, self._began_us = 0, now
        self._count += 1

    def gap_us(self, limited_us: int, now: int) -> int:
        """Return the average gap between the answers that have come until now, the newest of them, since a second or
        two before `limited_us`."""
        if self._began_us_before >= limited_us - 2 * _SPAN_US:
            return (now - self._began_us_before) // max(1, self._count_before + self._count - 1)
        return (now - self._began_us) // max(1, self._count - 1)


class _Intervals:
    """The times between 429s, of which each is the first in a row: how many requests were answered in those that ended
    while the gap grew, and whether the application had something to send."""

    def __init__(self) -> None:
        self._began_us = self._passed = 0  # of the present interval
        self._idle_us = 0  # for how much of it a request could leave, and none was to be sent
        self.was_busy = False  # for more than half of the interval that ended last, requests were sent or waited
        self._ended_us = self._ended_passed = 0  # of all busy ones that have ended since the gap began to grow

    def on_answered(self) -> None:
        self._passed += 1

    def on_idle(self, idle_us: int) -> None:
        self._idle_us += idle_us

    def on_limited(self, now: int) -> None:
        self.was_busy = 2 * self._idle_us < now - self._began_us
        if self.was_busy:  # few requests leave in a pause of the application, which says nothing about the path
            self._ended_us += now - self._began_us
            self._ended_passed += self._passed
        self._began_us, self._passed, self._idle_us = now, 0, 0

    @property
    def gap_us(self) -> int:
        """An eighth more than the average gap between these answers, since they are few; 0: nothing is known."""
        return self._ended_us * 9 // (8 * self._ended_passed) if self._ended_passed else 0

    def forget(self) -> None:
        self._ended_us = self._ended_passed = 0


class RequestPace:
    """The least time between two requests. Without refusals it is 0.

    One thing because all that it remembers shows whether this time is too short or too long.
    """

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
        self._banned_until_us = 0  # until then, another ban shows that the gap is too small
        self._answered_us = 0  # when the newest request that was answered was sent
        self._answers = _Answers()
        self._intervals = _Intervals()
        self._limited_us = 0  # when a 429 came, if no request that left since then has been answered; else 0
        self._growths = 0  # how often the gap has grown because of 429s, since a block has passed whole
        self._worked_us = 0  # the first gap at which a block has passed whole; 0: none did
        self._has_worked = False  # a block has passed whole since the latest 429s
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

    def on_sent(self, now: int, free_us: int) -> None:
        """Record that a request leaves. But for the gap, it could leave since `free_us`."""
        self._intervals.on_idle(max(0, now - max(self.next_us, free_us, self._sent_us)))
        gap_us = 2 * self.gap_us if now < self._slow_until_us else self.gap_us
        self.next_us = now + gap_us if gap_us else 0
        if now - self._sent_us < _PAUSE_US:
            self._gaps += 1
            self._gaps_us += now - self._sent_us
        self._sent_us = now

    def on_refused(self, sent_us: int, now: int, *, surely: bool) -> None:
        """Record that an intermediary refused a request that was sent at `sent_us`. `surely`: the number of requests
        is certainly the cause; otherwise, it is a possible cause."""
        if sent_us < max(self._changed_us, self._ignored_until_us):
            return
        self._refused += 1
        if surely and not self._limited_us:
            self._limited_us = now

    def on_answered(self, sent_us: int, now: int) -> None:
        """Learn from the relay's answer to a request that was sent at `sent_us`."""
        limited_us = self._limited_us
        self._answers.on_answered(now, may_end=not limited_us)
        self._intervals.on_answered()
        is_late = sent_us - self._answered_us > max(_AWAY_US, 3 * self.gap_us)
        self._answered_us = max(self._answered_us, sent_us)
        if limited_us:
            if sent_us >= limited_us:
                self._on_room(sent_us, now)
            return
        if is_late:
            self._begin_block()
        if sent_us < self._changed_us or not (self._refused or self.gap_us):
            return
        self._passed += 1
        if self._passed + self._refused >= _BLOCK:
            if self._refused:
                self._slow_down(now)
                return
            self._has_worked = True
            if self._has_waited and now >= self._settled_us:
                self._speed_up(now)
            else:
                self._begin_block()

    def on_banned(self, gap_us: int, now: int) -> None:
        """Use this gap, or a larger one: a ban for the number of requests has ended."""
        if now < self._banned_until_us:
            gap_us = max(gap_us, 2 * self.gap_us, self._gap_us_between_bans(now))
        self._banned_until_us = now + _LONG_US_MAX
        self._limited_us = 0
        self._use(min(_GAP_US_MAX, max(gap_us, self.gap_us)), _LONG_US_MAX, now)

    def _gap_us_between_bans(self, now: int) -> int:
        """Return the average gap since the ban before this one ended, if requests have left at each gap until 429s
        came: a limit of the requests of a minute refuses them for the rest of that minute."""
        worked_us = self._limited_us - (self._banned_until_us - _LONG_US_MAX)
        return self.gap_us * (worked_us + now - self._limited_us) // worked_us if worked_us > 0 else 0

    def _on_room(self, sent_us: int, now: int) -> None:
        """Use a larger gap if needed, since a request was answered that left at `sent_us`, after a 429 had come."""
        # The answer does not say when there was room: the relay may have held it.
        row_us, limited_us, self._limited_us = sent_us - self._limited_us, self._limited_us, 0
        self._intervals.on_limited(limited_us)
        has_worked, self._has_worked = self._has_worked and self.gap_us > 0, False
        shows_pace = not has_worked and (not self.gap_us or row_us >= max(_ROW_US, 3 * self.gap_us))
        is_needed = not self.gap_us or self._gap_us_before > 0 or self._intervals.was_busy
        if row_us >= _BAN_US or not is_needed:
            self._begin_block()
            return
        if has_worked:
            self._growths, self._worked_us = 0, self._worked_us or self._gap_us_before or self.gap_us
        elif shows_pace:
            self._begin_growth()
        else:
            self._growths += 1
        if self._gap_us_before:
            self._go_back(now)
        elif shows_pace:
            # An application that sends little has few answers. So the gap grows in steps.
            most_us = max(_REAL_GAP_US_MAX, self.gap_us + self.gap_us // 2)
            self._grow(min(self._answers.gap_us(limited_us, sent_us), most_us), now)
        elif self._growths > _GROWTHS_MAX or 0 < _WORKED_FACTOR * self._worked_us < self._next_gap_us:
            if self._intervals.gap_us > self._next_gap_us:  # no gap has helped because all were too small
                self._grow(self._intervals.gap_us, now)
                self._begin_growth()
            else:
                self._ignore(now)
        else:
            self._grow(0, now)

    @property
    def _next_gap_us(self) -> int:
        return max(_GAP_US_MIN, self.gap_us + self.gap_us // 4)

    def _grow(self, least_us: int, now: int) -> None:
        """Use a gap that is larger by a quarter, or `least_us` if that is more. Ignore 429s that go on at the largest
        one, unless there was a ban."""
        gap_us = max(least_us, self._next_gap_us)
        if gap_us > _LIMIT_GAP_US_MAX and now >= self._banned_until_us:
            self._ignore(now)
        else:
            self._use(min(gap_us, _GAP_US_MAX), _SETTLE_US, now)

    def _begin_growth(self) -> None:
        """Forget what the gaps so far have shown, because the next one is far larger."""
        self._growths = self._worked_us = 0
        self._intervals.forget()

    def _slow_down(self, now: int) -> None:
        """Use a larger gap, because a part of a block was refused."""
        share = self._refused / (self._passed + self._refused)
        self._near_blocks = self._near_blocks + 1 if share < 0.5 else 0
        # Less than half is refused: the limit is near the gap that the requests really had.
        base_us = self._real_gap_us() if share < 0.5 else self.gap_us
        gap_us = int(base_us * min(2.0, 1.1 / max(0.1, 1 - share)))
        if self._near_blocks > _NEAR_BLOCKS_MAX:
            self._ignore(now)
        elif self._gap_us_before:
            self._go_back(now)
        else:
            self._use(min(_GAP_US_MAX, max(_GAP_US_MIN, gap_us)), _SETTLE_US, now)

    def _ignore(self, now: int) -> None:
        """Use no gap for a time, because the refusals have another cause."""
        self._near_blocks = 0
        self._begin_growth()
        self._ignored_until_us = now + self._ignored_us
        self._ignored_us = min(_LONG_US_MAX, 2 * self._ignored_us)
        self._use(0, _SETTLE_US, now)

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
