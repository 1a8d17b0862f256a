"""When requests to a relay may leave, after refusals that are not the relay's own (PROTOCOL 7.9).

All of an endpoint's requests to a relay share one back-off: those of its lanes, and those that open links. Otherwise
each of them would find out for itself, and repeats can keep a limit from ever ending: many bans are renewed by each
request that comes while they last.
"""

import enum
from random import Random

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["Backoff", "Question", "Refusal", "Row"]

_SECONDS = 10  # the rate of requests before a ban is that of this time
_LEAST = 20  # fewer requests in that time are hardly a reason for a ban
_LEAST_AGAIN = 5  # unless 429s say that they are, and come again
_SPARED = 5  # after a ban, one of so many of these requests is left out
_ASK_US = 500 * MILLISECOND_US  # the next request leaves no earlier than this after one that asks
_ASK_US_MAX = 4 * SECOND_US  # and no later, if no answer comes: a refusal would have come by then
_AWAY_US_MIN = 100 * MILLISECOND_US
_REPEAT_US = SECOND_US
_SILENT_US = 4 * SECOND_US  # without an answer for so long, although connections open, requests may be dropped
_AWAY_SHARE = 8  # while the relay may be away, a pause is this part of the time since the first refusal


class Refusal(enum.Enum):
    """Why a request came to nothing, although it did not reach the relay."""

    __hash__ = object.__hash__  # the members are single objects; the hash of `enum` is a function of Python

    FORBIDDEN = enum.auto()  # 403: perhaps only for this body
    BANNED = enum.auto()  # 429
    ASKED = enum.auto()  # 407
    BUSY = enum.auto()  # 503 with Retry-After
    AWAY = enum.auto()  # any other answer that is not the relay's, such as 502
    CLOSED = enum.auto()  # no connection could be opened
    CUT = enum.auto()  # a connection was opened, and cut before the answer
    SILENT = enum.auto()  # a connection was opened and took the request, and nothing is answered

    @property
    def is_ban(self) -> bool:
        """Whether something on the path wants fewer requests."""
        return self in _PAUSES_US


class Question(enum.Enum):
    """A question that a request asks during a row of refusals, while one request at a time leaves."""

    NONE = enum.auto()  # there is no row
    ANY = enum.auto()  # whether requests are refused at all
    SMALLEST = enum.auto()  # whether the smallest body and answer are refused
    SMALLEST_AS_USUAL = enum.auto()  # the same, in the format in which bodies have passed so far

    @property
    def is_about_size(self) -> bool:
        return self in (Question.SMALLEST, Question.SMALLEST_AS_USUAL)


# The question after the third refusal in a row, the fourth and the fifth, and so on; after the second it is the last of
# these. They change one thing at a time, so that an answer shows the reason; and a path may refuse just small bodies.
_QUESTIONS = (Question.SMALLEST_AS_USUAL, Question.SMALLEST, Question.ANY)
# The refusals that may concern the body, the answer or their format.
_OF_BODIES = frozenset({Refusal.FORBIDDEN, Refusal.AWAY, Refusal.CLOSED, Refusal.CUT})
# The pause after the second refusal in a row. Later ones are twice as long as the one before, up to the maximum.
_PAUSES_US = {
    Refusal.FORBIDDEN: 50 * MILLISECOND_US,
    Refusal.BANNED: 100 * MILLISECOND_US,
    Refusal.ASKED: SECOND_US,
    Refusal.BUSY: SECOND_US,
    Refusal.SILENT: 0,
}
# Most limits of a rate count the requests of one second, refused ones too, and some estimate them from this second and
# the one before. If a request is refused that left later than that, there is a ban. Many bans last until no request has
# come for 10, 30 or 60 s: three quarters of 14, 42 and 84 s are longer.
_BAN_AFTER_US = 2 * SECOND_US
_BAN_US = 14 * SECOND_US
_BAN_FACTOR = 3
_PAUSE_US_MAX = 84 * SECOND_US
_SILENT_PAUSE_US_MAX = 42 * SECOND_US  # the relay may as well be away, behind a proxy that takes requests in its place
_AGAIN_US = 120 * SECOND_US  # unless a ban says its reason, it has to come again within this time to leave a gap
_BAN_LEAST_US = 10 * SECOND_US  # what ends only with a longer pause was a ban
_ROW_GAP_US = 180 * SECOND_US  # an endpoint that uses a link may send other requests so rarely
_AWAY_US_MAX = SECOND_US  # so that streams go on within 2 s, when both endpoints have found the relay


class Row:
    """Refusals in a row: each one came for a request that left after the one before had come, and the relay has
    answered no request that left since the first one came. Three minutes without one end it, too."""

    def __init__(self) -> None:
        self.count = 0
        self.first_us = 0
        self.newest_us = 0

    def on_refused(self, sent_us: int, now: int) -> bool:
        """Record the refusal of a request that was sent at `sent_us`. Return whether it counts."""
        if self.count and sent_us < self.newest_us:
            return False
        if now - self.newest_us > _ROW_GAP_US:
            self.count = 0
        if not self.count:
            self.first_us = now
        self.count += 1
        self.newest_us = now
        return True

    def on_answered(self, sent_us: int) -> bool:
        """Record that the relay has answered a request that was sent at `sent_us`. Return whether this ends the row."""
        if not self.count or sent_us < self.first_us:
            return False
        self.count = 0
        return True


def _pause_us(refusal: Refusal, count: int, before_us: int, since_us: int, left_us: int) -> int:
    """Return the longest pause after a refusal, the `count`th in a row, when the first one was `since_us` ago. The
    refused request left `left_us` after the first one."""
    if refusal is Refusal.SILENT or (refusal is Refusal.BANNED and count > 1 and left_us >= _BAN_AFTER_US):
        most_us = _SILENT_PAUSE_US_MAX if refusal is Refusal.SILENT else _PAUSE_US_MAX
        return min(most_us, max(_BAN_US, _BAN_FACTOR * before_us))
    if count < 2 and refusal is not Refusal.BANNED:
        return 0
    if refusal not in _PAUSES_US:
        return min(_AWAY_US_MAX, max(_AWAY_US_MIN, since_us // _AWAY_SHARE))
    return min(_PAUSE_US_MAX, max(_PAUSES_US[refusal], 2 * before_us))


class Backoff:
    """The pauses of all requests to one relay. During a row only one request at a time asks whether it goes on.

    It also knows how many requests left before a row, since that may be the reason for a ban.
    """

    def __init__(self, random: Random) -> None:
        self.next_us = 0
        """When the next request may leave."""
        self.repeat_us = 0
        """In silence, when the next repeat may leave: a path may queue the requests, also those that were given up."""
        self._random = random
        self._repeats = 0  # for lack of an answer, since the relay has last answered
        self._row = Row()
        self._about_bodies = False  # what refuses may look at bodies
        self._asks = False  # a request that leaves now shows whether the row goes on, so that it leaves alone
        self._pause_us = 0
        self._ban_us = 0  # an answer to a request that left later ends a ban; 0: there is none
        self._has_429 = False  # a refusal of the row has said that there were too many requests (429)
        self._like: Refusal | None = None  # of what looked like a ban last: an outage may look so, too
        self._like_us = 0  # when it ended
        self._counts = [0] * (2 * _SECONDS)  # requests in each of the latest seconds, by the second's number
        self._second = 0  # the latest of these seconds
        self._before = 0  # requests shortly before the row
        self._latest: Refusal | None = None  # the latest refusal of the row
        self._judged_us = 0  # when silence was last found to be a ban
        self._heard_us = -1  # when the newest request left that the relay has answered
        self._silent_us = 0  # when the oldest one left, after that, that got no answer in time; 0: none did

    @property
    def question(self) -> Question:
        """The question that the next request asks."""
        if not self._asks:
            return _QUESTIONS[self._repeats % len(_QUESTIONS)] if self._repeats >= len(_QUESTIONS) else Question.NONE
        return _QUESTIONS[self._row.count % len(_QUESTIONS)] if self._about_bodies else Question.ANY

    def on_refused(self, refusal: Refusal, sent_us: int, now: int, *, retry_after_us: int = 0) -> None:
        """Record the refusal of a request that was sent at `sent_us`, which may have asked for a pause."""
        if refusal not in (Refusal.CLOSED, Refusal.CUT):
            self._silent_us = 0
        elif refusal is Refusal.CUT and self._row.count and self._latest is Refusal.SILENT:
            refusal = Refusal.SILENT  # who drops a request cuts it, too, if more of it comes
        if not self._row.on_refused(sent_us, now):
            if refusal is Refusal.AWAY and self._latest is Refusal.SILENT and sent_us >= self._row.first_us:
                self._doubt_ban(now)
            self.next_us = max(self.next_us, now + retry_after_us if retry_after_us else 0)
            return
        row, self._latest = self._row, refusal
        if row.count == 1:
            self._before = self._sent_before(sent_us)
            self._pause_us, self._ban_us, self._has_429 = 0, 0, False
            if refusal is Refusal.SILENT:
                row.first_us = sent_us  # the answer to any request that left since then ends the silence
        self._has_429 |= refusal is Refusal.BANNED
        pause_us = max(retry_after_us, self._draw_pause_us(refusal, sent_us, now))
        self._about_bodies = refusal in _OF_BODIES
        self._asks = pause_us > 0 or refusal is Refusal.ASKED
        self.next_us = now + pause_us
        if refusal.is_ban and refusal is not Refusal.ASKED and pause_us >= _BAN_LEAST_US:
            self._ban_us = self.next_us
        elif refusal is Refusal.AWAY:
            self._ban_us = 0

    def _draw_pause_us(self, refusal: Refusal, sent_us: int, now: int) -> int:
        row = self._row
        self._pause_us = _pause_us(refusal, row.count, self._pause_us, now - row.first_us, sent_us - row.first_us)
        return self._pause_us - (self._pause_us // 4 * self._random.getrandbits(16) >> 16)

    def _doubt_ban(self, now: int) -> None:
        """Shorten the pause: a proxy has answered in the relay's place what seemed to be dropped. But if a silence has
        ended shortly before, a limiter may hold requests before it answers them."""
        if not self._is_again(Refusal.SILENT):
            self._latest, self._about_bodies, self._ban_us = Refusal.AWAY, True, 0
            self._like, self._like_us = Refusal.SILENT, now
            self.next_us = min(self.next_us, now + self._draw_pause_us(Refusal.AWAY, now, now))

    def _is_again(self, refusal: Refusal | None) -> bool:
        """Whether the row began shortly after the end of what looked like the same kind of ban."""
        return self._like is refusal and 0 <= self._row.first_us - self._like_us <= _AGAIN_US

    def on_sent(self, now: int, *, silent: int = 0) -> None:
        """Record that a request leaves. `silent`: it is a repeat for lack of an answer, and this number of exchanges
        has got none in time."""
        if now // SECOND_US != self._second:
            self._begin_second(now // SECOND_US)
        self._counts[self._second % len(self._counts)] += 1
        if silent:
            self._repeats += 1
            self.repeat_us = now + _REPEAT_US if silent > 1 else self.repeat_us
        if self._asks:
            self.next_us = now + min(_ASK_US_MAX, max(_ASK_US, self._pause_us))

    def on_silent(self, sent_us: int) -> None:
        """Record that the path has taken a request, sent at `sent_us`, and that no answer came in time."""
        if sent_us > self._heard_us and sent_us >= self._judged_us:
            self._silent_us = min(self._silent_us or sent_us, sent_us)

    @property
    def doubts_silence(self) -> bool:
        """Whether silence may be a ban, so that `on_silent` should be told before a request leaves."""
        return self._silent_us > 0 or self._ban_us > 0

    def judge_silence(self, now: int) -> None:
        """Treat silence as a ban once it has lasted, if many requests had left before it."""
        since_us = self._silent_us
        if since_us and now - since_us >= _SILENT_US:
            is_told = self._asks and self._latest is not Refusal.CUT
            if self._ban_us or (not is_told and self._sent_before(since_us) >= _LEAST):
                self._judged_us = now
                self.on_refused(Refusal.SILENT, max(since_us, self._row.newest_us), now)
            self._silent_us = 0

    def on_answered(self, sent_us: int, *, is_late: bool = False) -> int:
        """Record that the relay has answered a request that was sent at `sent_us`. If this ends a ban because of the
        number of requests, return the least time between two requests that does not earn another one; else 0.

        `is_late`: a deadline of its exchange has passed. During a silence, this shows that the path stood still, and
        goes on: who drops requests answers those from before in time.

        An outage may look like a ban, unless there was a 429. But it does not come again because requests do."""
        self.repeat_us = self._repeats = 0
        if sent_us > self._heard_us:
            self._heard_us = sent_us
        if sent_us >= self._silent_us:
            self._silent_us = 0
        shows_us = max(sent_us, self._row.first_us) if is_late and self._latest is Refusal.SILENT else sent_us
        if not self._row.on_answered(shows_us):
            return 0
        leaves_gap = 0 < self._ban_us <= sent_us and self._is_for_number(sent_us)
        self.next_us = self._pause_us = self._ban_us = 0
        self._asks = False
        return _SECONDS * SECOND_US * _SPARED // ((_SPARED - 1) * self._before) if leaves_gap else 0

    def _is_for_number(self, ended_us: int) -> bool:
        """Return whether the number of requests is the reason for the ban that has ended. Remember it as one."""
        least = _LEAST_AGAIN if self._has_429 else _LEAST
        if self._before < least:
            return False
        is_again = self._is_again(self._latest)
        self._like, self._like_us = self._latest, ended_us
        return is_again or (self._has_429 and self._before >= _LEAST)

    def _begin_second(self, second: int) -> None:
        for other in range(max(self._second + 1, second + 1 - len(self._counts)), second + 1):
            self._counts[other % len(self._counts)] = 0
        self._second = second

    def _sent_before(self, now: int) -> int:
        """Return how many requests left in the last seconds before that time, or at it."""
        last = now // SECOND_US
        first = max(last - _SECONDS, self._second + 1 - len(self._counts), 0)
        return sum(self._counts[second % len(self._counts)] for second in range(first, last + 1))
