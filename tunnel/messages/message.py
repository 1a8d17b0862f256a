"""One message, and its form on the wire and on disk.

| bytes | what |
|---|---|
| 4 | length of everything that follows: payload + 6 |
| 1 | version (magic byte): 1 |
| 1 | attributes: the two low bits are the codec, the others 0 |
| 4 | CRC-32 of the payload |
| length − 6 | payload |

A message whose codec is not 0 holds a message set, compressed as one.
"""

import struct
from collections.abc import Iterable, Iterator
from zlib import crc32

import msgspec

from tunnel.messages.codec import CODEC_MASK, Codec, decompress
from tunnel.messages.errors import (
    ChecksumError,
    CorruptMessageError,
    DecompressError,
    MessageSizeError,
    MessageTooLargeError,
    UnknownCodecError,
    UnknownVersionError,
)

__all__ = [
    "DEPTH_MAX",
    "HEADER_BYTES",
    "LENGTH_BYTES",
    "MESSAGE_BYTES_MAX",
    "MESSAGE_VERSION",
    "UNPACKED_BYTES_MAX",
    "Message",
    "MessageAndOffset",
    "check_size",
    "encode_message",
    "encode_payloads",
    "parse_header",
    "scan",
    "unpack_set",
]

MESSAGE_VERSION = 1  # Kafka 0.7's magic byte for messages with attributes; the document knows only this one
MESSAGE_BYTES_MAX = 1_000_000  # of a payload, unless told otherwise: Kafka 0.7's max.message.size
UNPACKED_BYTES_MAX = 64 * 1024 * 1024  # of one compressed set, with everything nested in it
DEPTH_MAX = 2  # compressed sets within compressed sets: one more than anybody here writes

_HEADER = struct.Struct(">IBBI")
HEADER_BYTES = _HEADER.size
LENGTH_BYTES = 4
_FIXED_BYTES = HEADER_BYTES - LENGTH_BYTES  # what the length counts besides the payload


class Message(msgspec.Struct, frozen=True, gc=False):
    """A payload, and the codec it is compressed with: then it is a message set."""

    payload: bytes
    codec: Codec = Codec.NONE

    @property
    def size_bytes(self) -> int:
        """In a set, header included."""
        return HEADER_BYTES + len(self.payload)


class MessageAndOffset(msgspec.Struct, frozen=True, gc=False):
    """A message, where it begins and where the next one does: bytes from the start of the set.

    Messages out of a compressed set have the offsets of the whole set.
    """

    message: Message
    offset: int
    next_offset: int

    @property
    def payload(self) -> bytes:
        return self.message.payload


def check_size(payload: bytes, size_max: int) -> None:
    """MessageTooLargeError if this may not be sent. Call it before anything is written."""
    if len(payload) > size_max:
        raise MessageTooLargeError(
            f"a message of {len(payload)} bytes, at most {size_max}: split it, or raise the limit"
        )


def encode_message(message: Message) -> bytes:
    """Header and payload."""
    payload = message.payload
    return _HEADER.pack(len(payload) + _FIXED_BYTES, MESSAGE_VERSION, message.codec, crc32(payload)) + payload


def encode_payloads(payloads: Iterable[bytes]) -> bytes:
    """An uncompressed message set of these."""
    pack = _HEADER.pack
    parts: list[bytes] = []
    for payload in payloads:
        parts.append(pack(len(payload) + _FIXED_BYTES, MESSAGE_VERSION, 0, crc32(payload)))
        parts.append(payload)
    return b"".join(parts)


def parse_header(data: bytes | memoryview, position: int, length_max: int, base: int = 0) -> tuple[int, int, int]:
    """Position of the next message, attributes and CRC. At least HEADER_BYTES must be there.

    Raises before anything is done with the length: MessageSizeError, UnknownVersionError, UnknownCodecError.
    """
    length, version, attributes, crc = _HEADER.unpack_from(data, position)
    if version != MESSAGE_VERSION:
        raise UnknownVersionError(f"message version {version}, this side knows {MESSAGE_VERSION}", base + position)
    if not _FIXED_BYTES <= length <= length_max:
        raise MessageSizeError(f"message length {length}, allowed are 6 to {length_max}", base + position)
    if attributes > Codec.ZSTD:
        raise UnknownCodecError(f"message attributes {attributes:#04x}, codecs are 0 to 2", base + position)
    return position + LENGTH_BYTES + length, attributes, crc


def scan(
    data: bytes,
    *,
    base: int = 0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    deep: bool = True,
) -> Iterator[MessageAndOffset]:
    """Every whole message; a truncated tail ends it quietly, anything else that is wrong raises.

    `base` is added to the offsets. `deep`: what is compressed is unpacked; otherwise it comes as it is. A compressed
    set may be as long as its messages may be when unpacked.
    """
    length_max = max(message_bytes_max, unpacked_bytes_max) + _FIXED_BYTES
    unpack = _HEADER.unpack_from
    position, size = 0, len(data)
    while size - position >= HEADER_BYTES:
        length, version, attributes, crc = unpack(data, position)
        end = position + LENGTH_BYTES + length
        plain = version == MESSAGE_VERSION and not attributes and length >= _FIXED_BYTES
        if not plain or length > message_bytes_max + _FIXED_BYTES:
            compressed = version == MESSAGE_VERSION and attributes
            parse_header(data, position, length_max if compressed else message_bytes_max + _FIXED_BYTES, base)
        if end > size:
            return
        payload = data[position + HEADER_BYTES : end]
        if crc32(payload) != crc:
            raise ChecksumError("the payload does not match its CRC-32", base + position)
        if not attributes:
            yield MessageAndOffset(Message(payload), base + position, base + end)
        elif not deep:
            yield MessageAndOffset(Message(payload, Codec(attributes & CODEC_MASK)), base + position, base + end)
        else:
            wrapper = Message(payload, Codec(attributes & CODEC_MASK))
            for inner in unpack_set(wrapper, base + position, message_bytes_max, unpacked_bytes_max):
                yield MessageAndOffset(Message(inner), base + position, base + end)
        position = end


def unpack_set(
    wrapper: Message,
    offset: int = 0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
) -> list[bytes]:
    """The payloads in a compressed message; DecompressError where they are too large or nested too deeply.

    All of it is checked before the first is given: half a set is none.
    """
    return _unpack(wrapper, offset, message_bytes_max, unpacked_bytes_max, 1)[0]


def _unpack(
    wrapper: Message, offset: int, message_bytes_max: int, budget_bytes: int, depth: int
) -> tuple[list[bytes], int]:
    """Payloads, and what is left of the budget."""
    if depth > DEPTH_MAX:
        raise DecompressError(f"compressed sets nested more than {DEPTH_MAX} deep", offset)
    inner = decompress(wrapper.payload, wrapper.codec, budget_bytes, offset)
    budget_bytes -= len(inner)
    payloads: list[bytes] = []
    end = 0
    try:
        for found in scan(inner, message_bytes_max=message_bytes_max, unpacked_bytes_max=len(inner), deep=False):
            end = found.next_offset
            if found.message.codec is Codec.NONE:
                payloads.append(found.payload)
                continue
            nested, budget_bytes = _unpack(found.message, offset, message_bytes_max, budget_bytes, depth + 1)
            payloads += nested
    except DecompressError:
        raise
    except CorruptMessageError as error:
        raise DecompressError(f"in a compressed set: {error}", offset) from error
    if end != len(inner):
        raise DecompressError("a compressed set that ends within a message", offset)
    return payloads, budget_bytes
