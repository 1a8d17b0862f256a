"""One message, and its format on the wire and on disk.

| bytes | content |
|---|---|
| 4 | length of everything that follows: payload + 6 |
| 1 | version (magic byte): 1 |
| 1 | attributes: the two low bits are the codec, the other bits are 0 |
| 4 | CRC-32 of the payload |
| length − 6 | payload |

If the codec is not 0, the payload is a message set, compressed as a whole.
"""

import struct
from collections.abc import Iterable, Iterator
from itertools import repeat
from zlib import crc32

import msgspec

from tunnel.messages.errors import (
    ChecksumError,
    CorruptMessageError,
    DecompressError,
    MessageSizeError,
    MessageTooLargeError,
    UnknownCodecError,
    UnknownVersionError,
)
from tunnel.messages.sets.codec import CODEC_MASK, Codec, decompress

__all__ = [
    "DEPTH_MAX",
    "HEADER_BYTES",
    "LENGTH_BYTES",
    "MESSAGE_BYTES_MAX",
    "MESSAGE_VERSION",
    "SET_MESSAGES_MAX",
    "UNPACKED_BYTES_MAX",
    "Message",
    "MessageAndOffset",
    "check_size",
    "count_whole",
    "encode_message",
    "encode_payloads",
    "parse_header",
    "plain_payloads",
    "scan",
    "unpack_set",
]

MESSAGE_VERSION = 1  # Kafka 0.7's magic byte for messages with attributes, the only one in message-sets-and-senders.md
MESSAGE_BYTES_MAX = 1_000_000  # largest payload by default: Kafka 0.7's max.message.size
UNPACKED_BYTES_MAX = 64 * 1024 * 1024  # the largest unpacked size of one compressed set, with everything nested in it
SET_MESSAGES_MAX = 100_000  # of one compressed set: 6 KB can unpack to millions of empty messages
DEPTH_MAX = 2  # levels of nested compressed sets: one more than this package writes
_SLICE_BYTES = 64 * 1024  # of an unpacked set: messages are counted after each, so that few too many exist

_HEADER = struct.Struct(">IBBI")
HEADER_BYTES = _HEADER.size
LENGTH_BYTES = 4
_FIXED_BYTES = HEADER_BYTES - LENGTH_BYTES  # what the length field counts besides the payload

# For loops over many messages: version and attributes as one number, and its value in a message that is not compressed.
_SHORT_HEADER = struct.Struct(">IHI")
_PLAIN = MESSAGE_VERSION << 8


class Message(msgspec.Struct, frozen=True, gc=False):
    """A payload and its codec. With a codec other than NONE, the payload is a compressed message set."""

    payload: bytes
    codec: Codec = Codec.NONE

    @property
    def size_bytes(self) -> int:
        """The size of the message in a set, header included."""
        return HEADER_BYTES + len(self.payload)


class MessageAndOffset(msgspec.Struct, frozen=True, gc=False):
    """A message with the byte positions, from the start of the set, at which it and the next message begin.

    All messages of a compressed set have the positions of the message that wraps the set.
    """

    message: Message
    offset: int
    next_offset: int

    @property
    def payload(self) -> bytes:
        return self.message.payload


def check_size(payload: bytes, size_max: int) -> None:
    """Raise MessageTooLargeError if a payload is over the limit. Call this before anything is written."""
    if len(payload) > size_max:
        raise MessageTooLargeError(
            f"the message has {len(payload)} bytes, at most {size_max} are allowed: split it, or raise the limit"
        )


def encode_message(message: Message) -> bytes:
    """Return the header and payload of a message as bytes."""
    payload = message.payload
    return _HEADER.pack(len(payload) + _FIXED_BYTES, MESSAGE_VERSION, message.codec, crc32(payload)) + payload


def encode_payloads(payloads: Iterable[bytes]) -> bytes:
    """Return an uncompressed message set of these payloads."""
    kept = payloads if isinstance(payloads, list) else list(payloads)
    parts = [b""] * (2 * len(kept))
    parts[1::2] = kept
    lengths = [len(payload) + _FIXED_BYTES for payload in kept]
    parts[0::2] = map(_SHORT_HEADER.pack, lengths, repeat(_PLAIN), map(crc32, kept))
    return b"".join(parts)


def parse_header(data: bytes | memoryview, position: int, length_max: int, base: int = 0) -> tuple[int, int, int]:
    """Return the position of the next message, the attributes and the CRC. `data` must have a header at `position`.

    An invalid header raises MessageSizeError, UnknownVersionError or UnknownCodecError before its length is used.
    """
    length, version, attributes, crc = _HEADER.unpack_from(data, position)
    if version != MESSAGE_VERSION:
        raise UnknownVersionError(f"message version {version}, only {MESSAGE_VERSION} is known here", base + position)
    if not _FIXED_BYTES <= length <= length_max:
        raise MessageSizeError(f"message length {length}, 6 to {length_max} are allowed", base + position)
    if attributes > Codec.ZSTD:
        raise UnknownCodecError(f"message attributes {attributes:#04x}, the codecs are 0 to 2", base + position)
    return position + LENGTH_BYTES + length, attributes, crc


def scan(
    data: bytes,
    *,
    start: int = 0,
    base: int = 0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
    deep: bool = True,
) -> Iterator[MessageAndOffset]:
    """Yield every whole message from `start` on. A truncated tail ends the iteration silently; other damage raises.

    `base` is added to the offsets. With `deep`, compressed sets are unpacked; otherwise each one comes as one message.
    The compressed form of a set may be as long as `unpacked_bytes_max` allows its messages to be.
    """
    length_max = max(message_bytes_max, unpacked_bytes_max) + _FIXED_BYTES
    unpack = _HEADER.unpack_from
    position, size = start, len(data)
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


def plain_payloads(
    data: bytes, position: int = 0, message_bytes_max: int = MESSAGE_BYTES_MAX, stop: int | None = None
) -> tuple[list[bytes], int]:
    """Return the payloads of the valid messages from `position` to the first that is not plain, and where that begins.
    Messages that begin at `stop` or after it are left out.

    A message is not plain if it is compressed, damaged, too large, or cut: give the rest to `scan`, which tells them
    apart. This function makes nothing but the payloads, and takes a third of the time of `scan`.
    """
    payloads: list[bytes] = []
    append = payloads.append
    unpack = _SHORT_HEADER.unpack_from
    size, length_max = len(data), message_bytes_max + _FIXED_BYTES
    last = min(size - HEADER_BYTES, (size if stop is None else stop) - 1)
    while position <= last:
        length, kind, crc = unpack(data, position)
        end = position + LENGTH_BYTES + length
        if kind != _PLAIN or not _FIXED_BYTES <= length <= length_max or end > size:
            break
        payload = data[position + HEADER_BYTES : end]
        if crc32(payload) != crc:
            break
        append(payload)
        position = end
    return payloads, position


def count_whole(data: bytes, position: int = 0, stop: int | None = None) -> tuple[int, int]:
    """Check the messages that begin before `stop`; return how many are whole, and the position after the last of them.

    A compressed message counts as one. A message that is cut is not counted. CorruptMessageError if one is damaged.
    """
    count, size = 0, len(data)
    last = min(size - HEADER_BYTES, (size if stop is None else stop) - 1)
    unpack = _SHORT_HEADER.unpack_from
    while position <= last:
        length, kind, crc = unpack(data, position)
        end = position + LENGTH_BYTES + length
        if kind != _PLAIN or length < _FIXED_BYTES or end > size:
            parse_header(data, position, UNPACKED_BYTES_MAX + _FIXED_BYTES)
            if end > size:
                break
        if crc32(data[position + HEADER_BYTES : end]) != crc:
            raise ChecksumError("the payload does not match its CRC-32", position)
        count += 1
        position = end
    return count, position


def unpack_set(
    wrapper: Message,
    offset: int = 0,
    message_bytes_max: int = MESSAGE_BYTES_MAX,
    unpacked_bytes_max: int = UNPACKED_BYTES_MAX,
) -> list[bytes]:
    """Return the payloads in a compressed message. DecompressError if they are damaged, too large, too many or nested
    too deeply.

    The whole set is checked before any payload is returned.
    """
    payloads: list[bytes] = []
    _unpack(payloads, wrapper, offset, message_bytes_max, unpacked_bytes_max, 1)
    return payloads


def _unpack(
    payloads: list[bytes], wrapper: Message, offset: int, message_bytes_max: int, budget_bytes: int, depth: int
) -> int:
    """Add the payloads, and return what is left of the budget."""
    if depth > DEPTH_MAX:
        raise DecompressError(f"compressed sets nested more than {DEPTH_MAX} deep", offset)
    inner = decompress(wrapper.payload, wrapper.codec, budget_bytes, offset)
    budget_bytes -= len(inner)
    end = 0
    try:
        while True:
            found, end = plain_payloads(inner, end, message_bytes_max, end + _SLICE_BYTES)
            payloads += found
            _check_count(payloads, offset)
            if not found:
                break
        for each in scan(
            inner, start=end, message_bytes_max=message_bytes_max, unpacked_bytes_max=len(inner), deep=False
        ):
            end = each.next_offset
            if each.message.codec is Codec.NONE:
                payloads.append(each.payload)
            else:
                budget_bytes = _unpack(payloads, each.message, offset, message_bytes_max, budget_bytes, depth + 1)
            _check_count(payloads, offset)
    except DecompressError:
        raise
    except CorruptMessageError as error:
        raise DecompressError(f"in a compressed set: {error}", offset) from error
    if end != len(inner):
        raise DecompressError("the compressed set ends within a message", offset)
    return budget_bytes


def _check_count(payloads: list[bytes], offset: int) -> None:
    if len(payloads) > SET_MESSAGES_MAX:
        raise DecompressError(f"a compressed set of more than {SET_MESSAGES_MAX} messages, the limit", offset)
