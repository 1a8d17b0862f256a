"""The meaning of an HTTP response for the exchange that it answers (PROTOCOL 7.9, 7.10), as data."""

import enum
import re

import msgspec

from tunnel.exchange.backoff import Refusal
from tunnel.exchange.config import SECOND_US
from tunnel.exchange.events import AttachRefused
from tunnel.ground.printable import printable
from tunnel.wire import Answer, Attached, Buffer, EnvelopeError, Status, StatusCode, decode_envelope

__all__ = [
    "NEEDS_HTTPS",
    "THE_PROXY",
    "TO_HTTPS",
    "Outcome",
    "Verdict",
    "judge",
    "quoted",
    "refusal_of",
    "title_of",
    "wait_us_of",
]

_TOO_MANY_REQUESTS = 429
_OTHER_TYPE = 415
_UNAVAILABLE = 503  # nginx also answers this, by default, to too many requests
_TOO_MANY_US = SECOND_US  # wait after a 429 of the relay without Retry-After
_AWAY_US_MAX = 2 * SECOND_US  # 7.9: an intermediary's answer makes us wait no longer than this, unless it is a 429
_TOLD_US_MAX = 30 * SECOND_US  # 7.9: then this is the longest wait
_QUOTE_BYTES = 120  # longest quotation, in an error text, of a body that is not the relay's
_ADVICE_BYTES = 500  # the same for a 407: in place of its body, the carrier gives its advice about proxies


class Verdict(enum.Enum):
    """The action that the lanes must take after a response."""

    ANSWER = enum.auto()  # an ANSWER: take it if it is for this exchange
    ATTACHED = enum.auto()  # an ATTACHED: take it if it is for this ATTACH
    REPEAT = enum.auto()  # a failure: repeat with the same number and body
    TOO_LARGE = enum.auto()  # shrink the body
    UNKNOWN = enum.auto()  # attach again
    STALE = enum.auto()  # attach again under a generation more than twice as high
    FOREIGN = enum.auto()  # an intermediary refuses or redirects: final before the first attach, a failure after it
    ASKED = enum.auto()  # a proxy asks for a password: final before the first attach; after it, if that goes on
    FATAL = enum.auto()  # repeating will not help


# 7.10. An unlisted code comes from a later version of the protocol; then the HTTP status decides.
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

# 7.9. The meaning of a status if the body is not the relay's. After any other status the exchange is repeated, since
# proxies and login pages use them all.
_BY_STATUS: dict[int, Verdict] = {
    301: Verdict.FOREIGN,
    302: Verdict.FOREIGN,
    303: Verdict.FOREIGN,
    307: Verdict.FOREIGN,
    308: Verdict.FOREIGN,
    401: Verdict.FOREIGN,
    403: Verdict.FOREIGN,
    407: Verdict.ASKED,
    413: Verdict.TOO_LARGE,
    415: Verdict.FOREIGN,
}


# Statuses of intermediaries that may be different after a while. Every other status, such as 404, is definite. (407 is
# final in any case before the first attach, and 413 concerns a body.)
_PASSING = frozenset({407, 408, 413, 425, 429})
_DEFINITE_FAILURES = frozenset({501, 505, 511})  # of the 5xx
_NOT_FORMAT = frozenset({407, 413, 429, 500, 502, 503, 504})  # these say nothing about the format of the body (7.19)
_REDIRECTS = (301, 302, 303, 307, 308)
# No part of it takes a "<", so a search takes linear time on any page: it reads no byte twice from different starts.
_TITLE = re.compile(rb"<title[^<>]*>([^<]{1,200})<", re.IGNORECASE)
_HTML = re.compile(rb"\s*(?:<!doctype html|<html|<head|<body)", re.IGNORECASE)
_TAGS = re.compile(rb"<[^<>]*>")
_HEAD_BYTES = 64 * 1024  # bytes of a page that are searched for its title, which is near its beginning
THE_PROXY = "the proxy"
"""How a text begins that a carrier puts in place of the body of a proxy's answer to its own request."""
NEEDS_HTTPS = "the URL must begin with https://"
"""What a text says where a relay's URL begins with http:// and cannot lead to it."""
TO_HTTPS = "it leads to the same place at https://"
"""What a carrier puts in place of the body of a redirect that leads there."""
_LOGIN = "it may be a login or block page: open the relay's URL in a browser"
_BEHIND = "a proxy cannot reach the relay"
_REASONS = {
    200: _LOGIN,
    **dict.fromkeys(_REDIRECTS, _LOGIN),
    400: "a proxy or another server considers our request invalid: check that the URL has the right port",
    401: "a proxy or another server asks for credentials of its own: check the URL",
    403: "a proxy or another server forbids this: check the URL, or ask who runs the proxy",
    404: "check the path of the relay's URL",
    405: "a proxy or another server allows no POST requests to this URL: check the path of the relay's URL",
    407: "a proxy asks for user and password",
    408: "a proxy or another server waited too long for the rest of our request",
    415: "a proxy or another server accepts no binary bodies",
    429: "a proxy or another server limits the rate of requests",
    500: "a server on the way failed",
    501: "a proxy or another server does not support POST requests: check the URL and the proxy",
    502: _BEHIND,
    503: _BEHIND,
    504: _BEHIND,
    511: _LOGIN,
}


# 7.9. After any other answer of an intermediary, the relay may be back at any time.
_REFUSALS = {403: Refusal.FORBIDDEN, 407: Refusal.ASKED, 413: None, 429: Refusal.BANNED}


class Outcome(msgspec.Struct):
    """The verdict about a response. `text` describes the response for people."""

    verdict: Verdict
    message: Answer | Attached | None = None
    code: int = 0
    text: str = ""
    retry_after_us: int = 0
    may_be_format: bool = False  # an intermediary refused, perhaps because of the format of the body (7.19)
    too_many: bool | None = None
    """An intermediary refused because of the number of requests: surely (True) or perhaps (False); None: it did not."""
    refusal: Refusal | None = None  # how an intermediary's answer makes later requests wait; None: not at all
    is_page: bool = False  # a redirect of an intermediary, or its HTML page in place of an answer, such as a login page
    is_other_type: bool = False  # the relay does not understand the type of the body, as earlier ones do not (7.19)
    is_definite: bool = False  # an intermediary's answer that a repeat would hardly change
    is_altered: bool = False  # the request, or the answer, arrived with other bytes than it left with

    @property
    def is_explained(self) -> bool:
        """Whether the reason is known: the relay names one, or it is the number of requests or a password."""
        return self.code != 0 or self.too_many is True or self.verdict is Verdict.ASKED

    def refuse(self, status: int) -> AttachRefused:
        """Return the event for a response, with this status, that refuses the attachment for good."""
        return AttachRefused(status, self.code, self.text, self.is_page)


def judge(status: int, body: Buffer, retry_after_us: int, by: str = "") -> Outcome:
    """Return the meaning of a complete response. `retry_after_us` is its Retry-After header; 0 if it has none.

    `by`: how the server names itself. A relay does not, so that it matters only for a foreign answer.
    """
    message = decode_envelope(body)
    match message:
        case Answer():
            return Outcome(Verdict.ANSWER, message)
        case Attached():
            return Outcome(Verdict.ATTACHED, message)
        case Status():
            verdict = _BY_CODE.get(message.code, _BY_STATUS.get(status, Verdict.REPEAT))
            if verdict in (Verdict.FOREIGN, Verdict.ASKED):
                verdict = Verdict.FATAL  # the relay itself answered, with a code of a later version
            text = f"HTTP {status} from the relay: {message.text or f'code {message.code}, without a reason'}"
            if status == _TOO_MANY_REQUESTS:
                retry_after_us = retry_after_us or _TOO_MANY_US
            retry_after_us = max(retry_after_us, message.retry_after_ms * 1000)
            is_other_type = status == _OTHER_TYPE and message.code == StatusCode.MALFORMED
            is_altered = message.code == StatusCode.CORRUPT
            return Outcome(
                verdict, None, message.code, text, retry_after_us, is_other_type=is_other_type, is_altered=is_altered
            )
        case EnvelopeError.VERSION:
            return Outcome(
                Verdict.FATAL, text=f"HTTP {status}: the relay speaks another protocol version: update the older side"
            )
    verdict = _BY_STATUS.get(status, Verdict.REPEAT)
    size = _ADVICE_BYTES if status == 407 else _QUOTE_BYTES
    is_page, is_definite, is_altered = False, _is_definite(status), False
    if message is EnvelopeError.NOT_OURS:
        is_page = status in _REDIRECTS or (status in (200, 511) and _HTML.match(bytes(body[:_HEAD_BYTES])) is not None)
        said = quoted(body, size)
        text = f"HTTP {status}, but not from a relay{_explained(status, said)}: {said}{f', {by}' if by else ''}"
        if status == 407 and said.startswith(THE_PROXY):
            text = f"HTTP 407: {said}"  # this says all of it
    elif isinstance(message, EnvelopeError):
        is_definite, is_altered = False, True
        text = f"HTTP {status}, but the answer arrived damaged ({message.value})"
    else:
        text = f"HTTP {status}, but the answer is our own request, which a proxy or another server sent back"
    retry_after_us = wait_us_of(status, retry_after_us)
    too_many = {_TOO_MANY_REQUESTS: True, _UNAVAILABLE: False}.get(status)
    may_be_format = message is EnvelopeError.NOT_OURS and status not in _NOT_FORMAT
    return Outcome(
        verdict,
        text=text,
        retry_after_us=retry_after_us,
        may_be_format=may_be_format,
        too_many=too_many,
        refusal=None if is_altered else refusal_of(status, retry_after_us),
        is_page=is_page,
        is_definite=is_definite,
        is_altered=is_altered,
    )


def wait_us_of(status: int, retry_after_us: int) -> int:
    """Return the wait that an intermediary's answer, with this status and Retry-After, may ask for."""
    # The relay may be back sooner than a proxy believes.
    return min(retry_after_us, _TOLD_US_MAX if status == _TOO_MANY_REQUESTS else _AWAY_US_MAX)


def refusal_of(status: int, retry_after_us: int) -> Refusal | None:
    """Return how an intermediary's answer with this status makes later requests wait; None: not at all."""
    if status == _UNAVAILABLE and retry_after_us:
        return Refusal.BUSY
    return _REFUSALS.get(status, Refusal.AWAY)


def title_of(page: Buffer) -> bytes:
    """Return the title of a page of HTML, as it stands there; empty if there is none near its beginning."""
    title = _TITLE.search(bytes(page[:_HEAD_BYTES]))
    return title[1] if title else b""


def _is_definite(status: int) -> bool:
    return status in _DEFINITE_FAILURES if status >= 500 else status not in _PASSING


def _explained(status: int, said: str) -> str:
    if status == 400 and "HTTPS port" in said:  # nginx and Apache answer this
        return f" (this port speaks TLS: {NEEDS_HTTPS})"
    if said == TO_HTTPS:
        return f" ({NEEDS_HTTPS})"
    reason = _REASONS.get(status, "")
    return f" ({reason})" if reason else ""


def quoted(body: Buffer, size: int = _QUOTE_BYTES) -> str:
    """Return the title of a foreign page, or the start of a foreign body without its tags if it is a page, on one line
    and printable: errors quote it, and programs print errors."""
    named = _on_one_line(title_of(body))
    if named:
        return f"the page {named!r}"
    head = bytes(body[:_HEAD_BYTES])
    is_page = head.lstrip()[:1] == b"<"
    text = printable(_on_one_line(_TAGS.sub(b" ", head) if is_page else head)[:size])
    return text or ("a page without text" if is_page else "an empty body")


def _on_one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").split())
