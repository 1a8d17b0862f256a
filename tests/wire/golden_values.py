"""The values of the golden vectors: at least one of every packet type, every envelope and the link header."""

from typing import Any

from tunnel.wire import (
    Abort,
    AbortReason,
    Accepted,
    Ack,
    Answer,
    Attach,
    Attached,
    Connect,
    Dropped,
    DropReason,
    Edge,
    End,
    Exchange,
    LinkHeader,
    ListenState,
    ListenStatus,
    Message,
    Option,
    Options,
    Packet,
    PacketType,
    PublicPlace,
    Rejected,
    RejectReason,
    Status,
    StatusCode,
    Target,
    TargetKind,
    attachment_id,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_leave,
    encode_listen_state,
    encode_option,
    encode_packet,
    encode_rejected,
)

__all__ = ["ENVELOPES", "LINKS", "PACKETS", "SECRET"]

SECRET = bytes(range(32))
_ID = attachment_id(SECRET)
_KEY = bytes.fromhex("00112233445566778899aabbccddeeff")
_DIGEST = bytes.fromhex("99aa06d3014798d86001c324468d497f")  # XXH3-128 of no bytes
_OURS, _PEER = 0x0A0B0C0D, 0xF1F2F3F4  # connection ids
_TOP = 2**32 - 1
_EPOCH = 0x0123456789ABCDEF

_connect = Connect(
    _KEY,
    False,
    Target(TargetKind.TCP, "db.internal", 5432),
    262_144,
    Options(versions=(1, 1), packet_bytes_max=1_048_576, keepalive_ms=60_000, user_timeout_ms=300_000),
)
_resume = Connect(
    _KEY,
    True,
    Target(TargetKind.SERVICE, "Berichte-ü"),
    65_536,
    Options(versions=(1, 2), pull_interval_ms=250, user="zoë", endpoint_id=_ID, unknown=bytes.fromhex("c80002beef")),
)
_accepted = Accepted(
    _KEY, False, 65_536, Options(versions=(1, 1), packet_bytes_max=262_144, pull_interval_ms=0, endpoint_id=_ID)
)
_resumed = Accepted(_KEY, True, 0)
_offering = Connect(
    _KEY,
    False,
    Target(TargetKind.SERVICE, "reports"),
    262_144,
    Options(versions=(1, 1), encryption=b"\x16\x03\x01hello"),
)
_question = Connect(_KEY, False, Target(TargetKind.TCP_QUESTION, "db.internal", 5432), 65_536, Options(versions=(1, 1)))
_service_question = Connect(_KEY, False, Target(TargetKind.SERVICE_QUESTION, "reports"), 65_536)
_allowed = Rejected(_KEY, RejectReason.ALLOWED, "")
_encrypted = Accepted(_KEY, False, 65_536, Options(versions=(1, 1), endpoint_id=_ID, encryption=b""))
_moving = Connect(
    _KEY,
    True,
    Target(TargetKind.TCP, "db.internal", 5432),
    65_536,
    Options(versions=(1, 1), endpoint_id=_ID, further_ids=(_KEY, bytes(16)), move=2),
)
_rejected = Rejected(_KEY, RejectReason.VERSION, "versions 1 to 1", Options(versions=(1, 1)))
_denied = Rejected(_KEY, RejectReason.DENIED, "")
_close = End(0, _DIGEST)
_close_with_received = End(0, _DIGEST, _TOP)
_finish = End(2**40 + 5, bytes(range(240, 256)))
_ack = Ack(7, 262_144, 0, 7, 0)
_gaps = Ack(_TOP - 1, 0, 25_000, 6, 3, [(6, 6), (0, 3)])
_abort = Abort(AbortReason.USER_TIMEOUT, "no answer for 5 min – lost")
_option = Option(3, Options(pull_interval_ms=1000))
_farewell = Option(4, Options(pull_interval_ms=1000, leaving=True))
_draining = Option(0, Options(draining=True))
_up = ListenState(1, ListenStatus.UP, 128, "reports")
_public = ListenState(
    5, ListenStatus.UP, 128, "reports", options=Options(public=PublicPlace(host="app.example", http=True))
)
_refused = ListenState(2, ListenStatus.REFUSED, 0, "reports")
_taken = ListenState(4, ListenStatus.REFUSED, 0, "reports", "another user has this name")
_ended = Abort(AbortReason.DENIED, "no rule allows db.internal:5432")
_full = Dropped(DropReason.FULL, _TOP, 1, 65_536)  # a relay sends the limit 0 with FULL; 65_536 shows how it is encoded
_no_route = Dropped(DropReason.NO_ROUTE, 0, 0, 0)
_edge = Edge(_TOP, 16_384)


def _packet(kind: int, sequence: int, payload: bytes = b"", attempt: int = 0) -> Packet:
    return Packet(kind, _OURS, _PEER, sequence, payload, attempt)


def _opening(kind: int, sequence: int, payload: bytes, attempt: int = 0) -> Packet:
    return Packet(kind, _OURS, 0, sequence, payload, attempt)


def _from_relay(kind: int, payload: bytes) -> Packet:
    return Packet(kind, 0, _OURS, 0, payload)


# name, packet, the decoded value of its payload (None: plain bytes), clause
PACKETS: list[tuple[str, Packet, Any, str]] = [
    ("connect_tcp", _opening(PacketType.CONNECT, 0x80000000, encode_connect(_connect)), _connect, "2.1"),
    ("connect_resume", _opening(PacketType.CONNECT, 9, encode_connect(_resume), 3), _resume, "2.1, 6.5"),
    ("accepted", Packet(PacketType.ACCEPTED, _OURS, _PEER, 100, encode_accepted(_accepted)), _accepted, "2.2"),
    ("accepted_resumed", Packet(PacketType.ACCEPTED, _OURS, _PEER, 0, encode_accepted(_resumed), 1), _resumed, "2.2"),
    ("rejected_version", _opening(PacketType.REJECTED, 0, encode_rejected(_rejected)), _rejected, "2.3, 3.4"),
    ("rejected_denied", _opening(PacketType.REJECTED, 0, encode_rejected(_denied)), _denied, "2.3"),
    ("data", _packet(PacketType.DATA, 1, b"hello"), None, "1.1"),
    ("data_last_number", _packet(PacketType.DATA, _TOP, b"\0"), None, "1.6"),
    ("data_wrapped_number", _packet(PacketType.DATA, 0, b"\xff"), None, "1.6"),
    ("data_attempt_1", _packet(PacketType.DATA, 1, b"hello", 1), None, "1.8"),
    ("data_attempt_255", _packet(PacketType.DATA, 1, b"hello", 255), None, "1.8"),
    ("data_before_accepted", _opening(PacketType.DATA, 0x80000001, b"early"), None, "3.6"),
    ("data_large", _packet(PacketType.DATA, 2, bytes(range(256)) * 16), None, "1.1"),
    ("close", _packet(PacketType.CLOSE, 3, encode_end(_close)), _close, "2.5"),
    (
        "close_received",  # a CLOSE with the optional field of 2.5, which is `End.received` here
        _packet(PacketType.CLOSE, 3, encode_end(_close_with_received)),
        _close_with_received,
        "2.5, 5.4",
    ),
    ("ack", _packet(PacketType.ACK, 0, encode_ack(_ack)), _ack, "2.4"),
    ("ack_ranges_across_the_wrap", _packet(PacketType.ACK, 0, encode_ack(_gaps)), _gaps, "2.4, 4.4"),
    ("shutdown", _packet(PacketType.SHUTDOWN, 0), None, "5.7"),
    ("abort", _packet(PacketType.ABORT, 0, encode_abort(_abort)), _abort, "2.6"),
    ("option", _packet(PacketType.OPTION, 4, encode_option(_option)), _option, "2.7"),
    (
        "option_of_exit_that_leaves",
        Packet(PacketType.OPTION, 0, 0, 0, encode_option(_farewell)),
        _farewell,
        "2.7, 6.10",
    ),
    (
        "option_of_relay_that_drains",
        Packet(PacketType.OPTION, 0, 0, 0, encode_option(_draining)),
        _draining,
        "2.7, 9.9",
    ),
    ("option_of_attachment", Packet(PacketType.OPTION, 0, 0, 0, encode_option(_option)), _option, "2.7"),
    ("listen_state_up", Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(_up)), _up, "2.8"),
    (
        "listen_state_public",
        Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(_public)),
        _public,
        "2.8, 2.11",
    ),
    ("listen_state_refused", Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(_refused)), _refused, "2.8"),
    ("listen_state_refused_text", Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(_taken)), _taken, "2.8"),
    ("abort_denied", _packet(PacketType.ABORT, 0, encode_abort(_ended)), _ended, "2.6, 9.7"),
    ("noop", Packet(PacketType.NOOP, 0, 0, 0), None, "1.5"),
    ("finish", _packet(PacketType.FINISH, 5, encode_end(_finish), 2), _finish, "2.5"),
    ("ping", _packet(PacketType.PING, 0, bytes(range(64))), None, "1.5"),
    ("pong", _packet(PacketType.PONG, 0, bytes(range(64))), None, "1.5"),
    ("probe", _packet(PacketType.PROBE, 0), None, "4.12"),
    ("dropped_full", _from_relay(PacketType.DROPPED, encode_dropped(_full)), _full, "2.9"),
    ("dropped_no_route", _from_relay(PacketType.DROPPED, encode_dropped(_no_route)), _no_route, "2.9"),
    ("edge", _from_relay(PacketType.EDGE, encode_edge(_edge)), _edge, "2.10"),
    ("leave", _packet(PacketType.LEAVE, 0, encode_leave(2)), 2, "2.12"),
    ("connect_moving", _opening(PacketType.CONNECT, 9, encode_connect(_moving), 3), _moving, "2.1, 6.11"),
    ("unknown_type_and_version", Packet(200, _OURS, _PEER, 17, b"later", 4, 2), None, "1.4"),
    ("connect_encryption", _opening(PacketType.CONNECT, 9, encode_connect(_offering)), _offering, "2.1, 3.13"),
    (
        "accepted_encryption",
        Packet(PacketType.ACCEPTED, _OURS, _PEER, 7, encode_accepted(_encrypted)),
        _encrypted,
        "3.13",
    ),
    ("question_tcp", _opening(PacketType.CONNECT, 9, encode_connect(_question)), _question, "2.1, 3.14"),
    (
        "question_service",
        _opening(PacketType.CONNECT, 9, encode_connect(_service_question)),
        _service_question,
        "2.1, 3.14",
    ),
    ("rejected_allowed", _opening(PacketType.REJECTED, 0, encode_rejected(_allowed)), _allowed, "2.3, 3.14"),
]

_TWO = b"".join(bytes(part) for _, packet, _, _ in PACKETS[6:8] for part in encode_packet(packet))
_PIECE = _TWO[10:30]

# name, message, mask (None: not masked), clause
ENVELOPES: list[tuple[str, Message, int | None, str]] = [
    ("attach", Attach(SECRET, 1, 0, 1_048_576, (1, 1), "laptop-ü"), None, "7.11"),
    ("attach_nameless", Attach(SECRET, _TOP, 250, 65_536, (1, 3)), None, "7.11"),
    (
        "attached_fresh",
        Attached(_ID, _EPOCH, 1, True, 1_048_576, 1_048_576, 30_000, 0, 65_536, 8, 1),
        None,
        "7.11",
    ),
    (
        "attached_packets",
        Attached(_ID, _EPOCH, 1, True, 1_048_576, 1_048_576, 30_000, 0, 65_536, 8, 1, 1024),
        None,
        "7.11",
    ),
    ("attached_known", Attached(_ID, _EPOCH, 2, False, 65_536, 16_777_216, 2000, 250, 0, 1, 1), None, "7.11"),
    ("exchange_push", Exchange(_ID, _EPOCH, 1, 7, 2, 1, 0, 1_048_576, payload=_TWO), None, "7.2"),
    ("exchange_pull", Exchange(_ID, _EPOCH, 1, 0, 1, 0, 15_000, 1_048_576, pull=True), None, "7.2, 7.4"),
    ("exchange_piece", Exchange(_ID, _EPOCH, 1, 0, 3, 2, 0, 65_536, 10, piece=True, payload=_PIECE), None, "7.6"),
    ("exchange_masked", Exchange(_ID, _EPOCH, 1, 7, 2, 1, 0, 1_048_576, payload=_TWO), 0xA5, "7.1, 7.9"),
    ("answer_empty", Answer(0, 1, 1), None, "7.2"),
    ("answer", Answer(7, 2, 5, more=True, evidence=[(0, 1), (7, 2)], payload=_TWO), None, "7.2, 7.7"),
    ("answer_piece", Answer(1, _TOP, _TOP, 10, piece=True, evidence=[(1, _TOP)], payload=_PIECE), None, "7.6"),
    ("answer_masked", Answer(7, 2, 5, evidence=[(7, 2)], payload=_TWO), 0x01, "7.1"),
    (
        "attached_streams",
        Attached(_ID, _EPOCH, 1, True, 1_048_576, 1_048_576, 30_000, 0, 65_536, 8, 1, 1024, streams=True),
        None,
        "7.11, 7.20",
    ),
    (
        "attached_age",
        Attached(_ID, _EPOCH, 1, True, 1_048_576, 1_048_576, 30_000, 0, 65_536, 8, 1, 1024, streams=True, age=23),
        None,
        "6.3, 7.11",
    ),
    (
        "exchange_stream",
        Exchange(_ID, _EPOCH, 1, 2, 9, 4, 30_000, 67_108_864, pull=True, stream=True),
        None,
        "7.20",
    ),
    ("exchange_confirms", Exchange(_ID, _EPOCH, 1, 7, 2, 1, 0, 65_536, payload=_TWO, confirms=(2, 6)), None, "7.20"),
    ("exchange_confirms_masked", Exchange(_ID, _EPOCH, 1, 7, 3, 1, 0, 65_536, confirms=(2, _TOP)), 0xA5, "7.20"),
    ("answer_goes_on", Answer(2, 9, 5, evidence=[(2, 9)], goes_on=True), None, "7.20"),
    ("answer_goes_on_packets", Answer(2, 9, 6, evidence=[(2, 9)], payload=_TWO, goes_on=True), None, "7.20"),
    ("status_unknown", Status(StatusCode.UNKNOWN), None, "7.10"),
    ("status_busy", Status(StatusCode.BUSY, 1500, "zu viel – später"), None, "7.10"),
]

# name, header, clause
LINKS: list[tuple[str, LinkHeader, str]] = [
    ("link_batch", LinkHeader(1, 0, 131_072), "8.1"),
    ("link_last_number", LinkHeader(_TOP, _TOP - 1, 24), "8.1"),
    ("link_receipt", LinkHeader(0, 17, 0), "8.2"),
    ("link_leaving", LinkHeader(0, 17, 0, is_leaving=True), "8.7"),
]
