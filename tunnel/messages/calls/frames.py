"""Frames of requests and responses.

| bytes | content |
|---|---|
| 4 | length of everything that follows |
| 4 | length of the header |
| | header: JSON |
| | body: bytes of the application |

The whole frame, the length included, has at most 16,777,216 bytes, the limit of the decoder in remoting-and-backlog.md
(docs/REFERENCES.md). The header has at most 64 fields. The header of a request has at most 8 KiB, that of an answer
2 MiB; a side that has never called accepts 8 KiB of both. The header's field names are those of RocketMQ's remoting
command, and so are the codes and flags that RocketMQ has.
"""

import enum
import struct
from collections.abc import Iterator

import msgspec

from tunnel.messages.errors import MalformedFrameError, MessageTooLargeError

__all__ = [
    "ANSWER_HEADER_BYTES_MAX",
    "FIELDS_MAX",
    "FRAME_BYTES_MAX",
    "REQUEST_HEADER_BYTES_MAX",
    "CallHeader",
    "FrameDecoder",
    "FrameFlag",
    "ResponseCode",
    "encode_frame",
    "encode_start",
]

FRAME_BYTES_MAX = (
    16_777_216  # 2^24, including the length field, as in LengthFieldBasedFrameDecoder(16777216, 0, 4, 0, 4)
)
REQUEST_HEADER_BYTES_MAX = 8 * 1024
ANSWER_HEADER_BYTES_MAX = 2 * 1024 * 1024  # it lists the offsets of up to 65,535 sets of one request
FIELDS_MAX = 64
_LENGTHS = struct.Struct(">II")
_LENGTH_BYTES = 4


class FrameFlag(enum.IntFlag):
    """The kind of a frame. A request that needs an answer has no flag."""

    RESPONSE = 1
    ONE_WAY = 2
    CANCEL = 4
    """The caller no longer waits for the answer to this opaque id. This flag is our extension."""


class ResponseCode(enum.IntEnum):
    """Codes of answers. Codes above 99 belong to applications."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    """The handler raised an error; the remark names it."""
    SYSTEM_BUSY = 2
    """The peer is handling too many requests: try again later."""
    REQUEST_CODE_NOT_SUPPORTED = 3


class CallHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """The JSON header of a frame. Unknown fields are ignored: a later version may have more."""

    code: int
    opaque: int
    flag: int = 0
    remark: str = ""
    fields: dict[str, str] | None = msgspec.field(name="extFields", default=None)


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(CallHeader)


def encode_frame(
    header: CallHeader, body: bytes | bytearray | memoryview = b""
) -> list[bytes | bytearray | memoryview]:
    """Return the buffers of a frame. MessageTooLargeError if it is over the limit."""
    start = encode_start(header, len(body))
    return [start, body] if len(body) else [start]


def encode_start(header: CallHeader, body_bytes: int) -> bytes:
    """Return a frame without its body, which has this size. MessageTooLargeError if the frame is over the limit."""
    json = _encoder.encode(header)
    problem = _problem(header, len(json))
    if problem:
        raise MessageTooLargeError(f"{problem}: put the data into the body")
    size = _LENGTHS.size + len(json) + body_bytes
    if size > FRAME_BYTES_MAX:
        raise MessageTooLargeError(
            f"the frame has {size} bytes, at most {FRAME_BYTES_MAX} are allowed: split it, or use a MessageSession"
        )
    return _LENGTHS.pack(size - _LENGTH_BYTES, len(json)) + json


def _problem(header: CallHeader, size: int) -> str:
    """Return what is wrong with a header of this size, or nothing."""
    if size > REQUEST_HEADER_BYTES_MAX and not header.flag & FrameFlag.RESPONSE:
        return f"a request with a header of {size} bytes, at most {REQUEST_HEADER_BYTES_MAX} are allowed"
    if size > ANSWER_HEADER_BYTES_MAX:
        return f"an answer with a header of {size} bytes, at most {ANSWER_HEADER_BYTES_MAX} are allowed"
    if header.fields is not None and len(header.fields) > FIELDS_MAX:
        return f"a header of {len(header.fields)} fields, at most {FIELDS_MAX} are allowed"
    return ""


class FrameDecoder:
    """Cuts a stream of bytes into frames. A frame over a limit is refused as soon as its first eight bytes arrive."""

    def __init__(self) -> None:
        self.expects_answers = False  # only their headers may be long
        self._buffer = bytearray()

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not self._buffer

    @property
    def held_bytes(self) -> int:
        """The bytes that have arrived of an incomplete frame."""
        return len(self._buffer)

    def feed(self, data: bytes) -> Iterator[tuple[CallHeader, bytes]]:
        """Yield the frames that are now complete. The caller must consume all of them.

        Raises MalformedFrameError if this is not a stream of frames.
        """
        buffer = self._buffer
        buffer += data
        position, size = 0, len(buffer)
        try:
            while size - position >= _LENGTHS.size:
                length, header_length = _LENGTHS.unpack_from(buffer, position)
                if length > FRAME_BYTES_MAX - _LENGTH_BYTES or header_length > length - _LENGTH_BYTES:
                    raise MalformedFrameError(
                        f"not a frame of at most {FRAME_BYTES_MAX} bytes: length {length}, header length "
                        f"{header_length}; check that the other side speaks this protocol"
                    )
                longest = ANSWER_HEADER_BYTES_MAX if self.expects_answers else REQUEST_HEADER_BYTES_MAX
                if header_length > longest:
                    raise MalformedFrameError(f"a header of {header_length} bytes, at most {longest} are allowed here")
                end = position + _LENGTH_BYTES + length
                if end > size:
                    return
                start = position + _LENGTHS.size
                position = end
                json = bytes(buffer[start : start + header_length])
                try:
                    header = _decoder.decode(json)
                except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                    raise MalformedFrameError(f"not a frame: its header is not the expected JSON: {error}") from None
                problem = _problem(header, header_length)
                if problem:
                    raise MalformedFrameError(problem)
                yield header, bytes(memoryview(buffer)[start + header_length : end])
        finally:
            del buffer[:position]
