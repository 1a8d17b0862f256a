"""The payloads of FINISH and CLOSE, ABORT, OPTION, LISTEN_STATE, DROPPED, EDGE and LEAVE (PROTOCOL 2.5 to 2.12)."""

import enum
import struct

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.fields import BYTE, SHORT, exact, pack, pack_text, unpack_text
from tunnel.wire.options import Options, decode_options, encode_options

__all__ = [
    "DIGEST_SIZE",
    "PING_BYTES_MAX",
    "Abort",
    "AbortReason",
    "DropReason",
    "Dropped",
    "Edge",
    "End",
    "ListenState",
    "ListenStatus",
    "Option",
    "decode_abort",
    "decode_dropped",
    "decode_edge",
    "decode_end",
    "decode_leave",
    "decode_listen_state",
    "decode_option",
    "encode_abort",
    "encode_dropped",
    "encode_edge",
    "encode_end",
    "encode_leave",
    "encode_listen_state",
    "encode_option",
]

DIGEST_SIZE = 16  # bytes of XXH3-128; 2.5
PING_BYTES_MAX = 64  # 1.5

_END = struct.Struct("!Q16s")
_RECEIVED = struct.Struct("!I")
_ABORT = struct.Struct("!H")
_OPTION = struct.Struct("!I")
_LISTEN = struct.Struct("!IBH")
_DROPPED = struct.Struct("!BxxxIII")
_EDGE = struct.Struct("!II")
_LEAVE = struct.Struct("!I")


class End(msgspec.Struct, frozen=True):
    """FINISH and CLOSE: length and digest of this direction of the stream, which the receiver verifies (5.1)."""

    length: int  # bytes of the whole stream
    digest: bytes  # its XXH3-128
    received: int | None = None  # CLOSE only: the last sequence number received in order when close() was called


class AbortReason(enum.IntEnum):
    """The reason for which a connection was ended at once (2.6)."""

    APPLICATION = 1
    USER_TIMEOUT = 2
    INTEGRITY = 3
    NO_SUCH_CONNECTION = 4
    PROTOCOL = 5
    GONE = 6
    SHUTTING_DOWN = 7
    DENIED = 8  # the relay's rules do not allow it any more, or the user has no token any more


class Abort(msgspec.Struct, frozen=True):
    """ABORT. `reason` is an AbortReason, or a plain number that this version does not know."""

    reason: int
    text: str = ""


class Option(msgspec.Struct, frozen=True):
    """OPTION: new values. The receiver applies them only if `version` is above the last one that it applied (2.7)."""

    version: int
    options: Options = Options()


class ListenStatus(enum.IntEnum):
    """Whether an endpoint listens under a service name, or the relay has refused that name (2.8)."""

    DOWN = 0
    UP = 1
    REFUSED = 2  # sent only by the relay to the endpoint


class ListenState(msgspec.Struct, frozen=True):
    """LISTEN_STATE: a service goes up or down. The version rule of OPTION applies to each name separately."""

    version: int
    state: ListenStatus
    backlog: int
    name: str
    text: str = ""  # why the relay has refused the name, for people
    options: Options = Options()  # with UP


class DropReason(enum.IntEnum):
    """The reason for which the relay dropped packets (2.9)."""

    FULL = 1
    NO_ROUTE = 2
    GONE = 3
    TOO_LARGE = 4


class Dropped(msgspec.Struct, frozen=True):
    """DROPPED: the relay has dropped the packets from `first` to `last` (inclusive).

    For NO_ROUTE and GONE, `first` and `last` have no meaning.
    """

    reason: int  # a DropReason, or a plain number that this version does not know
    first: int
    last: int
    limit: int  # bytes: with TOO_LARGE the relay's largest packet, else 0


class Edge(msgspec.Struct, frozen=True):
    """EDGE: the relay can take `bytes` bytes of payload beyond packet `sequence`, waiting ones included (2.10)."""

    sequence: int
    bytes: int


_ABORT_REASONS: dict[int, int] = {int(reason): reason for reason in AbortReason}
_DROP_REASONS: dict[int, int] = {int(reason): reason for reason in DropReason}
_LISTEN_STATES = {int(state): state for state in ListenStatus}


def encode_end(end: End) -> bytes:
    """Encode the payload of FINISH or CLOSE (2.5)."""
    fixed = pack(_END, end.length, exact("a digest", end.digest, DIGEST_SIZE))
    return fixed if end.received is None else fixed + pack(_RECEIVED, end.received)


def decode_end(data: Buffer) -> End | None:
    """Decode the payload of FINISH or CLOSE (2.5). Return None if it is malformed."""
    if len(data) == _END.size:
        return End(*_END.unpack(data))
    if len(data) != _END.size + _RECEIVED.size:
        return None
    return End(*_END.unpack_from(data), *_RECEIVED.unpack_from(data, _END.size))


def encode_abort(abort: Abort) -> bytes:
    """Encode the payload of ABORT (2.6)."""
    return pack(_ABORT, abort.reason) + pack_text(abort.text, SHORT)


def decode_abort(data: Buffer) -> Abort | None:
    """Decode the payload of ABORT (2.6). Return None if it is malformed."""
    view = memoryview(data)
    text = unpack_text(view, _ABORT.size, SHORT)
    if text is None or text[1] != len(view):
        return None
    (reason,) = _ABORT.unpack_from(view)
    return Abort(_ABORT_REASONS.get(reason, reason), text[0])


def encode_option(option: Option) -> bytes:
    """Encode the payload of OPTION (2.7)."""
    return pack(_OPTION, option.version) + encode_options(option.options)


def decode_option(data: Buffer) -> Option | None:
    """Decode the payload of OPTION (2.7). Return None if it is malformed."""
    view = memoryview(data)
    if len(view) < _OPTION.size:
        return None
    options = decode_options(view[_OPTION.size :])
    return None if options is None else Option(_OPTION.unpack_from(view)[0], options)


def encode_listen_state(state: ListenState) -> bytes:
    """Encode the payload of LISTEN_STATE (2.8). Raise ValueError if the name is empty."""
    if not state.name:
        raise ValueError("the service name is empty: it must have 1 to 255 bytes")
    text = pack_text(state.text, SHORT) if state.text else b""
    options = encode_options(state.options)
    if options:
        text = pack(SHORT, len(options)) + options
    return pack(_LISTEN, state.version, state.state, state.backlog) + pack_text(state.name, BYTE) + text


def decode_listen_state(data: Buffer) -> ListenState | None:
    """Decode the payload of LISTEN_STATE (2.8). Return None if it is malformed."""
    view = memoryview(data)
    name = unpack_text(view, _LISTEN.size, BYTE)
    if name is None or not name[0]:
        return None
    text = ("", name[1]) if name[1] == len(view) else unpack_text(view, name[1], SHORT)
    if text is None or text[1] != len(view) or (name[1] != len(view) and not text[0]):
        return None
    version, state, backlog = _LISTEN.unpack_from(view)
    if state not in _LISTEN_STATES:
        return None
    if state != ListenStatus.UP:
        return ListenState(version, _LISTEN_STATES[state], backlog, name[0], text[0])
    options = decode_options(text[0].encode())
    return None if options is None else ListenState(version, ListenStatus.UP, backlog, name[0], options=options)


def encode_dropped(dropped: Dropped) -> bytes:
    """Encode the payload of DROPPED (2.9)."""
    return pack(_DROPPED, dropped.reason, dropped.first, dropped.last, dropped.limit)


def decode_dropped(data: Buffer) -> Dropped | None:
    """Decode the payload of DROPPED (2.9). Return None if it is malformed."""
    if len(data) != _DROPPED.size:
        return None
    reason, first, last, limit = _DROPPED.unpack(data)
    return Dropped(_DROP_REASONS.get(reason, reason), first, last, limit)


def encode_edge(edge: Edge) -> bytes:
    """Encode the payload of EDGE (2.10)."""
    return pack(_EDGE, edge.sequence, edge.bytes)


def decode_edge(data: Buffer) -> Edge | None:
    """Decode the payload of EDGE (2.10). Return None if it is malformed."""
    return Edge(*_EDGE.unpack(data)) if len(data) == _EDGE.size else None


def encode_leave(move: int) -> bytes:
    """Encode the payload of LEAVE: the number of the move (2.12)."""
    return pack(_LEAVE, move)


def decode_leave(data: Buffer) -> int | None:
    """Decode the payload of LEAVE (2.12). Return None if it is malformed."""
    return int(_LEAVE.unpack(data)[0]) if len(data) == _LEAVE.size else None
