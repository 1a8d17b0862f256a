"""The payloads that open or refuse a connection: CONNECT, ACCEPTED and REJECTED (PROTOCOL 2.1 to 2.3)."""

import enum
import struct

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.fields import BYTE, SHORT, exact, pack, pack_text, unpack_text
from tunnel.wire.options import Options, decode_options, encode_options

__all__ = [
    "ROUTE_KEY_SIZE",
    "Accepted",
    "Connect",
    "RejectReason",
    "Rejected",
    "Target",
    "TargetKind",
    "asked_about",
    "decode_accepted",
    "decode_connect",
    "decode_rejected",
    "encode_accepted",
    "encode_connect",
    "encode_rejected",
    "question_about",
]

ROUTE_KEY_SIZE = 16  # bytes; 2.1

_CONNECT = struct.Struct("!16sBBH")  # route key, flags, target kind, port; then the host
_WINDOW = struct.Struct("!I")
_ACCEPTED = struct.Struct("!16sBI")  # route key, flags, window; then options
_REJECTED = struct.Struct("!16sH")  # route key, reason; then the text and options
_FLAG = 1  # bit 0: resume in CONNECT, resumed in ACCEPTED; the other bits are ignored
_PORT_MAX = 65535
_HOST_BYTES_MAX = 255


class TargetKind(enum.IntEnum):
    """The kind of target that a connection leads to, or that a question is about (2.1, 3.14)."""

    TCP = 1
    SERVICE = 2
    TCP_QUESTION = 3
    SERVICE_QUESTION = 4


class Target(msgspec.Struct, frozen=True):
    """A target (2.1). Raise ValueError if it is invalid.

    It is either a host and a port for the exit, or the name of a service with `port` 0. A prefix of the host can name
    another kind of target than TCP.
    """

    kind: TargetKind
    host: str
    port: int = 0

    def __post_init__(self) -> None:
        if not 0 < len(self.host.encode()) <= _HOST_BYTES_MAX:
            raise ValueError(f"a host or service name must have 1 to {_HOST_BYTES_MAX} bytes: {self.host!r}")
        if self.kind in _TCP_KINDS and not 0 < self.port <= _PORT_MAX:
            raise ValueError(f"a TCP port must be 1 to {_PORT_MAX}, not {self.port}")
        if self.kind not in _TCP_KINDS and self.port != 0:
            raise ValueError(f"a service has no port: use 0, not {self.port}")


def question_about(target: Target) -> Target:
    """Return the target of a CONNECT that asks whether the rules allow this target (3.14)."""
    return Target(_QUESTIONS[target.kind], target.host, target.port)


def asked_about(target: Target) -> Target | None:
    """Return the target that a question is about; None if this is no question."""
    kind = _ASKED.get(target.kind)
    return None if kind is None else Target(kind, target.host, target.port)


class Connect(msgspec.Struct, frozen=True):
    """CONNECT: a request to open a connection, or to resume one that an earlier CONNECT opened (6.5)."""

    route_key: bytes
    resume: bool
    target: Target
    window: int  # bytes
    options: Options = Options()


class Accepted(msgspec.Struct, frozen=True):
    """ACCEPTED: the connection is open, or its route is bound again."""

    route_key: bytes
    resumed: bool
    window: int  # bytes
    options: Options = Options()


class RejectReason(enum.IntEnum):
    """The reason for which a connection was not opened or not resumed (2.3)."""

    DENIED = 1  # by a rule
    REFUSED = 2  # by the target
    UNREACHABLE = 3
    NAME_NOT_RESOLVED = 4
    TIMED_OUT = 5
    NO_SUCH_SERVICE = 6
    GONE = 7
    BUSY = 8
    VERSION = 9
    ID_IN_USE = 10
    SHUTTING_DOWN = 11
    MALFORMED = 12
    FINISHED = 13  # both halves of the connection have ended (section 5)
    ALLOWED = 14  # the answer to a question (3.14): the rules allow the target
    NO_EXIT = 15  # no exit for the target is attached to this relay (6.9)


class Rejected(msgspec.Struct, frozen=True):
    """REJECTED. `reason` is a RejectReason, or a plain number that this version does not know."""

    route_key: bytes
    reason: int
    text: str = ""
    options: Options = Options()


_TCP_KINDS = frozenset({TargetKind.TCP, TargetKind.TCP_QUESTION})
_QUESTIONS = {TargetKind.TCP: TargetKind.TCP_QUESTION, TargetKind.SERVICE: TargetKind.SERVICE_QUESTION}
_ASKED = {question: kind for kind, question in _QUESTIONS.items()}
_KINDS = {int(kind): kind for kind in TargetKind}
_REASONS: dict[int, int] = {int(reason): reason for reason in RejectReason}


def encode_connect(connect: Connect) -> bytes:
    """Encode the payload of CONNECT (2.1)."""
    target = connect.target
    route_key = exact("a route key", connect.route_key, ROUTE_KEY_SIZE)
    return b"".join(
        (
            pack(_CONNECT, route_key, connect.resume, target.kind, target.port),
            pack_text(target.host, BYTE),
            pack(_WINDOW, connect.window),
            encode_options(connect.options),
        )
    )


def decode_connect(data: Buffer) -> Connect | None:
    """Decode the payload of CONNECT (2.1). Return None if it is malformed or its target is invalid."""
    view = memoryview(data)
    if len(view) < _CONNECT.size:
        return None
    route_key, flags, kind, port = _CONNECT.unpack_from(view)
    host = unpack_text(view, _CONNECT.size, BYTE)
    if host is None or kind not in _KINDS or len(view) - host[1] < _WINDOW.size:
        return None
    options = decode_options(view[host[1] + _WINDOW.size :])
    if options is None:
        return None
    try:
        target = Target(_KINDS[kind], host[0], port)
    except ValueError:
        return None
    if target.kind in _ASKED and flags & _FLAG:
        return None  # there is nothing to resume
    (window,) = _WINDOW.unpack_from(view, host[1])
    return Connect(route_key, bool(flags & _FLAG), target, window, options)


def encode_accepted(accepted: Accepted) -> bytes:
    """Encode the payload of ACCEPTED (2.2)."""
    route_key = exact("a route key", accepted.route_key, ROUTE_KEY_SIZE)
    return pack(_ACCEPTED, route_key, accepted.resumed, accepted.window) + encode_options(accepted.options)


def decode_accepted(data: Buffer) -> Accepted | None:
    """Decode the payload of ACCEPTED (2.2). Return None if it is malformed."""
    view = memoryview(data)
    if len(view) < _ACCEPTED.size:
        return None
    options = decode_options(view[_ACCEPTED.size :])
    if options is None:
        return None
    route_key, flags, window = _ACCEPTED.unpack_from(view)
    return Accepted(route_key, bool(flags & _FLAG), window, options)


def encode_rejected(rejected: Rejected) -> bytes:
    """Encode the payload of REJECTED (2.3)."""
    route_key = exact("a route key", rejected.route_key, ROUTE_KEY_SIZE)
    head = pack(_REJECTED, route_key, rejected.reason)
    return head + pack_text(rejected.text, SHORT) + encode_options(rejected.options)


def decode_rejected(data: Buffer) -> Rejected | None:
    """Decode the payload of REJECTED (2.3). Return None if it is malformed."""
    view = memoryview(data)
    if len(view) < _REJECTED.size:
        return None
    text = unpack_text(view, _REJECTED.size, SHORT)
    if text is None:
        return None
    options = decode_options(view[text[1] :])
    if options is None:
        return None
    route_key, reason = _REJECTED.unpack_from(view)
    return Rejected(route_key, _REASONS.get(reason, reason), text[0], options)
