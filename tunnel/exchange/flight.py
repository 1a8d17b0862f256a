"""One body in flight: its attempts, deadlines and repeats. Each lane, and ATTACH, has one at a time.

Clauses 7.5, 7.8, 7.9 of docs/PROTOCOL.md.
"""

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from tunnel.exchange.backoff import Question
from tunnel.exchange.config import MILLISECOND_US, SECOND_US
from tunnel.exchange.envelope_stream import EnvelopeStream
from tunnel.exchange.events import Request
from tunnel.wire import Answer, Attach, BodyFormat, Buffer, Exchange, encode_envelope

__all__ = ["ATTACH_LANE", "Attempt", "Flight", "most_due", "repeat_delay"]

ATTACH_LANE = -1

# 7.8: the longest wait after the second reported failure; it doubles with each further one, up to the maximum.
_TOLD_US_MIN = 50 * MILLISECOND_US
_TOLD_US_MAX = SECOND_US
_MASK_FAILURES = 2  # 7.9: the body is masked from its second failure on
_RETRY_AFTER_US_MAX = 30 * SECOND_US  # 7.9
# On a path so slow that repeats leave before the answer comes, the oldest attempt will be answered first. Repeats
# therefore replace younger attempts. But the oldest attempt may be dead: it is given up at this age, the next oldest at
# twice this age, and so on up to the maximum.
_ELDER_US_MIN = 8 * SECOND_US
_ELDER_US_MAX = 30 * SECOND_US  # also the longest interval between repeats (7.8)
# A full path queues each repeat after the earlier ones, and a body that is repeated faster than the path can carry it
# never arrives. So the time between repeats grows up to this much for each byte of the body: 64 kbit/s.
_BYTE_US = 125


class Attempt(msgspec.Struct):
    """One transmission of the body. It stays open until it fails, is abandoned or is answered."""

    request_id: int
    sent_us: int
    repeat: int
    format: BodyFormat
    answer_bytes_max: int
    is_open: bool = False  # a connection was opened for it
    overdue: bool = False  # its missing answer was counted as a failure
    body: EnvelopeStream | None = None  # what came of a streamed answer, until its first envelope is whole


def repeat_delay(longest_us: int, random: Random) -> int:
    """Return a random time from three quarters of `longest_us` to the whole of it (7.8).

    The randomness keeps lanes and endpoints from repeating at the same moment.
    """
    spread = longest_us // 4
    return longest_us - spread + (spread * random.getrandbits(16) >> 16)


def most_due(
    flights: "Iterable[Flight]", now: int, repeat_us: int, question_of: Callable[[], Question]
) -> "Flight | None":
    """Return the flight whose next attempt is to leave, or None. In silence, none is repeated before `repeat_us`.

    If there is a question, this attempt asks it. A flight that was refused for its body, or that the relay holds, would
    be a bad choice.
    """
    best: Flight | None = None
    others: list[Flight] = []
    for flight in flights:
        if flight.next_us > now or (flight.silent and repeat_us > now):
            continue  # this is `due_us`, without a call
        if best is None:
            best = flight
        else:
            others.append(flight)
    if best is not None and others:
        question = question_of()
        for flight in others:
            if _order(flight, question) < _order(best, question):
                best = flight
    return best


def _order(flight: "Flight", question: Question) -> tuple[int, bool, int]:
    if question is Question.NONE:
        return 0, False, flight.next_us
    return flight.body_bytes if question.is_about_size else flight.foreign, flight.hold_us > 0, flight.next_us


class Flight:
    """A body that is sent until it is answered. A flight never gives up by itself; its owner may end it.

    `wait_us` is the time from the first attempt to its deadline. `repeat_us` is the longest time between repeats while
    no answer comes. It doubles with each repeat after the first, up to `repeat_us_max` or what the size of the body
    allows, whichever is larger. A repeat after a reported failure leaves sooner, and doubles nothing. Both times are at
    least `queued_us`, for which the path may queue requests, until an exchange that left later is answered: then the
    attempt is in no queue.

    One thing because the fate of each attempt decides when, in which format and with which limit the same body leaves
    again.
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
        queued_us: int = 0,
        body_format: BodyFormat = BodyFormat.PLAIN,
    ) -> None:
        self.lane = message.lane if isinstance(message, Exchange) else ATTACH_LANE
        self.number = message.number if isinstance(message, Exchange) else message.generation
        self.pull = isinstance(message, Exchange) and message.pull
        self.stream = isinstance(message, Exchange) and message.stream
        self.confirms = message.confirms if isinstance(message, Exchange) else None
        # A pull whose answer may be a stream is answered at once.
        self.hold_us = message.hold_ms * 1000 if isinstance(message, Exchange) and not message.stream else 0
        self.answer_bytes_max = message.answer_bytes_max if isinstance(message, Exchange) else message.body_bytes_max
        self.next_us = now
        """When the next attempt leaves unless an answer comes: the first at once, each other one by the newest
        attempt's deadline."""
        self.sent = 0
        self.failures = 0
        self.last = ""  # the latest failure, in words
        self.repeats_early = False  # the first repeat leaves before the deadline (7.7)
        self.is_answer_lost = False  # the relay has answered, and the answer did not come
        self.silent = False  # an attempt got no answer in time
        self.refusals = 0  # attempts that were reported as failed
        self.format = body_format  # of the next attempt (7.19); the owner may let the first one try another
        self.usual_format = body_format  # the format of the path when the flight began, or when it was last repeated
        self.has_response = False  # an attempt got a response, although not the answer
        self.foreign = 0  # attempts that an intermediary refused
        self.altered = 0  # attempts of which the body, or the answer, arrived altered
        self.unexplained = 0  # failures for which neither the relay nor a limit of requests is known to be the reason
        self.passed_between = 0  # unexplained failures before which a smaller body had passed, after the one before
        self.is_answer_doubtful = False  # the next attempt asks for the smallest answer: a larger one may not pass
        self.smaller_passed = False  # a smaller body has passed since the last unexplained failure
        self.first_sent_us = now
        self.answer_bytes_full = self.answer_bytes_max  # the limit that the first attempt asks for
        self.first_failure_us = 0  # age of the first attempt when it failed
        self.attempts: list[Attempt] = []  # open attempts, oldest first
        self._failed_us = 0  # time of the last unexplained failure
        self._message = message
        self._wait_us = wait_us
        self._repeat_us = self._base_us = repeat_us
        self._queued_us = queued_us  # 0: no request was seen in a queue
        self._usual_us = now  # the deadline of the newest attempt on a path that queues nothing
        self._is_reported = False  # the newest attempt was reported as failed
        self._is_awaited = False  # the newest attempt may be in a queue: there is no sign of its loss or fate
        self._reported_wait_us = 0  # the longest wait from the next reported failure to the repeat
        self._spread = 0  # random number below 2**16 for that wait
        self._not_before_us = 0  # a response asked us to wait until this time (Retry-After)
        self._oldest_age_us = _ELDER_US_MIN
        self._attempts_max = attempts_max
        self._body: list[Buffer] = encode_envelope(message)
        self.body_bytes = sum(map(len, self._body))
        self._repeat_us_max = max(repeat_us, repeat_us_max, min(_ELDER_US_MAX, self.body_bytes * _BYTE_US))

    def send(
        self, request_id: int, now: int, random: Random, body_format: BodyFormat | None = None
    ) -> tuple[Request, int | None]:
        """Return the next attempt, and the id of the attempt that it replaces, if any. Call it when `next_us` comes."""
        evicted = self._evict(now)
        if self.foreign or self.failures >= _MASK_FAILURES:
            self._body = encode_envelope(self._message, mask=random.getrandbits(8) or 1)
        if self.sent > 1 and not self._is_reported:
            self._repeat_us = min(2 * self._repeat_us, self._repeat_us_max)
        self._is_reported, self._is_awaited = False, True
        body_format = body_format or self.format
        self.attempts.append(Attempt(request_id, now, self.sent, body_format, self.answer_bytes_max))
        self._set_deadline(now, random)
        self._spread = random.getrandbits(16)
        request = Request(
            request_id,
            self._body,
            self.lane,
            self.number,
            self.pull,
            self.sent,
            body_format,
            self.next_us,
            self.stream,
            self.answer_bytes_max if self.pull and not self.hold_us and not self.stream else 0,
        )
        if not self.sent:
            self.first_sent_us = now
            self.format = self.usual_format
        self.sent += 1
        return request, evicted

    def _set_deadline(self, now: int, random: Random) -> None:
        """Set when the next attempt is due if the one that leaves now gets no answer."""
        if self.sent:
            longest_us = max(self._repeat_us, self._queued_us)
            delay_us = repeat_delay(longest_us, random)
            self._usual_us = now + delay_us * self._repeat_us // longest_us
        else:
            delay_us = max(self._wait_us, self._queued_us + self.hold_us if self._queued_us else 0)
            self._usual_us = now + self._wait_us
        self.next_us = now + delay_us

    def due_us(self, repeat_us: int) -> int:
        """Return when the next attempt is due, if none may leave before `repeat_us` in silence."""
        return max(self.next_us, repeat_us) if self.silent else self.next_us

    def fail(self, request_id: int, text: str, retry_after_us: int, now: int, *, explained: bool = False) -> None:
        """Record that an open attempt was reported as failed.

        The repeat leaves at once after the first such failure, and soon after later ones (7.8). `explained`: the relay,
        or a limit of requests, is known to be the reason.
        """
        attempt = self.take(request_id)
        self.refusals += 1
        if not attempt.overdue:
            self._count(attempt, text, now)
            if not explained:
                self._wonder(now)
        if attempt.repeat == self.sent - 1:
            self._is_reported, self._is_awaited = True, False
            self.next_us = min(self.next_us, now + self._next_reported_wait())
        self._not_before_us = max(self._not_before_us, now + min(retry_after_us, _RETRY_AFTER_US_MAX))
        self.next_us = max(self.next_us, self._not_before_us)

    def ask_for(self, size_bytes: int) -> None:
        """Ask for at most this many bytes in the next repeats. The relay answers with as many of the same packets as
        fit."""
        if isinstance(self._message, Exchange) and size_bytes != self.answer_bytes_max:
            self._message = msgspec.structs.replace(self._message, answer_bytes_max=size_bytes)
            self._body = encode_envelope(self._message)
            self.answer_bytes_max = size_bytes

    def compare(self, body_bytes: int, sent_us: int) -> None:
        """Learn that another exchange with a body of this size passed, by an attempt that was sent at `sent_us`."""
        if body_bytes >= self.body_bytes:
            self.unexplained = self.passed_between = 0
            self.smaller_passed = False
        elif sent_us >= self._failed_us:
            self.smaller_passed = True

    def check_silence(self, now: int) -> bool:
        """Count a failure if the newest attempt has passed its deadline. Return True once for each such attempt."""
        if self.next_us > now or not self.attempts:
            return False
        attempt = self.attempts[-1]
        if attempt.overdue or attempt.repeat != self.sent - 1:
            return False
        attempt.overdue = self.silent = True
        self._count(attempt, f"no answer within {(now - attempt.sent_us) / SECOND_US:.1f} s", now)
        self._wonder(now)
        return True

    def repeat_early(self, repeat_us: int, *, is_answered: bool = False) -> None:
        """Send the first repeat at `repeat_us` instead of at the deadline.

        The caller knows that the relay has answered (`is_answered`), or that the path may have lost messages. Call it
        for the first attempt; it has no effect on later ones.
        """
        repeat_us = max(repeat_us, self._not_before_us)
        if self.sent == 1 and repeat_us < self.next_us:
            self.next_us = repeat_us
            self.repeats_early, self._is_awaited = True, False
            self.is_answer_lost = is_answered

    def hurry(self, sent_us: int, repeat_us: int) -> None:
        """Repeat soon if the newest attempt is late, since another exchange that left at `sent_us` was answered.

        A silent exchange is repeated at `repeat_us`, unless its newest attempt left so late that it might have been
        answered by then: the path works again. Any other one is not in a queue if it left before: its deadline is
        the usual one (7.8).
        """
        left_us = self.attempts[-1].sent_us if self.attempts else sent_us
        if self.silent and left_us < sent_us - self._base_us:
            due_us = repeat_us
        elif self._is_awaited and left_us < sent_us:
            due_us = max(self._usual_us, repeat_us)
        else:
            return
        self.next_us = min(self.next_us, max(due_us, self._not_before_us))
        self._is_awaited = False

    def wait_for_queue(self, queued_us: int) -> None:
        """Leave the newest attempt this time, without the hold, since the path has been seen to queue requests."""
        if self._is_awaited and self.attempts:
            self.next_us = max(self.next_us, self.attempts[-1].sent_us + queued_us + self.hold_us)

    def answers(self, answer: Answer) -> bool:
        """Return whether `answer` is the answer to this body (7.5)."""
        return answer.lane == self.lane and answer.number == self.number

    def attempt(self, request_id: int) -> Attempt:
        """Return the open attempt with this id."""
        newest = self.attempts[-1]
        if newest.request_id == request_id:  # the usual case
            return newest
        return next(attempt for attempt in self.attempts if attempt.request_id == request_id)

    def take(self, request_id: int) -> Attempt:
        """Remove the open attempt with this id and return it."""
        for index, attempt in enumerate(self.attempts):
            if attempt.request_id == request_id:
                return self.attempts.pop(index)
        raise ValueError(f"request {request_id} is not an open attempt of this flight")

    def _count(self, attempt: Attempt, text: str, now: int) -> None:
        self.failures += 1
        self.last = text
        if attempt.repeat == 0:
            self.first_failure_us = now - attempt.sent_us

    def _wonder(self, now: int) -> None:
        """Count a failure whose reason may be the size of the body, or of the answer."""
        self._failed_us = now
        self.unexplained += 1
        self.passed_between += self.smaller_passed
        self.smaller_passed = False

    def _next_reported_wait(self) -> int:
        """Return the wait before the repeat of an attempt that was reported as failed.

        The waits are spread widely, so that lanes that failed together try the path one after the other.
        """
        longest_us = self._reported_wait_us
        self._reported_wait_us = min(2 * longest_us, _TOLD_US_MAX) or _TOLD_US_MIN
        return longest_us - (longest_us // 4 * 3 * self._spread >> 16)

    def _evict(self, now: int) -> int | None:
        """Make room for another attempt. Return the id of the attempt that is given up, if any."""
        if len(self.attempts) < self._attempts_max:
            return None
        if self._attempts_max > 1 and now - self.attempts[0].sent_us < self._oldest_age_us:
            return self.attempts.pop(1).request_id
        self._oldest_age_us = min(2 * self._oldest_age_us, _ELDER_US_MAX)
        return self.attempts.pop(0).request_id
