"""What the proxy shall do: options as values, each with the grammar of its command line form.

Every class of a fault has a `parse` that raises ValueError with what was expected.
"""

import dataclasses
from typing import Self
from urllib.parse import urlsplit

from loadtests.faultproxy.grammar import (
    one_of,
    parse_duration_us,
    parse_probability,
    split_words,
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
_SIDES = ("request", "response")


@dataclasses.dataclass(frozen=True, slots=True)
class Drop:
    """Lose a message: close the client's connection, or leave it open and say nothing more (silent)."""

    probability: float
    silent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:silent]"""
        (probability,), words = split_words(text, values=1, words=["silent"])
        return cls(parse_probability(probability), silent="silent" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class LateDuplicate:
    """Send the request a second time, so much later."""

    probability: float
    after_us: int

    @classmethod
    def parse(cls, text: str) -> Self:
        """P:DURATION"""
        (probability, after), _ = split_words(text, values=2, words=[])
        return cls(parse_probability(probability), parse_duration_us(after))


@dataclasses.dataclass(frozen=True, slots=True)
class Delay:
    """Each way, between base - jitter and base + jitter, uniformly."""

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
    """End a body early. Short: HTTP looks complete, Content-Length says the new length. Cut: the connection breaks."""

    probability: float
    side: str = ""  # request, response or, if empty, each on its own
    how: str = ""  # short, cut or, if empty, one of them by chance

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:short|:cut]"""
        (probability,), words = split_words(text, values=1, words=[*_SIDES, "short", "cut"])
        return cls(parse_probability(probability), one_of(text, words, _SIDES), one_of(text, words, ("short", "cut")))


@dataclasses.dataclass(frozen=True, slots=True)
class Flip:
    """Flip from one to `bits_max` bits of a body."""

    probability: float
    side: str = ""
    bits_max: int = 1

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:bits=N]"""
        (probability,), words = split_words(text, values=1, words=[*_SIDES, "bits="])
        bits = next((word.removeprefix("bits=") for word in words if word.startswith("bits=")), "1")
        if not (bits.isascii() and bits.isdecimal() and 1 <= int(bits) <= FLIP_BITS_MAX):
            raise ValueError(f"{text!r}: bits={bits} is not a number from 1 to {FLIP_BITS_MAX}")
        return cls(parse_probability(probability), one_of(text, words, _SIDES), int(bits))


@dataclasses.dataclass(frozen=True, slots=True)
class Status:
    """Answer with a status instead of asking upstream, or (after) instead of passing upstream's answer on."""

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
        retry = next((parse_duration_us(word.removeprefix("retry=")) for word in words if word.startswith("retry=")), 0)
        # Retry-After is in whole seconds (RFC 9110, 10.2.3).
        return cls(int(code), parse_probability(probability), "after" in words, -(-retry // 1_000_000))


@dataclasses.dataclass(frozen=True, slots=True)
class Html:
    """Answer with a page of HTML and status 200, as a login or a virus scanner does."""

    probability: float
    after: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:after]"""
        (probability,), words = split_words(text, values=1, words=["after"])
        return cls(parse_probability(probability), "after" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class IdleCut:
    """Reset a client's connection on which no byte moved for so long, or (silent) let it lead nowhere from then on."""

    after_us: int
    silent: bool = False

    @classmethod
    def parse(cls, text: str) -> Self:
        """DURATION[:silent]"""
        (after,), words = split_words(text, values=1, words=["silent"])
        after_us = parse_duration_us(after)
        if after_us == 0:
            raise ValueError(f"{text!r}: nothing lives for 0 seconds")
        return cls(after_us, silent="silent" in words)


@dataclasses.dataclass(frozen=True, slots=True)
class Blackhole:
    """For `lasts_us` no byte passes and nothing is closed. The first begins `every_us` after the start of the proxy;
    the next ones every `every_us`, from start to start, unless only one is wanted (once)."""

    lasts_us: int
    every_us: int
    once: bool = False
    side: str = ""  # what vanishes: request, response or, if empty, both

    @classmethod
    def parse(cls, text: str) -> Self:
        """LASTS@EVERY[:once][:request|:response]"""
        (times,), words = split_words(text, values=1, words=["once", *_SIDES])
        lasts, at, every = times.partition("@")
        if not at:
            raise ValueError(f"{text!r} lacks @EVERY, as in 30s@60s")
        blackhole = cls(
            parse_duration_us(lasts), parse_duration_us(every), "once" in words, one_of(text, words, _SIDES)
        )
        if blackhole.lasts_us == 0 or (blackhole.lasts_us >= blackhole.every_us and not blackhole.once):
            raise ValueError(f"{text!r}: a blackhole must last longer than nothing and end before the next one begins")
        return blackhole


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FaultProxyOptions:
    """All options; the defaults do no harm. `upstream` is host and port, or None for a forward proxy alone."""

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


def parse_upstream(text: str) -> tuple[str, int]:
    """Host and port of a URL like http://127.0.0.1:8080. What clients ask for is passed on as it is, so no path."""
    try:
        url = urlsplit(text)
        port = url.port
    except ValueError as error:
        raise ValueError(f"{text!r} is not a URL: {error}") from error
    if url.scheme != "http" or not url.hostname:
        raise ValueError(f"{text!r} is not a URL like http://127.0.0.1:8080 (for TLS let clients use CONNECT)")
    if url.path not in ("", "/") or url.query or url.fragment or url.username is not None:
        raise ValueError(f"{text!r}: only scheme, host and port are allowed")
    return url.hostname, 80 if port is None else port
