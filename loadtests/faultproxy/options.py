"""The options of the fault proxy, each declared once: its type, its default, its form on the command line and its help.

`cli` makes the command line from these declarations. Given text that it cannot parse, every `parse` raises a ValueError
that says what was expected.
"""

import dataclasses
from collections.abc import Callable
from typing import Annotated, Any, ClassVar, Self
from urllib.parse import urlsplit

from loadtests.faultproxy.grammar import (
    Choice,
    Fault,
    Named,
    Value,
    number_from,
    parse_address,
    parse_count,
    parse_duration_us,
    parse_pause_us,
    parse_probability,
    parse_size_bytes,
)

__all__ = [
    "Blackhole",
    "Delay",
    "Drop",
    "FaultProxyOptions",
    "Flip",
    "FrameBuffer",
    "FrameClose",
    "FrameCut",
    "FrameFaults",
    "FrameFlip",
    "FrameStall",
    "Html",
    "IdleCut",
    "LateDuplicate",
    "Option",
    "Status",
    "Truncate",
    "parse_upstream",
]

Probability = Annotated[float, Value("P", parse_probability)]
Duration = Annotated[int, Value("DURATION", parse_duration_us)]
Pause = Annotated[int, Value("DURATION", parse_pause_us)]
Side = Annotated[str, Choice(("request", "response"))]  # if empty: both, each with its own draw
How = Annotated[str, Choice(("short", "cut"))]  # if empty: a random choice of the two
_GOING_AWAY = 1001


def _whole_seconds(text: str) -> int:
    """Retry-After is in whole seconds (RFC 9110, 10.2.3)."""
    return -(-parse_duration_us(text) // 1_000_000)


@dataclasses.dataclass(frozen=True, slots=True)
class Drop(Fault):
    """Drop a message, and close the client's connection, or (silent) leave it open without an answer."""

    probability: Probability
    silent: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class LateDuplicate(Fault):
    """Send the request upstream a second time, this much later."""

    probability: Probability
    after_us: Duration


@dataclasses.dataclass(frozen=True, slots=True)
class Delay(Fault):
    """Delay each message by D, plus or minus up to J (+- works, too); tunnels and chunked bodies keep flowing."""

    base_us: int
    jitter_us: int = 0

    @classmethod
    def grammar(cls) -> str:
        """Return the form of the text for people; +- and +/- work, too."""
        return "D[±J]"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse text of this form."""
        base, _, jitter = text.replace("+/-", "±").replace("+-", "±").partition("±")
        delay = cls(parse_duration_us(base), parse_duration_us(jitter) if "±" in text or "+" in text else 0)
        if delay.jitter_us > delay.base_us:
            raise ValueError(f"{text!r}: the jitter is larger than the delay")
        return delay


@dataclasses.dataclass(frozen=True, slots=True)
class Truncate(Fault):
    """End a body early. Short: the message looks complete, with the new Content-Length. Cut: the connection breaks."""

    probability: Probability
    side: Side = ""
    how: How = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Flip(Fault):
    """Flip from one to N bits of a body; N is 1 unless given."""

    probability: Probability
    side: Side = ""
    bits_max: Annotated[int, Named("bits", "N", number_from(1, 64))] = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Status(Fault):
    """Answer with a status instead of asking upstream, or (after) instead of upstream's answer. May be repeated."""

    code: Annotated[int, Value("CODE", number_from(300, 599, what="a status"))]
    probability: Probability
    after: bool = False
    retry_after_s: Annotated[int, Named("retry", "DURATION", _whole_seconds)] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Html(Fault):
    """Answer with a page of HTML and status 200, as a captive portal or a virus scanner does."""

    probability: Probability
    after: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class IdleCut(Fault):
    """Reset a client's connection on which no byte has moved for this long, or (silent) discard all later bytes."""

    after_us: Pause
    silent: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class Blackhole(Fault):
    """Pass no byte for LASTS, and close nothing: first EVERY after the start, then (unless once) every EVERY.

    The times count from start to start. Bytes that waited pass afterwards.
    """

    lasts_us: Annotated[int, Value("LASTS", parse_pause_us)]
    every_us: Annotated[int, Value("EVERY", parse_duration_us)]
    once: bool = False
    side: Side = ""  # the blocked direction
    separator: ClassVar[str] = "@"

    def check(self, text: str) -> None:
        """Two periods must not overlap."""
        if self.lasts_us >= self.every_us and not self.once:
            raise ValueError(f"{text!r}: a blackhole must end before the next one begins")


@dataclasses.dataclass(frozen=True, slots=True)
class FrameCut(Fault):
    """Break the connections to the client and to the upstream server inside a frame."""

    probability: Probability
    side: Side = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FrameStall(Fault):
    """From the middle of a frame on, pass nothing in this direction for this time, or (without it) for ever."""

    probability: Probability
    side: Side = ""
    lasts_us: Annotated[int, Named("for", "DURATION", parse_pause_us)] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class FrameFlip(Fault):
    """Flip one bit of a frame, in its header or in its data."""

    probability: Probability
    side: Side = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FrameBuffer(Fault):
    """Hold back a frame and the bytes after it for this time, then pass all of them on at once."""

    probability: Probability
    lasts_us: Pause
    side: Side = ""


@dataclasses.dataclass(frozen=True, slots=True)
class FrameClose(Fault):
    """Send a close frame in place of a frame, then close both connections; N is 1001 unless given."""

    probability: Probability
    side: Side = ""
    code: Annotated[int, Named("code", "N", number_from(1000, 4999, what="a close code"))] = _GOING_AWAY


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


@dataclasses.dataclass(frozen=True, slots=True)
class Option:
    """How a field of the options stands on the command line. A fault needs none: the help is its docstring."""

    help: str = ""
    metavar: str = ""
    parse: Callable[[str], Any] | None = None
    name: str = ""  # if it is not that of the field
    fault: type[Fault] | None = None  # the field is a tuple of these, and the option may be repeated


@dataclasses.dataclass(frozen=True, slots=True)
class FrameFaults:
    """All faults of frames. At most one hits a frame: the first in this list that applies."""

    close: FrameClose = FrameClose(0)
    cut: FrameCut = FrameCut(0)
    stall: FrameStall = FrameStall(0)
    flip: FrameFlip = FrameFlip(0)
    buffer: FrameBuffer = FrameBuffer(0, 0)

    @property
    def are_possible(self) -> bool:
        """Whether any of these faults has a probability above 0."""
        return any(fault.probability > 0 for fault in (self.close, self.cut, self.stall, self.flip, self.buffer))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class FaultProxyOptions:
    """All options of the proxy; the defaults inject no fault.

    `upstream` is host and port, or None for a proxy that is a forward proxy only.
    """

    listen: Annotated[
        tuple[str, int],
        Option(
            "address to listen on; port 0 picks a free port. Every client that can reach it may use the forward proxy",
            "HOST:PORT",
            parse_address,
        ),
    ] = ("127.0.0.1", 0)
    upstream: Annotated[
        tuple[str, int] | None,
        Option(
            "server for requests that name only a path; CONNECT and absolute URLs go to the host that they name",
            "URL",
            parse_upstream,
        ),
    ] = None
    seed: Annotated[int, Option("seed of all random faults; default 0", "N", int)] = 0
    node: Annotated[str, Option("the name of this proxy in traces; default faultproxy", "NAME", str)] = "faultproxy"
    drop_request: Annotated[Drop, Option("drop the request before it reaches upstream: see --drop-response")] = Drop(0)
    drop_response: Annotated[
        Drop,
        Option("drop the answer that upstream has sent; close the client's connection or (silent) leave it open"),
    ] = Drop(0)
    duplicate: Annotated[float, Option("send the request upstream twice, at once", "P", parse_probability)] = 0
    late_duplicate: LateDuplicate = LateDuplicate(0, 0)
    delay: Delay = Delay(0)
    truncate: Truncate = Truncate(0)
    flip: Flip = Flip(0)
    statuses: Annotated[tuple[Status, ...], Option(name="status", fault=Status)] = ()
    html: Html = Html(0)
    limit_bytes: Annotated[
        int | None, Option("answer larger request bodies with 413", "SIZE", parse_size_bytes, "limit")
    ] = None
    buffer: Annotated[bool, Option("collect whole bodies, both ways, before forwarding them")] = False
    no_upgrade: Annotated[bool, Option("remove Upgrade from requests")] = False
    idle_cut: IdleCut | None = None
    blackhole: Blackhole | None = None
    one_connection: Annotated[bool, Option("while one client connection is open, reset all others")] = False
    slots: Annotated[
        int | None,
        Option("carry N requests at once, those of tunnels included; the others wait for their turn", "N", parse_count),
    ] = None
    frames: FrameFaults = FrameFaults()
