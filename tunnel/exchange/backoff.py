"""When requests to a relay may leave, after refusals that are not the relay's own (PROTOCOL 7.9).

All of an endpoint's requests to a relay share one back-off: those of its lanes, and those that open links. Otherwise
each of them would find out for itself, and repeats can keep a limit from ever ending: many bans are renewed by each
request that comes while they last.
"""

import enum
from random import Random

from tunnel.exchange.config import MILLISECOND_US, SECOND_US

__all__ = ["Backoff", "Question", "Refusal", "Row"]

_ASK_US = 500 * MILLISECOND_US  # the next request leaves no earlier than this after one that asks
_ASK_US_MAX = 4 * SECOND_US  # and no later, if no answer comes: a refusal would have come by then
_AWAY_US_MIN = 100 * MILLISECOND_US
_SILENT_US = SECOND_US
_AWAY_SHARE = 8  # while the relay may be away, a pause is this part of the time since the first refusal


class Refusal(enum.Enum):
    """Why a request came to nothing, although it did not reach the relay."""

    FORBIDDEN = enum.auto()  # 403: perhaps only for this body
    BANNED = enum.auto()  # 429
    ASKED = enum.auto()  # 407
    BUSY = enum.auto()  # 503 with Retry-After
    AWAY = enum.auto()  # any other answer that is not the relay's, such as 502
    CLOSED = enum.auto()  # no connection could be opened, or it was cut

    @property
    def is_ban(self) -> bool:
        """Whether something on the path asks for fewer requests."""
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
_OF_BODIES = frozenset({Refusal.FORBIDDEN, Refusal.AWAY, Refusal.CLOSED})
# The pause after the second refusal in a row. Later ones are twice as long as the one before, up to the maximum.
_PAUSES_US = {
    Refusal.FORBIDDEN: 50 * MILLISECOND_US,
    Refusal.BANNED: 100 * MILLISECOND_US,
    Refusal.ASKED: SECOND_US,
    Refusal.BUSY: SECOND_US,
}
# Most limits of a rate count the requests of one second. If requests are refused for longer, there is a ban. Many bans
# last 10 s.
_BAN_AFTER_US = SECOND_US
_BAN_US = 14 * SECOND_US
_PAUSE_US_MAX = 60 * SECOND_US
_ROW_GAP_US = 2 * _PAUSE_US_MAX  # an endpoint that uses a link may send other requests so rarely
_AWAY_US_MAX = SECOND_US  # so that streams go on within 2 s, when both endpoints have found the relay


class Row:
    """Refusals in a row: each one came for a request that left after the one before had come, and the relay has
    answered no request that left since the first one came. After two minutes without one, the next one begins a row."""

    def __init__(self) -> None:
        self.count = 0
        self.first_us = 0
        self._newest_us = 0

    def refused(self, sent_us: int, now: int) -> bool:
        """Record the refusal of a request that was sent at `sent_us`. Return whether it counts."""
        if self.count and sent_us < self._newest_us:
            return False
        if now - self._newest_us > _ROW_GAP_US:
            self.count = 0
        if not self.count:
            self.first_us = now
        self.count += 1
        self._newest_us = now
        return True

    def answered(self, sent_us: int) -> bool:
        """Record that the relay has answered a request that was sent at `sent_us`. Return whether this ends the row."""
        if not self.count or sent_us < self.first_us:
            return False
        self.count = 0
        return True


def _pause_us(refusal: Refusal, count: int, before_us: int, since_us: int) -> int:
    """Return the longest pause after a refusal, the `count`th in a row, when the first one was `since_us` ago."""
    if count < 2:
        return 0
    if refusal not in _PAUSES_US:
        return min(_AWAY_US_MAX, max(_AWAY_US_MIN, since_us // _AWAY_SHARE))
    is_long = refusal is Refusal.BANNED and since_us >= _BAN_AFTER_US
    return min(_PAUSE_US_MAX, max(_BAN_US if is_long else _PAUSES_US[refusal], 2 * before_us))


class Backoff:
    """The pauses of all requests to one relay. During a row only one request at a time asks whether it goes on."""

    def __init__(self, random: Random) -> None:
        self.next_us = 0
        """When the next request may leave."""
        self.repeat_us = 0
        """In silence, when the next repeat may leave: a path may queue the requests, also those that were given up."""
        self._random = random
        self._row = Row()
        self._about_bodies = False  # what refuses may look at bodies
        self._asks = False  # a request that leaves now shows whether the row goes on, so that it leaves alone
        self._pause_us = 0

    @property
    def question(self) -> Question:
        """The question that the next request asks."""
        if not self._asks:
            return Question.NONE
        return _QUESTIONS[self._row.count % len(_QUESTIONS)] if self._about_bodies else Question.ANY

    def refused(self, refusal: Refusal, sent_us: int, now: int, *, retry_after_us: int = 0) -> None:
        """Record the refusal of a request that was sent at `sent_us`, which may have asked for a pause."""
        if not self._row.refused(sent_us, now):
            self.next_us = max(self.next_us, now + retry_after_us if retry_after_us else 0)
            return
        row = self._row
        self._pause_us = _pause_us(refusal, row.count, self._pause_us, now - row.first_us)
        pause_us = max(retry_after_us, self._pause_us - (self._pause_us // 4 * self._random.getrandbits(16) >> 16))
        self._about_bodies = refusal in _OF_BODIES
        self._asks = pause_us > 0 or refusal is Refusal.ASKED
        self.next_us = now + pause_us

    def sent(self, now: int, *, in_silence: bool = False) -> None:
        """Record that a request leaves. `in_silence`: it is a repeat, and no answer to several exchanges has
        come in time."""
        if in_silence:
            self.repeat_us = now + _SILENT_US
        if self._asks:
            self.next_us = now + min(_ASK_US_MAX, max(_ASK_US, self._pause_us))

    def answered(self, sent_us: int) -> None:
        """Record that the relay has answered a request that was sent at `sent_us`."""
        self.repeat_us = 0
        if self._row.answered(sent_us):
            self.next_us = self._pause_us = 0
            self._asks = False
