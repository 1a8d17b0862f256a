"""Envelopes, which frame the bodies of requests and their answers, and the five messages that they can hold.

Clauses 6.1, 7.1, 7.2, 7.10, 7.11 of docs/PROTOCOL.md.
"""

import enum
import functools
import hashlib
import struct
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.checksum import checksum
from tunnel.wire.fields import BYTE, SHORT, exact, pack, pack_text, unpack_text

__all__ = [
    "ANSWER_BYTES",
    "ATTACHMENT_ID_SIZE",
    "CONFIRMATION_BYTES",
    "ENVELOPE_BYTES",
    "EVIDENCE_BYTES",
    "EXCHANGE_BYTES",
    "HTTP_STATUS",
    "MAGIC",
    "SECRET_SIZE",
    "Answer",
    "Attach",
    "Attached",
    "EnvelopeError",
    "Exchange",
    "Message",
    "Status",
    "StatusCode",
    "attachment_id",
    "decode_envelope",
    "encode_envelope",
    "inline_exit_id",
    "is_inline_exit",
    "mask_of",
]

MAGIC = b"TUNL"  # 7.1
ENVELOPE_BYTES = 16  # 7.1
SECRET_SIZE = 32  # bytes; 6.1
ATTACHMENT_ID_SIZE = 16  # bytes; 6.1
ENVELOPE_VERSION = 1

_HEADER = struct.Struct("!4sBBBBII")  # magic, version, kind, flags, mask, length, checksum
_FLAGS_OFFSET, _MASK_OFFSET, _CHECKSUM_OFFSET = 6, 7, 12
_CHECKSUM_BYTES = 4
_MASKED, _PIECE, _PULL, _MORE = 1, 2, 4, 8  # flags of 7.1
_STREAM, _GOES_ON = 16, 16  # flags of 7.1: in EXCHANGE, in ANSWER
_CONFIRMS = 32  # flag of 7.1, in EXCHANGE
_FRESH, _STREAMS = 1, 2  # flags of ATTACHED
_ATTACH = struct.Struct("!32sIIIHH")
_ATTACHED = struct.Struct("!16sQIBBHIIIIIHH")
_EXCHANGE = struct.Struct("!16sQIHxxIIIII")
_CONFIRMATION = struct.Struct("!HxxI")
_ANSWER = struct.Struct("!HHIII")
_EVIDENCE = struct.Struct("!HI")
_STATUS = struct.Struct("!HxxI")

EXCHANGE_BYTES = ENVELOPE_BYTES + _EXCHANGE.size  # size of a request body without its packets
CONFIRMATION_BYTES = _CONFIRMATION.size  # bytes that a confirmation of a stream adds to a request body (7.20)
ANSWER_BYTES = ENVELOPE_BYTES + _ANSWER.size  # size of a response body without its packets and evidence
EVIDENCE_BYTES = _EVIDENCE.size  # size of the evidence for one lane


class Attach(msgspec.Struct, frozen=True):
    """ATTACH: the request that starts an attachment, and each new generation of it."""

    secret: bytes
    generation: int
    pull_interval_ms: int
    body_bytes_max: int  # the largest body that the endpoint accepts
    versions: tuple[int, int] = (1, 1)  # lowest, highest
    name: str = ""


class Attached(msgspec.Struct, frozen=True):
    """ATTACHED: the answer to ATTACH, with the relay's epoch and its limits."""

    attachment_id: bytes
    epoch: int
    generation: int
    fresh: bool
    body_bytes_max: int
    packet_bytes_max: int
    hold_ms_max: int
    pull_interval_ms: int
    initial_edge_bytes: int
    lanes: int
    version: int = 1
    packets_max: int = 0  # of one body or batch; 0: the relay does not say
    streams: bool = False  # the relay can answer a pull with a stream (7.20)
    age: int = 0  # the relay has run for at least 2 ** (age - 1) ms; 0: it does not say


class Exchange(msgspec.Struct):
    """EXCHANGE: a request on a lane.

    `payload` holds packets, in one buffer or in several. In a decoded message it is a slice of the body.
    """

    attachment_id: bytes
    epoch: int
    generation: int
    lane: int
    number: int
    serial_received: int
    hold_ms: int
    answer_bytes_max: int
    piece_offset: int = 0
    pull: bool = False
    piece: bool = False
    payload: Buffer | list[Buffer] = b""
    stream: bool = False  # the answer to this pull may be a stream (7.20)
    confirms: tuple[int, int] | None = None  # a lane, and the serial up to which its stream has arrived (7.20)

    @property
    def data(self) -> Buffer:
        """The payload as one buffer. It is copied only if it consists of several."""
        return b"".join(self.payload) if isinstance(self.payload, list) else self.payload


class Answer(msgspec.Struct):
    """ANSWER: the response on a lane. `payload` is like that of `Exchange`."""

    lane: int
    number: int
    serial: int
    piece_offset: int = 0
    piece: bool = False
    more: bool = False
    evidence: list[tuple[int, int]] = []  # lane, the highest number answered on it (7.7)
    payload: Buffer | list[Buffer] = b""
    goes_on: bool = False  # another envelope follows in this stream (7.20)

    @property
    def data(self) -> Buffer:
        """The payload as one buffer. It is copied only if it consists of several."""
        return b"".join(self.payload) if isinstance(self.payload, list) else self.payload


class StatusCode(enum.IntEnum):
    """The reason for which the relay refused a request (7.10)."""

    UNKNOWN = 1
    CORRUPT = 2
    STALE = 3
    TOO_LARGE = 4
    BUSY = 5
    NOT_AUTHORISED = 6
    DENIED = 7
    MALFORMED = 8


# The usual HTTP status of each code (7.10).
HTTP_STATUS: dict[int, int] = {
    StatusCode.UNKNOWN: 404,
    StatusCode.CORRUPT: 400,
    StatusCode.STALE: 409,
    StatusCode.TOO_LARGE: 413,
    StatusCode.BUSY: 503,
    StatusCode.NOT_AUTHORISED: 401,
    StatusCode.DENIED: 403,
    StatusCode.MALFORMED: 400,
}


class Status(msgspec.Struct, frozen=True):
    """STATUS: a refusal. `code` is a StatusCode, or a plain number that this version does not know."""

    code: int
    retry_after_ms: int = 0
    text: str = ""


class EnvelopeError(enum.Enum):
    """The reason for which a body does not hold a valid message."""

    NOT_OURS = "not a tunnel message (no magic)"
    TRUNCATED = "the body is shorter than its length field says"
    CORRUPT = "the body is damaged, or longer than its length field says"
    VERSION = "the body has a protocol version that this side does not speak"
    MALFORMED = "the body is intact, but its kind is unknown or its layout is wrong"


Message: TypeAlias = Attach | Attached | Exchange | Answer | Status
_INLINE_MARKER = b"inline\0\0"  # 6.1
_CODES: dict[int, int] = {int(code): code for code in StatusCode}


def attachment_id(secret: bytes) -> bytes:
    """Return the attachment id of the endpoint that drew `secret` (6.1)."""
    digest = hashlib.sha256(b"tunnel attachment 1" + exact("a secret", secret, SECRET_SIZE)).digest()
    return digest[:ATTACHMENT_ID_SIZE]


def inline_exit_id(epoch: int) -> bytes:
    """Return the attachment id of the inline exit of the relay with this epoch (6.1).

    It changes with every start of the relay. So a resume that names the exit of an earlier process, whose connections
    died with it, is recognised at once.
    """
    return _INLINE_MARKER + epoch.to_bytes(8, "big")


def is_inline_exit(identity: bytes) -> bool:
    """Return whether this id is that of an inline exit, of any relay."""
    return identity.startswith(_INLINE_MARKER)


@functools.cache
def _mask_table(mask: int) -> bytes:
    """Return the table with which bytes.translate XORs every byte with the mask."""
    if not 0 <= mask <= 255:
        raise ValueError(f"a mask must be 0 to 255, not {mask}")
    return bytes(value ^ mask for value in range(256))


def mask_of(data: Buffer) -> int:
    """Return the mask of an envelope; 0 if it has none, or is too short to be one."""
    is_masked = len(data) >= _HEADER.size and data[_FLAGS_OFFSET] & _MASKED
    return data[_MASK_OFFSET] if is_masked else 0


def encode_envelope(message: Message, *, mask: int | None = None) -> list[Buffer]:
    """Encode a message into the buffers of a body, to be sent in order. Payloads are copied only if there is a mask."""
    kind, encode = _ENCODERS[type(message)]
    flags, fields = encode(message)
    buffers: list[Buffer] = [fields]
    if isinstance(message, Exchange | Answer):
        payload = message.payload
        buffers += payload if isinstance(payload, list) else [payload] if len(payload) else []
    if mask is not None:
        flags |= _MASKED
        buffers = [b"".join(buffers).translate(_mask_table(mask))]
    length = sum(map(len, buffers))
    head = pack(_HEADER, MAGIC, ENVELOPE_VERSION, kind, flags, mask or 0, length, 0)
    buffers[0] = head[:_CHECKSUM_OFFSET] + checksum(head, *buffers).to_bytes(_CHECKSUM_BYTES) + buffers[0]
    return buffers


def decode_envelope(data: Buffer) -> Message | EnvelopeError:
    """Return the message in a body, or the reason why there is none.

    Payloads are slices of `data`, unless the body was masked.
    """
    view = memoryview(data)
    if view[:4] != MAGIC:
        return EnvelopeError.NOT_OURS
    if len(view) < ENVELOPE_BYTES:
        return EnvelopeError.TRUNCATED
    _, version, kind, flags, mask, length, value = _HEADER.unpack_from(view)
    body = view[ENVELOPE_BYTES:]
    if len(body) < length:
        return EnvelopeError.TRUNCATED
    # Check the checksum before the version: repeating repairs a damaged version byte, but never an unknown version.
    if len(body) > length or value != checksum(view[:12], bytes(4), body):
        return EnvelopeError.CORRUPT
    if version != ENVELOPE_VERSION:
        return EnvelopeError.VERSION
    if kind not in _DECODERS:
        return EnvelopeError.MALFORMED
    if flags & _MASKED:
        body = memoryview(bytes(body).translate(_mask_table(mask)))
    message = _DECODERS[kind](body, flags)
    return EnvelopeError.MALFORMED if message is None else message


def _encode_attach(message: Attach) -> tuple[int, bytes]:
    lowest, highest = message.versions
    if lowest > highest:
        raise ValueError(f"the lowest version {lowest} is above the highest {highest}")
    secret = exact("a secret", message.secret, SECRET_SIZE)
    limits = (message.generation, message.pull_interval_ms, message.body_bytes_max)
    return 0, pack(_ATTACH, secret, *limits, lowest, highest) + pack_text(message.name, BYTE)


def _decode_attach(body: memoryview, flags: int) -> Attach | None:
    name = unpack_text(body, _ATTACH.size, BYTE)
    if name is None or name[1] != len(body):
        return None
    secret, generation, pull_interval_ms, body_bytes_max, lowest, highest = _ATTACH.unpack_from(body)
    if lowest > highest:
        return None
    return Attach(secret, generation, pull_interval_ms, body_bytes_max, (lowest, highest), name[0])


def _encode_attached(message: Attached) -> tuple[int, bytes]:
    exact("an attachment id", message.attachment_id, ATTACHMENT_ID_SIZE)
    *fields, packets_max, streams, age = msgspec.structs.astuple(message)  # the others are in wire order
    flags = _FRESH * message.fresh | _STREAMS * streams
    return 0, pack(_ATTACHED, *fields[:3], flags, age, packets_max, *fields[4:])


def _decode_attached(body: memoryview, flags: int) -> Attached | None:
    if len(body) != _ATTACHED.size:
        return None
    identity, epoch, generation, own, age, packets_max, *others = _ATTACHED.unpack(body)
    last = (packets_max, bool(own & _STREAMS), age)
    return Attached(identity, epoch, generation, bool(own & _FRESH), *others, *last)  # type: ignore[call-arg]


def _encode_exchange(message: Exchange) -> tuple[int, bytes]:
    flags = _PULL * message.pull | _PIECE * message.piece | _STREAM * message.stream
    fixed = pack(
        _EXCHANGE,
        exact("an attachment id", message.attachment_id, ATTACHMENT_ID_SIZE),
        message.epoch,
        message.generation,
        message.lane,
        message.number,
        message.serial_received,
        message.hold_ms,
        message.answer_bytes_max,
        message.piece_offset,
    )
    if message.confirms is None:
        return flags, fixed
    return flags | _CONFIRMS, fixed + pack(_CONFIRMATION, *message.confirms)


def _decode_exchange(body: memoryview, flags: int) -> Exchange | None:
    if len(body) < _EXCHANGE.size:
        return None
    identity, epoch, generation, lane, number, serial, hold_ms, limit, offset = _EXCHANGE.unpack_from(body)
    start, confirms = _EXCHANGE.size, None
    if flags & _CONFIRMS:
        start += _CONFIRMATION.size
        if len(body) < start:
            return None
        confirmed_lane, confirmed_serial = _CONFIRMATION.unpack_from(body, _EXCHANGE.size)
        confirms = (confirmed_lane, confirmed_serial)
    pull, piece, stream = bool(flags & _PULL), bool(flags & _PIECE), bool(flags & _STREAM)
    return Exchange(
        identity, epoch, generation, lane, number, serial, hold_ms, limit, offset, pull, piece, body[start:], stream,
        confirms,
    )  # fmt: skip


def _encode_answer(message: Answer) -> tuple[int, bytes]:
    flags = _MORE * message.more | _PIECE * message.piece | _GOES_ON * message.goes_on
    evidence = message.evidence
    fixed = pack(_ANSWER, message.lane, len(evidence), message.number, message.serial, message.piece_offset)
    return flags, fixed + b"".join([pack(_EVIDENCE, lane, number) for lane, number in evidence])


def _decode_answer(body: memoryview, flags: int) -> Answer | None:
    if len(body) < _ANSWER.size:
        return None
    lane, count, number, serial, piece_offset = _ANSWER.unpack_from(body)
    start = _ANSWER.size + count * _EVIDENCE.size
    if len(body) < start:
        return None
    evidence: list[tuple[int, int]] = list(_EVIDENCE.iter_unpack(body[_ANSWER.size : start]))
    piece, more, goes_on = bool(flags & _PIECE), bool(flags & _MORE), bool(flags & _GOES_ON)
    return Answer(lane, number, serial, piece_offset, piece, more, evidence, body[start:], goes_on)


def _encode_status(message: Status) -> tuple[int, bytes]:
    return 0, pack(_STATUS, message.code, message.retry_after_ms) + pack_text(message.text, SHORT)


def _decode_status(body: memoryview, flags: int) -> Status | None:
    text = unpack_text(body, _STATUS.size, SHORT)
    if text is None or text[1] != len(body):
        return None
    code, retry_after_ms = _STATUS.unpack_from(body)
    return Status(_CODES.get(code, code), retry_after_ms, text[0])


_ENCODERS: dict[type, tuple[int, Callable[[Any], tuple[int, bytes]]]] = {
    Attach: (1, _encode_attach),
    Attached: (2, _encode_attached),
    Exchange: (3, _encode_exchange),
    Answer: (4, _encode_answer),
    Status: (5, _encode_status),
}
_DECODERS: dict[int, Callable[[memoryview, int], Message | None]] = {
    1: _decode_attach,
    2: _decode_attached,
    3: _decode_exchange,
    4: _decode_answer,
    5: _decode_status,
}
