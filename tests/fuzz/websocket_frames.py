"""Frames of websockets (RFC 6455, 5.2): drawn from a fuzzer's bytes, and read from what a side has sent."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from tests.fuzz.checksums import repair_link
from tests.fuzz.draw import Draw
from tunnel.wire import LINK_HEADER_SIZE, LinkHeader, encode_link_header

__all__ = ["BINARY", "CLOSE", "PING", "PONG", "Script", "frame", "frames_in", "script_of", "scripted"]

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
_CONTROL_BYTES_MAX = 125
_FRAMES_MAX = 60
_LENGTHS = (0, 1, 125, 126, 127, 65_535, 65_536, 131_097, 1 << 20, 1 << 31, 1 << 63, (1 << 64) - 1)
_BATCH_BYTES = (1, 24, 100, 3000)
_CODES = (0, 999, 1000, 1001, 1004, 1005, 1006, 1011, 1015, 2999, 3000, 4001, 4006, 4999, 5000, 65_535)
_MASK = b"\1\2\3\4"


def frame(
    opcode: int, payload: bytes, *, masked: bool, first: int = 0x80, size: int | None = None, form: int = 0
) -> bytes:
    """Return a frame; `first` holds the upper bits of its first byte. With `size` its header announces that length.

    `form`: 126 or 127 for a longer form of the length than is needed.
    """
    size = len(payload) if size is None else size
    short = max(size if size < 126 else 126 if size < 1 << 16 else 127, form)
    more = size.to_bytes({126: 2, 127: 8}[short], "big") if short > 125 else b""
    data = bytes(byte ^ _MASK[index % 4] for index, byte in enumerate(payload)) if masked else payload
    return bytes([first | opcode, short | 0x80 * masked]) + more + (_MASK if masked else b"") + data


@dataclass
class Script:
    """The bytes that one side sends, and the effect that they must have on the other side."""

    masked: bool
    sent: bytearray = field(default_factory=bytearray)
    pings: list[bytes] = field(default_factory=list)  # valid ones, before the first error or close frame
    batches: int = 0  # valid ones, before the first error or close frame
    is_closed: bool = False  # a close frame was sent, with any code
    wrong: str = ""  # the first error
    must_close: bool = False  # whether the relay must close after that error (8.5)

    def say(self, data: bytes, wrong: str = "", *, must_close: bool = False) -> None:
        """Send bytes that are right, or whose error `wrong` names."""
        self.sent += data
        if wrong and not self.is_over:
            self.wrong, self.must_close = wrong, must_close

    @property
    def is_over(self) -> bool:
        """Whether the other side ignores all that follows."""
        return bool(self.wrong) or self.is_closed


def scripted(draw: Draw, *, masked: bool) -> Script:
    """Draw frames until the input ends."""
    script = Script(masked)
    for _ in range(_FRAMES_MAX):
        if not draw.more:
            break
        _OPERATIONS[draw.byte() % len(_OPERATIONS)](draw, script)
    return script


def _batch(draw: Draw, script: Script) -> None:
    payload = bytes(draw.pick(_BATCH_BYTES))
    data = encode_link_header(LinkHeader(script.batches + 1, 0, len(payload))) + payload
    if not script.is_over:
        script.batches += 1
    script.say(frame(BINARY, data, masked=script.masked))


def _receipt(draw: Draw, script: Script) -> None:
    script.say(frame(BINARY, encode_link_header(LinkHeader(0, 0, 0)), masked=script.masked))


def _lie(draw: Draw, script: Script) -> None:
    """Send a header with any numbers and a right checksum, and bytes after it."""
    header = bytearray(LINK_HEADER_SIZE)
    header[4:16] = b"".join(value.to_bytes(4, "big") for value in (draw.number(), draw.number(), draw.number()))
    data = repair_link(bytes(header)) + draw.raw(draw.below(64))
    script.say(frame(BINARY, data, masked=script.masked), "a header that lies")


def _noise(draw: Draw, script: Script) -> None:
    script.say(frame(BINARY, draw.raw(draw.below(64)), masked=script.masked), "noise in a message")


def _ping(draw: Draw, script: Script) -> None:
    payload = draw.raw(draw.below(_CONTROL_BYTES_MAX + 1))
    if not script.is_over:
        script.pings.append(payload)
    script.say(frame(PING, payload, masked=script.masked))


def _pong(draw: Draw, script: Script) -> None:
    script.say(frame(PONG, draw.raw(draw.below(_CONTROL_BYTES_MAX + 1)), masked=script.masked))


def _close(draw: Draw, script: Script) -> None:
    code = draw.pick(_CODES)
    payload = code.to_bytes(2, "big") + draw.raw(draw.below(100)) if code else draw.raw(draw.below(3))
    script.say(frame(CLOSE, payload, masked=script.masked))
    script.is_closed = True


def _text(draw: Draw, script: Script) -> None:
    script.say(frame(TEXT, draw.raw(draw.below(64)), masked=script.masked), "a text message", must_close=True)


def _pieces(draw: Draw, script: Script) -> None:
    """Send a message in several frames, perhaps with a control frame between them, or without the last frame."""
    masked = script.masked
    script.say(frame(BINARY, draw.raw(draw.below(64)), masked=masked, first=0), "several frames", must_close=True)
    for _ in range(draw.below(3)):
        script.say(frame(CONTINUATION, draw.raw(draw.below(64)), masked=masked, first=0))
    if draw.flag():
        _ping(draw, script)
    if draw.flag():
        script.say(frame(CONTINUATION, draw.raw(draw.below(64)), masked=masked))


def _other_mask(draw: Draw, script: Script) -> None:
    opcode = draw.pick((BINARY, PING, CLOSE))
    script.say(frame(opcode, draw.raw(draw.below(64)), masked=not script.masked), "the other mask", must_close=True)


def _odd(draw: Draw, script: Script) -> None:
    """Send reserved bits, an opcode without a meaning, a continuation of nothing, or a control frame in pieces."""
    opcode, first = draw.pick(((0x2, 0xC0), (0x3, 0x80), (0xB, 0x80), (0x0, 0x80), (0x9, 0x00), (0xF, 0xF0)))
    is_unsure = opcode == BINARY  # aiohttp checks reserved bits only when the frame is whole
    payload = draw.raw(draw.below(64))
    script.say(frame(opcode, payload, masked=script.masked, first=first), "an odd frame", must_close=not is_unsure)


def _size(draw: Draw, script: Script) -> None:
    """Send a header that announces another length, or uses a longer form than is needed."""
    size, form, opcode = draw.pick(_LENGTHS), draw.pick((0, 126, 127)), draw.pick((BINARY, PING))
    payload = draw.raw(draw.below(64))
    script.say(frame(opcode, payload, masked=script.masked, size=size, form=form), "another length")


def _raw(draw: Draw, script: Script) -> None:
    script.say(draw.raw(draw.below(64)), "raw bytes")


Operation = Callable[[Draw, Script], None]
_WEIGHTED: tuple[tuple[Operation, int], ...] = (
    (_batch, 8),
    (_receipt, 2),
    (_ping, 4),
    (_pong, 2),
    (_close, 2),
    (_lie, 2),
    (_noise, 2),
    (_text, 1),
    (_pieces, 3),
    (_other_mask, 1),
    (_odd, 2),
    (_size, 2),
    (_raw, 1),
)
# The lower five bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
_OPERATIONS: tuple[Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def script_of(*steps: int | str) -> bytes:
    """Return the input that makes these steps: an operation by the name of its function, without "_", or a byte."""
    names = [operation.__name__.removeprefix("_") for operation in _OPERATIONS]
    return bytes(step if isinstance(step, int) else names.index(step) for step in steps)


def frames_in(data: bytes, *, masked: bool) -> Iterator[tuple[int, bytes]]:
    """Read the frames that our own side has sent: opcode and payload. Raise AssertionError unless they keep to 8.5."""
    while data:
        assert len(data) >= 2, "a header that is not whole"
        first, second = data[0], data[1]
        assert first & 0xF0 == 0x80, f"the first byte of a frame is {first:#x}"
        assert bool(second & 0x80) == masked, "a wrong mask"
        more = {126: 2, 127: 8}.get(second & 0x7F, 0)
        size = int.from_bytes(data[2 : 2 + more], "big") if more else second & 0x7F
        start = 2 + more + 4 * masked
        mask, payload = data[2 + more : start], data[start : start + size]
        assert len(payload) == size, "a frame that is not whole"
        opcode = first & 0xF
        assert opcode in (BINARY, CLOSE, PING, PONG), f"opcode {opcode}"
        assert opcode == BINARY or size <= _CONTROL_BYTES_MAX
        yield opcode, bytes(byte ^ mask[index % 4] for index, byte in enumerate(payload)) if masked else payload
        data = data[start + size :]
        assert opcode != CLOSE or not data, "something follows a close frame"
