"""One body on its way: attempts, silence, repeats (7.5, 7.8, 7.9). A lane has one at a time, and so has ATTACH."""

from random import Random

import msgspec

from tunnel.exchange.config import MILLISECOND_US, SECOND_US
from tunnel.exchange.events import Request
from tunnel.wire import Answer, Attach, Buffer, Exchange, encode_envelope

__all__ = ["ATTACH_LANE", "Attempt", "Flight", "repeat_delay"]

ATTACH_LANE = -1

# 7.8: the longest wait after the second failure that is told; it doubles up to the other.
_TOLD_US_MIN = 50 * MILLISECOND_US
_TOLD_US_MAX = SECOND_US
_MASK_FAILURES = 2  # 7.9: the second failure of the same body masks it
_RETRY_AFTER_US_MAX = 30 * SECOND_US  # 7.9
# On a path so slow that repeats come before the answer does, the oldest attempt is the one that will be answered: later
# ones make room for each other. It may be dead, too; so it is given up at this age, the one after it at twice that, ...
_ELDER_US_MIN = 8 * SECOND_US
_ELDER_US_MAX = 30 * SECOND_US  # the longest deadline (7.8)


class Attempt(msgspec.Struct):
    """One sending of the body. It is open until it failed, was abandoned or answered."""

    request_id: int
    sent_us: int
    repeat: int
    overdue: bool = False  # its silence was counted as a failure


def repeat_delay(longest_us: int, random: Random) -> int:
    """Three quarters to the whole of `longest_us`, at random: lanes and endpoints do not repeat in step (7.8)."""
    spread = longest_us // 4
    return longest_us - spread + (spread * random.getrandbits(16) >> 16)


class Flight:
    """A body that is sent until it is answered. It never gives up; its owner may.

    `wait_us` is the deadline of the first attempt, `repeat_us` the longest time between repeats in silence; if
    `repeat_us_max` is larger it doubles up to that. What is told to have failed is repeated sooner.
    """

    def __init__(
        self,
        message: Attach | Exchange,
        now: int,
        *,
        wait_us: int,
        repeat_us: int,
        attempts_max: int,
        repeat_us_max: int = 0,
    ) -> None:
        self.lane = message.lane if isinstance(message, Exchange) else ATTACH_LANE
        self.number = message.number if isinstance(message, Exchange) else message.generation
        self.pull = isinstance(message, Exchange) and message.pull
        self.hold_us = message.hold_ms * 1000 if isinstance(message, Exchange) else 0
        self.answer_bytes_max = message.answer_bytes_max if isinstance(message, Exchange) else message.body_bytes_max
        self.next_us = now
        """When the next attempt is to be sent unless an answer comes: at first now, then the deadline, then repeats."""
        self.sent = 0
        self.failures = 0
        self.last = ""  # failure, in words
        self.proven = False  # the first repeat did not wait for the deadline
        self.silent = False  # an attempt got no answer in time
        self.first_failure_us = 0  # age of the first attempt when it failed
        self.attempts: list[Attempt] = []  # open ones, oldest first
        self._message = message
        self._wait_us = wait_us
        self._repeat_us = repeat_us
        self._repeat_us_max = max(repeat_us, repeat_us_max)
        self._is_told = False  # that the newest attempt failed
        self._told_us = 0  # the longest wait from the next failure that is told to the repeat
        self._spread = 0  # drawn for that wait: of 2**16
        self._not_before_us = 0  # whoever answered asked to be left alone until then
        self._elder_us = _ELDER_US_MIN
        self._attempts_max = attempts_max
        self._body: list[Buffer] = encode_envelope(message)
        self.body_bytes = sum(map(len, self._body))

    def send(self, request_id: int, now: int, random: Random) -> tuple[Request, int | None]:
        """The next attempt, and the id of the one that makes room for it. Call it when `next_us` has come."""
        evicted = self._evict(now)
        if self.failures >= _MASK_FAILURES:
            self._body = encode_envelope(self._message, mask=random.getrandbits(8) or 1)
        if self.sent > 1 and not self._is_told:
            self._repeat_us = min(2 * self._repeat_us, self._repeat_us_max)
        self._is_told = False
        self.attempts.append(Attempt(request_id, now, self.sent))
        self.next_us = now + (repeat_delay(self._repeat_us, random) if self.sent else self._wait_us)
        self._spread = random.getrandbits(16)
        request = Request(request_id, self._body, self.lane, self.number, self.pull, self.sent, self.next_us)
        self.sent += 1
        return request, evicted

    def fail(self, request_id: int, text: str, retry_after_us: int, now: int) -> None:
        """An open attempt failed, and we were told. Its first repeat follows at once, later ones soon (7.8)."""
        attempt = self.take(request_id)
        if not attempt.overdue:
            self._count(attempt, text, now)
        if attempt.repeat == self.sent - 1:
            self._is_told = True
            self.next_us = min(self.next_us, now + self._next_told())
        self._not_before_us = max(self._not_before_us, now + min(retry_after_us, _RETRY_AFTER_US_MAX))
        self.next_us = max(self.next_us, self._not_before_us)

    def check_silence(self, now: int) -> bool:
        """Whether the newest attempt has been silent for too long, told once: that too is a failure."""
        if self.next_us > now or not self.attempts:
            return False
        attempt = self.attempts[-1]
        if attempt.overdue or attempt.repeat != self.sent - 1:
            return False
        attempt.overdue = self.silent = True
        self._count(attempt, f"no answer within {(now - attempt.sent_us) / SECOND_US:.1f} s", now)
        return True

    def prove(self, repeat_us: int) -> None:
        """The relay is known to have answered, or the path to have lost things: repeat at `repeat_us` already. It
        speaks of the first attempt; repeats have their own times."""
        repeat_us = max(repeat_us, self._not_before_us)
        if self.sent == 1 and repeat_us < self.next_us:
            self.next_us = repeat_us
            self.proven = True

    def answers(self, answer: Answer) -> bool:
        """Whether this is the answer to it (7.5)."""
        return answer.lane == self.lane and answer.number == self.number

    def take(self, request_id: int) -> Attempt:
        """Close the open attempt with this id."""
        for index, attempt in enumerate(self.attempts):
            if attempt.request_id == request_id:
                return self.attempts.pop(index)
        raise ValueError(f"request {request_id} is not an open attempt of this flight")

    def _count(self, attempt: Attempt, text: str, now: int) -> None:
        self.failures += 1
        self.last = text
        if attempt.repeat == 0:
            self.first_failure_us = now - attempt.sent_us

    def _next_told(self) -> int:
        """Widely spread: lanes that fail together look one after the other whether the path is back."""
        longest_us = self._told_us
        self._told_us = min(2 * longest_us, _TOLD_US_MAX) or _TOLD_US_MIN
        return longest_us - (longest_us // 4 * 3 * self._spread >> 16)

    def _evict(self, now: int) -> int | None:
        """Make room for an attempt: the id of the one that goes."""
        if len(self.attempts) < self._attempts_max:
            return None
        if self._attempts_max > 1 and now - self.attempts[0].sent_us < self._elder_us:
            return self.attempts.pop(1).request_id
        self._elder_us = min(2 * self._elder_us, _ELDER_US_MAX)
        return self.attempts.pop(0).request_id
