"""Frames of requests and responses.

| bytes | what |
|---|---|
| 4 | length of everything that follows |
| 4 | length of the header |
| | header: JSON |
| | body: bytes of the application |

The whole frame, the length included, has at most 16,777,216 bytes: what the document's decoder takes. The header's
fields have the names of the document's system (RocketMQ's remoting command), and its numbers where it has one.
"""

import enum
import struct
from collections.abc import Iterator

import msgspec

from tunnel.messages.errors import MalformedFrameError, MessageTooLargeError

__all__ = [
    "FRAME_BYTES_MAX",
    "CallHeader",
    "FrameDecoder",
    "FrameFlag",
    "ResponseCode",
    "encode_frame",
]

FRAME_BYTES_MAX = (
    16_777_216  # 2^24; with the length field, as LengthFieldBasedFrameDecoder(16777216, 0, 4, 0, 4) counts
)
_LENGTHS = struct.Struct(">II")
_LENGTH_BYTES = 4


class FrameFlag(enum.IntFlag):
    """What a frame is; a request that wants an answer has none."""

    RESPONSE = 1
    ONE_WAY = 2
    CANCEL = 4
    """The caller waits no longer for the answer to this opaque id. Ours."""


class ResponseCode(enum.IntEnum):
    """Codes of answers. Applications have those above 99."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    """The handler raised; the remark says what."""
    SYSTEM_BUSY = 2
    """Too much is being handled: try again later."""
    REQUEST_CODE_NOT_SUPPORTED = 3


class CallHeader(msgspec.Struct, omit_defaults=True, gc=False):
    """The JSON of a frame. Unknown fields are left alone: a later version may have more."""

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
    """The buffers of a frame. MessageTooLargeError before anything is written."""
    json = _encoder.encode(header)
    size = _LENGTHS.size + len(json) + len(body)
    if size > FRAME_BYTES_MAX:
        raise MessageTooLargeError(
            f"a frame of {size} bytes, at most {FRAME_BYTES_MAX}: split it, or send it with a MessageSession"
        )
    start = _LENGTHS.pack(size - _LENGTH_BYTES, len(json)) + json
    return [start, body] if len(body) else [start]


class FrameDecoder:
    """Bytes of a stream in, whole frames out. A frame over the limit is refused by its first eight bytes."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    @property
    def is_between_frames(self) -> bool:
        """Whether the stream may end here."""
        return not self._buffer

    def feed(self, data: bytes) -> Iterator[tuple[CallHeader, bytes]]:
        """The frames that are whole now: take them all. MalformedFrameError if this is no stream of frames."""
        buffer = self._buffer
        buffer += data
        position, size = 0, len(buffer)
        try:
            while size - position >= _LENGTHS.size:
                length, header_length = _LENGTHS.unpack_from(buffer, position)
                if length > FRAME_BYTES_MAX - _LENGTH_BYTES or header_length > length - _LENGTH_BYTES:
                    raise MalformedFrameError(
                        f"not a frame: length {length}, header length {header_length}; check that the other side "
                        "speaks this protocol"
                    )
                end = position + _LENGTH_BYTES + length
                if end > size:
                    return
                start = position + _LENGTHS.size
                position = end
                json = bytes(buffer[start : start + header_length])
                try:
                    header = _decoder.decode(json)
                except (msgspec.DecodeError, UnicodeDecodeError) as error:
                    raise MalformedFrameError(f"not a frame: its header is no such JSON: {error}") from None
                yield header, bytes(buffer[start + header_length : end])
        finally:
            del buffer[:position]
