"""The options of the fault proxy: one class per fault, each with a parser for its command line form.

Given text that it cannot parse, every `parse` raises a ValueError that says what was expected. The docstring of
`parse` is the grammar.
"""

import dataclasses
from typing import Self
from urllib.parse import urlsplit

from loadtests.faultproxy.frame_options import FrameFaults
from loadtests.faultproxy.grammar import (
    SIDES,
    one_of,
    parse_duration_us,
    parse_probability,
    split_words,
    value_of,
)

__all__ = [
    "Blackhole",
    "Delay",
    "Drop",
    "FaultProxyOptions",
    "Flip",
    "Html",
    "IdleCut",
    "LateDuplicate",
    "Status",
    "Truncate",
    "parse_upstream",
]

FLIP_BITS_MAX = 64


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """Drop a message, and close the client's connection, or (silent) leave it open without an answer."""

    probability: float
    silent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:silent]"""
        (probability,), words = split_words(text, values=1, words=["silent"])
        return cls(parse_probability(probability), silent="silent" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class LateDuplicate:
    """Send the request upstream a second time, `after_us` later."""

    probability: float
    after_us: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """P:DURATION"""
        (probability, after), _ = split_words(text, values=2, words=[])
        return cls(parse_probability(probability), parse_duration_us(after))


@dataclasses.dataclass(frozen=True, slots=True)
class Delay:
    """Delay each message by a time drawn uniformly between base - jitter and base + jitter, in each direction."""

    base_us: int
    jitter_us: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """DURATION[±DURATION], also with +- or +/-"""
        base, _, jitter = text.replace("+/-", "±").replace("+-", "±").partition("±")
        delay = cls(parse_duration_us(base), parse_duration_us(jitter) if "±" in text or "+" in text else 0)
        if delay.jitter_us > delay.base_us:
            raise ValueError(f"{text!r}: the jitter is larger than the delay")
        return delay


@dataclasses.dataclass(frozen=True, slots=True)
class Truncate:
    """End a body early. Short: the message looks complete, with the new Content-Length. Cut: the connection breaks."""

    probability: float
    side: str = ""  # request, response or, if empty, both, each with its own draw
    how: str = ""  # short, cut or, if empty, a random choice of the two

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:short|:cut]"""
        (probability,), words = split_words(text, values=1, words=[*SIDES, "short", "cut"])
        return cls(parse_probability(probability), one_of(text, words, SIDES), one_of(text, words, ("short", "cut")))


@dataclasses.dataclass(frozen=True, slots=True)
class Flip:
    """Flip from one to `bits_max` bits of a body."""

    probability: float
    side: str = ""
    bits_max: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:bits=N]"""
        (probability,), words = split_words(text, values=1, words=[*SIDES, "bits="])
        bits = value_of(words, "bits")
        bits = "1" if bits is None else bits
        if not (bits.isascii() and bits.isdecimal() and 1 <= int(bits) <= FLIP_BITS_MAX):
            raise ValueError(f"{text!r}: bits={bits} is not a number from 1 to {FLIP_BITS_MAX}")
        return cls(parse_probability(probability), one_of(text, words, SIDES), int(bits))


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """Answer with a status instead of asking upstream, or (after) instead of forwarding upstream's answer."""

    code: int
    probability: float
    after: bool = False
    retry_after_s: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """CODE:P[:after][:retry=DURATION]"""
        (code, probability), words = split_words(text, values=2, words=["after", "retry="])
        if not (code.isascii() and code.isdecimal() and 300 <= int(code) <= 599):
            raise ValueError(f"{text!r}: {code!r} is not a status from 300 to 599")
        retry = value_of(words, "retry")
        retry_us = 0 if retry is None else parse_duration_us(retry)
        # Retry-After is in whole seconds (RFC 9110, 10.2.3).
        return cls(int(code), parse_probability(probability), "after" in words, -(-retry_us // 1_000_000))


@dataclasses.dataclass(frozen=True, slots=True)
class Html:
    """Answer with a page of HTML and status 200, as a captive portal or a virus scanner does."""

    probability: float
    after: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:after]"""
        (probability,), words = split_words(text, values=1, words=["after"])
        return cls(parse_probability(probability), "after" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class IdleCut:
    """Reset a client's connection on which no byte has moved for `after_us`.

    If `silent`, leave it open instead, but discard everything from then on.
    """

    after_us: int
    silent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """DURATION[:silent]"""
        (after,), words = split_words(text, values=1, words=["silent"])
        after_us = parse_duration_us(after)
        if after_us == 0:
            raise ValueError(f"{text!r}: an idle time of 0 would cut every connection at once; write 20s, for example")
        return cls(after_us, silent="silent" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class Blackhole:
    """A period of `lasts_us` during which no byte passes and no connection is closed.

    The first period begins `every_us` after the start of the proxy. Unless `once` is set, the next ones follow every
    `every_us`, counted from start to start.
    """

    lasts_us: int
    every_us: int
    once: bool = False
    side: str = ""  # the blocked direction: request, response or, if empty, both

    @classmethod
    def parse(cls, text: str) -> Self:
        """LASTS@EVERY[:once][:request|:response]"""
        (times,), words = split_words(text, values=1, words=["once", *SIDES])
        lasts, at, every = times.partition("@")
        if not at:
            raise ValueError(f"{text!r} lacks @EVERY, as in 30s@60s")
        blackhole = cls(parse_duration_us(lasts), parse_duration_us(every), "once" in words, one_of(text, words, SIDES))
        if blackhole.lasts_us == 0 or (blackhole.lasts_us >= blackhole.every_us and not blackhole.once):
            raise ValueError(f"{text!r}: a blackhole must last longer than 0 and end before the next one begins")
        return blackhole


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FaultProxyOptions:
    """All options of the proxy; the defaults inject no fault.

    `upstream` is host and port, or None for a proxy that is a forward proxy only.
    """

    listen: tuple[str, int] = ("127.0.0.1", 0)
    upstream: tuple[str, int] | None = None
    seed: int = 0
    node: str = "faultproxy"  # the name in traces
    drop_request: Drop = Drop(0)
    drop_response: Drop = Drop(0)
    duplicate: float = 0
    late_duplicate: LateDuplicate = LateDuplicate(0, 0)
    delay: Delay = Delay(0)
    truncate: Truncate = Truncate(0)
    flip: Flip = Flip(0)
    statuses: tuple[Status, ...] = ()
    html: Html = Html(0)
    limit_bytes: int | None = None
    buffer: bool = False
    no_upgrade: bool = False
    idle_cut: IdleCut | None = None
    blackhole: Blackhole | None = None
    one_connection: bool = False
    slots: int | None = None  # requests that are carried at once, tunnels included; the others wait
    frames: FrameFaults = FrameFaults()


def parse_upstream(text: str) -> tuple[str, int]:
    """Return host and port of a URL like http://127.0.0.1:8080.

    The URL must have no path, because the paths of requests are forwarded unchanged.
    """
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}") from error
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"{text!r} is not a URL like http://127.0.0.1:8080 (for TLS, let clients use CONNECT)")
    if url.path not in ("", "/") or url.query or url.fragment or url.username is not None:
        raise ValueError(f"{text!r}: only scheme, host and port are allowed")
    return url.hostname, 80 if port is None else port
