"""Reactions to failures of one exchange: another format, smaller answers, giving up, smaller bodies.

Clauses 7.9, 7.16, 7.19 of docs/PROTOCOL.md.

Many paths refuse large bodies without the status 413: with another status, a reset, or silence. An exchange then fails
repeatedly. An outage looks the same, except that smaller bodies fail, too.
"""

from tunnel.exchange.backoff import Question, Refusal
from tunnel.exchange.config import KIB, SECOND_US, LaneConfig
from tunnel.exchange.flight import ATTACH_LANE, Attempt, Flight
from tunnel.exchange.lanes.laneset import LaneSet
from tunnel.exchange.lanes.registration import Registration
from tunnel.exchange.lanes.responses import Outcome, Verdict
from tunnel.exchange.path.path_model import ANSWER_BYTES_MIN, PathModel
from tunnel.wire import TEXT_FORMATS, Answer, BodyFormat

__all__ = ["Refusals"]

_FOREIGN_MAX = 8  # 7.9: answers of an intermediary after which a batch is given up, about 2 s after the first of them
_ALTERED_FIRST = 3  # 7.19: the number of altered bodies from which on formats change; until then, masks do
_MASKED_FIRST = 2  # 7.19: after the first attach, the number of refusals from which on formats change
_UNEXPLAINED_MAX = 8  # 7.16: the same for any failures, if smaller bodies passed in between
_SILENT_MAX = 6  # 7.16: the same if no attempt got an answer or a reset: these failures take seconds each
_PASSED_BETWEEN = 2  # at least this number of these failures must have come after a smaller body had passed
_LOWER_FAILURES = 4  # 7.16: from this failure on, a push is doubted, and every second repeat asks for a small answer
_SILENT_FAILURES = 2  # 7.16: the same if no attempt got an answer or a reset
# 7.16: where answers are refused, not lost, the smallest that is asked for: packets of most sizes fit it whole.
_REFUSED_ANSWER_BYTES = 4 * KIB
_PROOF_US = 30 * SECOND_US  # 7.16: two exchanges prove together that answers are too large, within this time
_ASKED_LEAST = 3  # 7.9: 407s in a row that are needed for the end
_ASKED_US = 60 * SECOND_US  # and their least time
_ANSWER_FORMAT_US = 10 * SECOND_US  # 7.19: a pull tries other formats after this time; most outages are shorter
_HOLD_US_DOUBT = SECOND_US  # 7.16: the longest hold of a pull while the size of a push is in doubt


class Refusals:
    """Decides what follows from the failures of exchanges. It learns the sizes that pass."""

    def __init__(self, config: LaneConfig, path: PathModel, registration: Registration) -> None:
        self._wait = config.wait
        self._path = path
        self._registration = registration
        self._refused_format: BodyFormat | None = None  # of the latest refusal; None: something has passed since
        self._lowered_us = -1
        """When an exchange passed only with the smallest answer, while more waited; -1: never, or a larger answer has
        passed since."""
        self._passed_bytes = 0  # the most that an answer has brought since the limit of answers was lowered

    # the answers of intermediaries, and the refusals of the relay

    def judge(self, flight: Flight, request_id: int, outcome: Outcome, now: int, *, attaching: bool) -> Verdict:
        """Return what a response that is neither ANSWER nor ATTACHED means for its exchange: FATAL, STALE, UNKNOWN,
        REPEAT, or FOREIGN or TOO_LARGE if the batch is to be given up."""
        flight.has_response = True
        was_attached = self._registration.was_attached
        if not was_attached and outcome.is_definite and self._wait is False:
            outcome.verdict = Verdict.FOREIGN
        elif not was_attached and outcome.is_page and self._wait:
            outcome.verdict = Verdict.REPEAT
        sent_us = flight.attempt(request_id).sent_us
        if outcome.refusal is not None:
            told_us = outcome.retry_after_us if outcome.refusal is not Refusal.AWAY else 0
            self._path.backoff.on_refused(outcome.refusal, sent_us, now, retry_after_us=told_us)
        if outcome.too_many is not None and was_attached:
            self._path.pace.on_refused(sent_us, now, surely=outcome.too_many)
            self._path.held.on_refused(now)
        if self._is_old_relay(flight, request_id, outcome):
            return Verdict.REPEAT
        self._try_other_format(flight, request_id, outcome)
        is_push = not attaching and not flight.pull
        match outcome.verdict:
            case Verdict.ASKED:
                return Verdict.FATAL if not was_attached or self._goes_on_asking(sent_us, now) else Verdict.REPEAT
            case Verdict.FOREIGN if not was_attached:
                return Verdict.FATAL if flight.foreign >= self._path.formats.count else Verdict.REPEAT
            case Verdict.FOREIGN if not is_push or flight.foreign < _FOREIGN_MAX:
                return Verdict.REPEAT
            case Verdict.FOREIGN if flight.passed_between + flight.smaller_passed >= _PASSED_BETWEEN:
                self._path.up.on_refused(flight.body_bytes, now)
            case Verdict.TOO_LARGE if not is_push or not self._path.up.on_refused(flight.body_bytes, now):
                return Verdict.REPEAT
            case Verdict.UNKNOWN if attaching:
                return Verdict.REPEAT
        return outcome.verdict

    def _goes_on_asking(self, sent_us: int, now: int) -> bool:
        """Record a 407. Return whether the proxy has asked for so long that the password must have become wrong."""
        asked = self._path.asked
        return asked.on_refused(sent_us, now) and asked.count >= _ASKED_LEAST and now - asked.first_us >= _ASKED_US

    def _is_old_relay(self, flight: Flight, request_id: int, outcome: Outcome) -> bool:
        """Return whether the relay has answered that it does not understand text; then use no text from now on."""
        if not outcome.is_other_type or flight.attempt(request_id).format not in TEXT_FORMATS:
            return False
        self._path.formats.unknown_to_relay()
        flight.format = self._path.formats.now
        return True

    def _try_other_format(self, flight: Flight, request_id: int, outcome: Outcome) -> None:
        """Choose another format for the next attempt, if this one may have been refused for its format (7.19).

        After the first attach, the content of the body is the more likely reason, so a masked body is tried first.
        """
        flight.foreign += outcome.verdict is Verdict.FOREIGN
        flight.altered += outcome.is_altered
        attached = self._registration.was_attached
        tried = flight.attempt(request_id).format
        if outcome.is_altered and flight.altered >= _ALTERED_FIRST:
            self._path.formats.on_refused(tried, flight.body_bytes)
            if flight.format is tried:
                flight.format = self._after_binary(flight)
        if outcome.verdict is Verdict.FOREIGN if attached else outcome.may_be_format:
            self._path.formats.on_refused(tried, flight.body_bytes)
            if self._refused_format is None or tried is not flight.usual_format:
                self._refused_format = tried
            if flight.format is tried and not (attached and flight.foreign < _MASKED_FIRST):
                flight.format = self._path.formats.after(tried, streams=flight.stream)

    # sizes

    def is_too_large(self, flight: Flight, now: int) -> bool:
        """Learn that an attempt of this exchange failed. Return whether its body is to be given up for its size."""
        limited = self._path.pace.gap_us > 0  # if so, the number of requests is the more likely reason
        is_doubted = flight.unexplained >= (_LOWER_FAILURES if flight.refusals else _SILENT_FAILURES)
        flight.is_answer_doubtful = is_doubted and flight.unexplained % 2 == 0 and not limited
        is_push = not flight.pull and flight.lane != ATTACH_LANE
        if flight.unexplained > (_doubted_from(flight) if is_push else _LOWER_FAILURES) and flight.unexplained % 2:
            self._doubt_format(flight, now)
        return is_push and self._is_proven_too_large(flight, now) and self._path.up.on_refused(flight.body_bytes, now)

    def _is_proven_too_large(self, flight: Flight, now: int) -> bool:
        """Return whether smaller bodies passed while this one failed, so often that its size must be the reason."""
        if self._path.up.is_refused(flight.body_bytes, now):
            return _is_doubtful(flight) and flight.passed_between > 0
        most = _UNEXPLAINED_MAX if flight.refusals else _SILENT_MAX
        return flight.unexplained >= most and flight.passed_between >= _PASSED_BETWEEN

    def prepare(self, flight: Flight) -> BodyFormat:
        """Let the next attempt of a flight use what the path has taught since the flight failed. Return its format.

        A question about size asks for the smallest answer.
        """
        if not flight.failures or flight.lane == ATTACH_LANE:
            return flight.format
        usual = self._path.formats.usual(streams=flight.stream)
        if flight.usual_format is not usual:
            flight.format = flight.usual_format = usual
        question = self._path.question
        lower = flight.is_answer_doubtful or question.is_about_size
        flight.answer_bytes_full = min(flight.answer_bytes_full, self._path.down.limit_bytes)
        least = _REFUSED_ANSWER_BYTES if flight.refusals else ANSWER_BYTES_MIN
        flight.ask_for(min(least, flight.answer_bytes_full) if lower else flight.answer_bytes_full)
        if question is Question.SMALLEST_AS_USUAL:
            return usual
        if question is not Question.NONE and self._refused_format is not None and flight.foreign >= _MASKED_FIRST:
            following = self._path.formats.after(self._refused_format, streams=flight.stream)
            if following is usual:  # another question asks about it
                following = self._path.formats.after(usual, streams=flight.stream)
            flight.format = following
        return flight.format

    def _doubt_format(self, flight: Flight, now: int) -> None:
        """Choose another format after many unexplained failures: a filter may be silent, or reset connections.

        An outage looks the same, except that smaller bodies fail, too. Nothing shows this of the first ATTACH, nor
        where every answer is refused: the plain format is soon tried again, whichever passes.
        """
        formats, is_proven = self._path.formats, flight.passed_between + flight.smaller_passed > 0
        is_first_attach = not self._registration.was_attached
        is_long = flight.pull and now - flight.first_sent_us >= _ANSWER_FORMAT_US
        if flight.foreign or not (is_proven or is_long or (is_first_attach and not flight.has_response)):
            return
        if is_proven:
            formats.on_refused(flight.format, flight.body_bytes)
        flight.format = self._after_binary(flight)

    def _after_binary(self, flight: Flight) -> BodyFormat:
        """Return the format to try next where the bytes of the body are the reason: a form holds the same bytes."""
        tried = BodyFormat.FORM if flight.format is BodyFormat.PLAIN else flight.format
        return self._path.formats.after(tried, streams=flight.stream)

    def doubts(self, lanes: LaneSet) -> bool:
        """Return whether the size of a push in flight is in doubt, because the push keeps failing."""
        return any(_is_doubtful(flight) for flight in lanes.flights())

    def review_sizes(self, lanes: LaneSet) -> None:
        """Let pushes be smaller than each one in flight that is in doubt, once a smaller body has passed."""
        doubted = [
            flight.body_bytes
            for flight in lanes.flights()
            if _is_doubtful(flight) and (flight.smaller_passed or flight.passed_between)
        ]
        self._path.doubted_bytes = min(doubted, default=0)

    def hold_us(self, wanted_us: int, lanes: LaneSet) -> int:
        """Return the hold that a pull may ask for: a long one would show too late that small bodies pass, or that
        requests are refused no more."""
        if self._path.backoff.question is not Question.NONE:
            return 0
        doubtful = [flight for flight in lanes.flights() if _is_doubtful(flight)]
        if not doubtful:
            return wanted_us
        return min(wanted_us, _HOLD_US_DOUBT) if all(flight.smaller_passed for flight in doubtful) else 0

    def wants_probe(self, flight: Flight, lanes: LaneSet) -> bool:
        """Return whether to send a pull to find out if small bodies pass.

        This is so if this push keeps failing, no smaller body has passed since, and no pull in flight will show it.
        """
        if not _is_doubtful(flight) or flight.smaller_passed:
            return False
        return not any(other.pull and (other.failures or not other.hold_us) for other in lanes.flights())

    def on_passed(
        self, flight: Flight, attempt: Attempt, answer: Answer, data_bytes: int, lanes: LaneSet, now: int
    ) -> None:
        """Learn from an exchange, and from the attempt of it that was answered with so many bytes of packets."""
        self._refused_format, compared = None, False
        for lane in lanes.lanes:
            other = lane.flight
            if other is not None and other.unexplained and other is not flight:
                other.compare(flight.body_bytes, attempt.sent_us)
                compared = True
        if compared or self._path.doubted_bytes:
            self.review_sizes(lanes)
        if attempt.format is not flight.usual_format:
            return  # the format may be the reason why other attempts failed
        if attempt.answer_bytes_max < flight.answer_bytes_full:
            if answer.more:
                self._lower_answers(flight, now)
        elif answer.more or data_bytes * 2 > attempt.answer_bytes_max:
            self._lowered_us = -1
        if data_bytes > self._passed_bytes:
            self._passed_bytes = data_bytes

    def _lower_answers(self, flight: Flight, now: int) -> None:
        """Learn from an exchange that passed only with the smallest answer, while more waits. An outage may have ended
        just then. So unless no large answer has passed so far, two are needed, of which the second began later."""
        is_silent, passed_bytes = not flight.refusals, self._passed_bytes
        if self._lowered_us >= 0 and now - self._lowered_us < _PROOF_US:
            is_proven, passed_bytes = flight.first_sent_us >= self._lowered_us, 0  # what passed before may not now
        else:
            is_proven = is_silent and 2 * passed_bytes <= flight.answer_bytes_full
            self._lowered_us = now
        if is_proven:
            self._path.down.on_refused(flight.answer_bytes_full, now, passed_bytes=passed_bytes if is_silent else -1)
            self._lowered_us, self._passed_bytes = now, 0


def _is_doubtful(flight: Flight) -> bool:
    """Whether this is a push that has failed so often that its body may be too large."""
    return not flight.pull and flight.unexplained >= _doubted_from(flight)


def _doubted_from(flight: Flight) -> int:
    """The failure from which on the body of a push is doubted. In silence, each failure takes long to show."""
    return _LOWER_FAILURES if flight.refusals else _SILENT_FAILURES
