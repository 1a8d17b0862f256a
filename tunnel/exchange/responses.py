"""What an HTTP response means for the exchange it answers (7.9, 7.10), as data."""

import enum

import msgspec

from tunnel.exchange.config import SECOND_US
from tunnel.wire import Answer, Attached, Buffer, EnvelopeError, Status, StatusCode, decode_envelope

__all__ = ["Outcome", "Verdict", "judge"]

_TOO_MANY_REQUESTS = 429
_TOO_MANY_US = SECOND_US  # who finds us too many, and does not say until when, is not asked at once
_QUOTE_BYTES = 120  # of a foreign body are shown to a person
_ADVICE_BYTES = 500  # of what a carrier says about a proxy that asks who we are


class Verdict(enum.Enum):
    """What to do about a response."""

    ANSWER = enum.auto()  # an ANSWER: take it if it is for this exchange
    ATTACHED = enum.auto()  # an ATTACHED: likewise
    REPEAT = enum.auto()  # a failure: same number, same body, new connection
    TOO_LARGE = enum.auto()  # shrink
    UNKNOWN = enum.auto()  # attach again
    STALE = enum.auto()  # attach again under a higher generation
    FATAL = enum.auto()  # repeating will not help


# 7.10. A code that is not here came from a later version: its HTTP status decides.
_BY_CODE: dict[int, Verdict] = {
    StatusCode.UNKNOWN: Verdict.UNKNOWN,
    StatusCode.CORRUPT: Verdict.REPEAT,
    StatusCode.STALE: Verdict.STALE,
    StatusCode.TOO_LARGE: Verdict.TOO_LARGE,
    StatusCode.BUSY: Verdict.REPEAT,
    StatusCode.NOT_AUTHORISED: Verdict.FATAL,
    StatusCode.DENIED: Verdict.FATAL,
    StatusCode.MALFORMED: Verdict.FATAL,
}

# 7.9, whoever answered. Every other status without our magic is repeated: proxies and login pages use them all.
_BY_STATUS: dict[int, Verdict] = {
    301: Verdict.FATAL,
    302: Verdict.FATAL,
    303: Verdict.FATAL,
    307: Verdict.FATAL,
    308: Verdict.FATAL,
    401: Verdict.FATAL,
    403: Verdict.FATAL,
    407: Verdict.FATAL,
    413: Verdict.TOO_LARGE,
    415: Verdict.FATAL,
}


class Outcome(msgspec.Struct):
    """A judged response. `text` tells a person what answered."""

    verdict: Verdict
    message: Answer | Attached | None = None
    code: int = 0
    text: str = ""
    retry_after_us: int = 0


def judge(status: int, body: Buffer, retry_after_us: int) -> Outcome:
    """The meaning of a complete response; `retry_after_us` is its Retry-After header, 0 without one."""
    message = decode_envelope(body)
    if status == _TOO_MANY_REQUESTS:
        retry_after_us = retry_after_us or _TOO_MANY_US
    match message:
        case Answer():
            return Outcome(Verdict.ANSWER, message)
        case Attached():
            return Outcome(Verdict.ATTACHED, message)
        case Status():
            verdict = _BY_CODE.get(message.code, _BY_STATUS.get(status, Verdict.REPEAT))
            text = f"HTTP {status} from the relay: {message.text}"
            return Outcome(verdict, None, message.code, text, max(retry_after_us, message.retry_after_ms * 1000))
        case EnvelopeError.VERSION:
            return Outcome(Verdict.FATAL, text=f"HTTP {status}: the relay speaks another version of the protocol")
    verdict = _BY_STATUS.get(status, Verdict.REPEAT)
    size = _ADVICE_BYTES if status == 407 else _QUOTE_BYTES
    reason = message.value if isinstance(message, EnvelopeError) else "a request instead of an answer"
    quoted = f": {_quote(body, size)}" if message is EnvelopeError.NOT_OURS else ""
    text = f"HTTP {status}, {reason}{quoted}"
    return Outcome(verdict, text=text, retry_after_us=retry_after_us)


def _quote(body: Buffer, size: int) -> str:
    """The beginning of a foreign body, on one line, harmless on a terminal."""
    start = bytes(body[:size]).decode("utf-8", "replace")
    return " ".join("".join(letter if letter.isprintable() else " " for letter in start).split()) or "an empty body"
