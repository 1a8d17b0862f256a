"""The options of the faults that hit single frames of websockets. The docstring of `parse` is the grammar."""

import dataclasses
from typing import Self

from loadtests.faultproxy.grammar import SIDES, one_of, parse_duration_us, parse_probability, split_words, value_of

__all__ = ["FrameBuffer", "FrameClose", "FrameCut", "FrameFaults", "FrameFlip", "FrameStall"]

# The codes that a close frame may carry (RFC 6455, 7.4).
_CODE_MIN, _CODE_MAX = 1000, 4999
_GOING_AWAY = 1001


@dataclasses.dataclass(frozen=True, slots=True)
class FrameCut:
    """Break the connections to the client and to the upstream server inside a frame."""

    probability: float
    side: str = ""  # request, response or, if empty, both

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response]"""
        (probability,), words = split_words(text, values=1, words=SIDES)
        return cls(parse_probability(probability), one_of(text, words, SIDES))


@dataclasses.dataclass(frozen=True, slots=True)
class FrameStall:
    """From the middle of a frame on, pass nothing in this direction for `lasts_us`, or for ever if that is 0."""

    probability: float
    side: str = ""
    lasts_us: int = 0

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:for=DURATION]"""
        (probability,), words = split_words(text, values=1, words=[*SIDES, "for="])
        lasts = value_of(words, "for")
        lasts_us = 0 if lasts is None else parse_duration_us(lasts)
        if lasts is not None and lasts_us == 0:
            raise ValueError(f"{text!r}: a stall of 0 is none; write for=2s, for example, or leave it out: for ever")
        return cls(parse_probability(probability), one_of(text, words, SIDES), lasts_us)


@dataclasses.dataclass(frozen=True, slots=True)
class FrameFlip:
    """Flip one bit of a frame, in its header or in its data."""

    probability: float
    side: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response]"""
        (probability,), words = split_words(text, values=1, words=SIDES)
        return cls(parse_probability(probability), one_of(text, words, SIDES))


@dataclasses.dataclass(frozen=True, slots=True)
class FrameBuffer:
    """Hold back a frame and the bytes after it for `lasts_us`, then pass all of them on at once."""

    probability: float
    lasts_us: int
    side: str = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """P:DURATION[:request|:response]"""
        (probability, lasts), words = split_words(text, values=2, words=SIDES)
        lasts_us = parse_duration_us(lasts)
        if lasts_us == 0:
            raise ValueError(f"{text!r}: a frame that is held back for 0 is not held back; write 50ms, for example")
        return cls(parse_probability(probability), lasts_us, one_of(text, words, SIDES))


@dataclasses.dataclass(frozen=True, slots=True)
class FrameClose:
    """Send a close frame in place of a frame, then close both connections, as a gateway does before it restarts."""

    probability: float
    side: str = ""
    code: int = _GOING_AWAY

    @classmethod
    def parse(cls, text: str) -> Self:
        """P[:request|:response][:code=N]"""
        (probability,), words = split_words(text, values=1, words=[*SIDES, "code="])
        code = value_of(words, "code")
        code = str(_GOING_AWAY) if code is None else code
        if not (code.isascii() and code.isdecimal() and _CODE_MIN <= int(code) <= _CODE_MAX):
            raise ValueError(f"{text!r}: code={code} is not a close code: a number from {_CODE_MIN} to {_CODE_MAX}")
        return cls(parse_probability(probability), one_of(text, words, SIDES), int(code))


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
