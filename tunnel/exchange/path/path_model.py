"""The model of the path, learned from each answer: round trip, body sizes, lanes, hold, and when to pull."""

from random import Random

import msgspec

from tunnel.exchange.backoff import Backoff, Question, Row
from tunnel.exchange.config import SECOND_US, LaneConfig
from tunnel.exchange.flight import Attempt, Flight
from tunnel.exchange.path.body_formats import BodyFormats
from tunnel.exchange.path.held_pulls import HeldPulls
from tunnel.exchange.path.pacing import BodyLimit, HoldLimit, LaneCount
from tunnel.exchange.path.pulls import NEVER_US, Pulled, PullMode, PullPolicy
from tunnel.exchange.path.request_pace import RequestPace
from tunnel.exchange.path.roundtrip import RoundTrip
from tunnel.wire import CONFIRMATION_BYTES, EXCHANGE_BYTES, HEADER_SIZE, Attach, Attached, BodyFormat, Exchange

__all__ = ["ANSWER_BYTES_MIN", "AnswerSeen", "PathModel"]

# The first hold after packets have come. If its pull is lost without an error, data waits for about this long.
_HOLD_US_SHORT = SECOND_US

# 7.16: refusals lower the limit of answers to this. With the heads that relays and proxies write, and TLS, such an
# answer fits a packet of 1280 bytes, the least that every path carries (RFC 8200).
ANSWER_BYTES_MIN = 768
_FORM_BYTES = 256  # at most this much is added by the form around a body
_ATTEMPTS_MAX = 3  # attempts that may be open at once per lane: the newest two, and the oldest for slow paths
_ATTACH_ATTEMPTS_MAX = 8  # the same for ATTACH, which is small: the round trip may be unknown, and long
_BLIND_REPEAT_US_MAX = 8 * SECOND_US  # longest pause between repeats before the first sample, with one attempt at once


class AnswerSeen(msgspec.Struct):
    """The properties of an answer that say something about the path."""

    attempt: Attempt
    body_bytes: int
    empty: bool
    more: bool  # more packets wait at the relay
    held_pulls: int = 0  # pulls that the relay may have held while the exchange travelled


class PathModel:
    """Everything that the lanes have learned about the path. It stays valid when the endpoint attaches again."""

    def __init__(self, config: LaneConfig, random: Random) -> None:
        most = 1 if config.one_connection else config.lanes_max
        self._one_connection = config.one_connection
        self._fixed_bytes = EXCHANGE_BYTES  # the size of a request body without packets
        self.round_trip = RoundTrip()
        self.pace = RequestPace()
        self.backoff = Backoff(random)
        self.known_us = -1  # when the newest batch or request was sent that the relay has answered as one that knows us
        self._silent_until_us = 0  # what left before says nothing about times: no link had a receipt, so nothing came
        self.asked = Row()  # the 407s in a row
        self.formats = BodyFormats()
        self.lanes = LaneCount(min(config.lanes_start, most), most, adapt=config.adapt_lanes)
        self.doubted_bytes = 0  # the smallest body of a push in flight that may be too large (7.16); 0: none is
        self.up = BodyLimit(config.body_bytes_start, config.body_bytes_min, config.body_bytes_max)
        answer_bytes = min(config.body_bytes_start, config.answer_bytes_max)
        self.down = BodyLimit(answer_bytes, config.body_bytes_min, config.answer_bytes_max, ANSWER_BYTES_MIN)
        self.hold = HoldLimit(config.hold_us, config.hold_us_min, config.hold_us_start)
        self.held = HeldPulls()
        self.may_hold = True  # false while something else needs the turn of a held pull
        self.pulls = PullPolicy(min(config.hold_us_min, _HOLD_US_SHORT))

    @property
    def room_bytes(self) -> int:
        """The number of bytes of packets that fit a request body."""
        form_bytes = _FORM_BYTES if self.formats.now is BodyFormat.FORM else 0
        limit_bytes = self.up.limit_bytes
        if self.doubted_bytes:
            limit_bytes = min(limit_bytes, self.up.below(self.doubted_bytes))
        return max(HEADER_SIZE, limit_bytes - self._fixed_bytes - form_bytes)

    @property
    def holding(self) -> bool:
        """Whether one lane is always kept for a pull."""
        return self.pulls.mode is PullMode.HOLDING and self.lanes.count > 1

    @property
    def next_us(self) -> int:
        """When the next request may leave."""
        return max(self.pace.next_us, self.backoff.next_us)

    @property
    def question(self) -> Question:
        """The question that the next request asks about a row of refusals."""
        question = self.backoff.question
        # If there is a limit of requests, it is the more likely reason than a size.
        return Question.ANY if question.is_about_size and self.pace.gap_us else question

    def allows(self, now: int) -> bool:
        """Return whether a request may leave now. If not, note that one waits."""
        return self.pace.allows(now) and now >= self.backoff.next_us

    def on_sent(self, now: int, *, silent: int = 0) -> None:
        """Record that a request leaves. `silent`: it is a repeat for lack of an answer, and this number of exchanges
        has got none in time."""
        self.pace.on_sent(now, self.backoff.next_us)
        self.backoff.on_sent(now, silent=silent)

    def on_heard(self, sent_us: int, now: int, *, is_late: bool = False) -> None:
        """Record that the relay has answered a request that was sent at `sent_us`, whatever it said. `is_late`: a
        deadline of its exchange has passed."""
        self._silent_until_us = min(self._silent_until_us, now)
        gap_us = self.backoff.on_answered(sent_us, is_late=is_late)
        if gap_us:
            self.pace.on_banned(gap_us, now)
        self.asked.on_answered(sent_us)

    def on_link_silent(self) -> None:
        """Record that a link has no receipt in time: until something is answered, requests wait for the end of this
        silence, and not in a queue."""
        self._silent_until_us = NEVER_US

    def on_known(self, sent_us: int) -> None:
        """Record that the relay has answered, as one that knows us, what was sent at `sent_us`."""
        self.known_us = max(self.known_us, sent_us)

    def confirms_streams(self) -> None:
        """Leave room in each request for the confirmation of a stream."""
        self._fixed_bytes = EXCHANGE_BYTES + CONFIRMATION_BYTES

    def limit_to(self, attached: Attached) -> None:
        """Keep to the limits of the relay."""
        self.lanes.limit_to(attached.lanes)
        self.up.limit_to(attached.body_bytes_max)
        self.hold.limit_to(attached.hold_ms_max * 1000)
        self.settle_interval(attached.pull_interval_ms * 1000)

    def settle_interval(self, interval_us: int) -> None:
        """Set the interval of pulls (0: no interval) and reset the pull policy."""
        # With one lane, a held pull would keep every push waiting.
        can_hold = self.may_hold and self.lanes.count > 1 and self.hold.hold_us > 0 and self.held.most > 0
        self.pulls.configure(interval_us, can_hold=can_hold, held_max=self.held.most)

    def flight(self, message: Attach | Exchange, now: int) -> Flight:
        """Create the flight of a message, with a deadline and repeats that suit the path (7.8)."""
        hold_ms = message.hold_ms if isinstance(message, Exchange) and not message.stream else 0
        attempts_max = _ATTACH_ATTEMPTS_MAX if isinstance(message, Attach) else _ATTEMPTS_MAX
        if self._one_connection:
            attempts_max = 1
        flight = Flight(
            message,
            now,
            wait_us=self.round_trip.deadline_us + hold_ms * 1000,
            repeat_us=self.round_trip.repeat_us(attempts_max),
            repeat_us_max=_BLIND_REPEAT_US_MAX if attempts_max == 1 and not self.round_trip.srtt_us else 0,
            attempts_max=attempts_max,
            queued_us=self.round_trip.queue_us(now),
            body_format=self.formats.usual(streams=isinstance(message, Exchange) and message.stream),
        )
        if self.formats.is_due(flight.body_bytes, now):
            flight.format = BodyFormat.PLAIN
        return flight

    def on_passed(self, flight: Flight, attempt: Attempt, now: int) -> None:
        """Learn from an attempt that was answered in which format bodies pass (7.19)."""
        self.known_us = max(self.known_us, attempt.sent_us)
        self.formats.on_passed(attempt.format, flight.body_bytes, now)

    def on_streamed(self, attempt: Attempt, held_pulls: int, now: int) -> None:
        """Learn from the first envelope of a stream, which the relay sends at once."""
        self.on_heard(attempt.sent_us, now)
        self.pace.on_answered(attempt.sent_us, now)
        self.on_timed(attempt, now)
        self._learn_held(attempt, held_pulls, now)

    def on_timed(self, attempt: Attempt, now: int) -> None:
        """Learn how long the relay's answer took to an attempt that it answers at once."""
        if attempt.sent_us >= self._silent_until_us:
            self.round_trip.sample(now - attempt.sent_us, now)

    def on_answered(self, flight: Flight, arrived: AnswerSeen, now: int) -> bool:
        """Learn from the answer to a flight. Return whether a lane was added."""
        took_us = now - arrived.attempt.sent_us
        self.pace.on_answered(arrived.attempt.sent_us, now)
        first = flight.sent == 1
        full = arrived.more or arrived.body_bytes * 4 >= arrived.attempt.answer_bytes_max * 3
        self.pulls.on_answered(Pulled(flight.pull, arrived.empty, full, flight.hold_us, took_us, not first), now)
        if flight.hold_us:
            self._learn_hold(flight, arrived.attempt, took_us, now)
            if arrived.empty and self.held.on_expired(self.lanes.count, now):
                self.settle_interval(self.pulls.interval_us)
            return False
        self.on_timed(arrived.attempt, now)
        self._learn_held(arrived.attempt, arrived.held_pulls, now)
        return first and self._learn_sizes(flight, arrived, took_us, now)

    def _learn_held(self, attempt: Attempt, held_pulls: int, now: int) -> None:
        if self.held.on_answered(attempt.sent_us, self.round_trip.least_us, self.lanes.count, held_pulls, now):
            self.settle_interval(self.pulls.interval_us)

    def _learn_hold(self, flight: Flight, attempt: Attempt, took_us: int, now: int) -> None:
        if took_us > flight.hold_us and attempt.sent_us >= self._silent_until_us:
            self.round_trip.note_wait(took_us - flight.hold_us, now)
        if flight.sent == 1:
            self.hold.on_endured(took_us)
        elif flight.sent == 2 and attempt.repeat == 1:
            # The first repeat was answered, so the path was fine and only the held response was cut.
            if not flight.repeats_early:
                self.hold.cut(flight.first_failure_us)
            elif flight.is_answer_lost:
                self.hold.cut(attempt.sent_us - flight.first_sent_us)

    def _learn_sizes(self, flight: Flight, arrived: AnswerSeen, took_us: int, now: int) -> bool:
        least_us = self.round_trip.least_us
        extra_us = took_us - least_us
        sent_us = arrived.attempt.sent_us
        pressed = False
        for limit, body_bytes, more in (
            (self.up, flight.body_bytes, False),
            (self.down, arrived.body_bytes, arrived.more),
        ):
            # If more waits, a packet that did not fit left so much room.
            if limit.is_full(body_bytes) or (more and 2 * body_bytes >= limit.limit_bytes):
                pressed |= limit.on_answered(sent_us, extra_us, now)
        more = pressed and self.lanes.on_pressed(sent_us, extra_us, least_us, now)
        if more and self.pulls.mode is PullMode.POLLING:
            self.settle_interval(self.pulls.interval_us)
        return more
