"""The seeded plan of an exchange: the faults that it will meet, as data.

A plan depends only on the seed, the options and the number of the exchange. Each kind of fault draws from its own
generator, `Random("seed/kind/number")`, so that turning on one fault does not change the draws of another.
"""

import dataclasses
import enum
from collections.abc import Iterator
from random import Random

from loadtests.faultproxy.options import FaultProxyOptions, Html, Status

__all__ = ["NO_HARM", "BodyPlan", "ExchangePlan", "Fate", "FaultKind", "Side", "plan_exchange"]


class Side(enum.StrEnum):
    """One of the two messages of an exchange, and thereby the direction of its bytes."""

    REQUEST = "request"
    RESPONSE = "response"


class FaultKind(enum.StrEnum):
    """The kinds of faults that are counted; the values are the names of the options."""

    DROP_REQUEST = "drop_request"
    DROP_RESPONSE = "drop_response"
    DUPLICATE = "duplicate"
    LATE_DUPLICATE = "late_duplicate"
    DELAY = "delay"
    TRUNCATE = "truncate"
    FLIP = "flip"
    STATUS = "status"
    HTML = "html"
    LIMIT = "limit"
    IDLE_CUT = "idle_cut"
    BLACKHOLE = "blackhole"
    ONE_CONNECTION = "one_connection"
    FRAME_CLOSE = "frame_close"
    FRAME_CUT = "frame_cut"
    FRAME_STALL = "frame_stall"
    FRAME_FLIP = "frame_flip"
    FRAME_BUFFER = "frame_buffer"


class Fate(enum.Enum):
    """The outcome planned for an exchange as a whole. If several apply, the first in this list wins."""

    ANSWERED = "answered"  # the proxy answers itself; upstream never sees the request
    REQUEST_DROPPED = "request_dropped"
    ANSWER_REPLACED = "answer_replaced"  # upstream answers, but the client gets another answer
    RESPONSE_DROPPED = "response_dropped"
    PASSED = "passed"


@dataclasses.dataclass(frozen=True, slots=True)
class BodyPlan:
    """The faults planned for one direction of an exchange. Places are fractions of the body's length."""

    delay_us: int = 0
    cut_at: float | None = None
    is_short: bool = False  # cut, with the shorter length declared, so that the message looks complete
    flips: tuple[tuple[float, int], ...] = ()  # place, bit


NO_HARM = BodyPlan()


@dataclasses.dataclass(frozen=True, slots=True)
class ExchangePlan:
    """All faults planned for one exchange."""

    number: int
    fate: Fate
    silent: bool = False  # for drops: leave the client's connection open
    answer: Status | Html | None = None  # for ANSWERED and ANSWER_REPLACED
    duplicates_after_us: tuple[tuple[FaultKind, int], ...] = ()
    request: BodyPlan = NO_HARM
    response: BodyPlan = NO_HARM


def plan_exchange(options: FaultProxyOptions, number: int) -> ExchangePlan:
    """Return the plan of the exchange with this number.

    It is the same for the same seed and options, whatever happened in earlier exchanges.
    """
    fate, silent, answer = _fate(options, number)
    return ExchangePlan(
        number=number,
        fate=fate,
        silent=silent,
        answer=answer,
        duplicates_after_us=tuple(_duplicates(options, number)),
        request=_body(options, number, Side.REQUEST),
        response=_body(options, number, Side.RESPONSE),
    )


def _random(options: FaultProxyOptions, kind: str, number: int) -> Random:
    return Random(f"{options.seed}/{kind}/{number}")  # Random hashes a string with SHA-512, the same in every process


def _hits(options: FaultProxyOptions, kind: str, number: int, probability: float) -> bool:
    return probability > 0 and _random(options, kind, number).random() < probability


def _fate(options: FaultProxyOptions, number: int) -> tuple[Fate, bool, Status | Html | None]:
    answers = [
        status for status in options.statuses if _hits(options, f"status/{status.code}", number, status.probability)
    ] + ([options.html] if _hits(options, "html", number, options.html.probability) else [])
    if first := next((answer for answer in answers if not answer.after), None):
        return Fate.ANSWERED, False, first
    if _hits(options, "drop_request", number, options.drop_request.probability):
        return Fate.REQUEST_DROPPED, options.drop_request.silent, None
    if answers:
        return Fate.ANSWER_REPLACED, False, answers[0]
    if _hits(options, "drop_response", number, options.drop_response.probability):
        return Fate.RESPONSE_DROPPED, options.drop_response.silent, None
    return Fate.PASSED, False, None


def _duplicates(options: FaultProxyOptions, number: int) -> Iterator[tuple[FaultKind, int]]:
    if _hits(options, "duplicate", number, options.duplicate):
        yield FaultKind.DUPLICATE, 0
    if _hits(options, "late_duplicate", number, options.late_duplicate.probability):
        yield FaultKind.LATE_DUPLICATE, options.late_duplicate.after_us


def _body(options: FaultProxyOptions, number: int, side: Side) -> BodyPlan:
    delay_us, cut_at, is_short = 0, None, False
    flips: tuple[tuple[float, int], ...] = ()
    if options.delay.base_us > 0:
        shift = _random(options, f"delay/{side}", number).uniform(-1, 1)
        delay_us = options.delay.base_us + round(shift * options.delay.jitter_us)
    truncate = options.truncate
    if truncate.side in ("", side) and truncate.probability > 0:
        random = _random(options, f"truncate/{side}", number)
        if random.random() < truncate.probability:
            cut_at, by_chance = random.random(), random.random() < 0.5
            is_short = truncate.how == "short" or (by_chance and not truncate.how)
    if options.flip.side in ("", side) and options.flip.probability > 0:
        random = _random(options, f"flip/{side}", number)
        if random.random() < options.flip.probability:
            bits = random.randint(1, options.flip.bits_max)
            flips = tuple((random.random(), random.randrange(8)) for _ in range(bits))
    return BodyPlan(delay_us, cut_at, is_short, flips)
