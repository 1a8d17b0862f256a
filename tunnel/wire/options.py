"""Options: the values that both sides announce in CONNECT, its answers, OPTION and LISTEN_STATE (PROTOCOL 2.0)."""

import struct
from collections.abc import Callable
from typing import Any

import msgspec

from tunnel.wire.buffers import Buffer
from tunnel.wire.fields import exact, pack
from tunnel.wire.public_place import PublicPlace, decode_public_place, encode_public_place

__all__ = [
    "ENDPOINT_ID_SIZE",
    "FURTHER_IDS_MAX",
    "OFFER_BYTES_MAX",
    "USER_BYTES_MAX",
    "Options",
    "decode_options",
    "encode_options",
]

ENDPOINT_ID_SIZE = 16  # bytes; 2.0
USER_BYTES_MAX = 255  # UTF-8; 2.0
OFFER_BYTES_MAX = 2048  # 2.0
FURTHER_IDS_MAX = 8  # 2.0

_ITEM = struct.Struct("!BH")  # kind, length
_PAIR = struct.Struct("!HH")
_LONG = struct.Struct("!I")


class Options(msgspec.Struct, frozen=True):
    """Announced values. None means that the value was not announced."""

    versions: tuple[int, int] | None = None  # lowest, highest
    packet_bytes_max: int | None = None
    keepalive_ms: int | None = None  # 0: no keepalive
    user_timeout_ms: int | None = None
    pull_interval_ms: int | None = None  # 0: pulls are held
    user: str | None = None  # only the relay adds it
    endpoint_id: bytes | None = None
    encryption: bytes | None = None  # in CONNECT a ClientHello, in ACCEPTED empty
    public: PublicPlace | None = None  # in LISTEN_STATE
    leaving: bool | None = None  # in the OPTION of an attachment: True, or None
    draining: bool | None = None  # in the OPTION of an attachment, from the relay: True, or None
    further_ids: tuple[bytes, ...] | None = None  # of the acceptor at other relays
    move: int | None = None  # how often the connection was to move to another relay
    unknown: bytes = b""  # items of unknown kinds, as they came: the relay forwards them


def _encode_versions(value: tuple[int, int]) -> bytes:
    if value[0] > value[1]:
        raise ValueError(f"the lowest version {value[0]} is above the highest {value[1]}")
    return pack(_PAIR, *value)


def _decode_versions(raw: bytes) -> tuple[int, int] | None:
    if len(raw) != _PAIR.size:
        return None
    lowest, highest = _PAIR.unpack(raw)
    return (lowest, highest) if lowest <= highest else None


def _encode_number(value: int) -> bytes:
    return pack(_LONG, value)


def _decode_number(raw: bytes) -> int | None:
    return int(_LONG.unpack(raw)[0]) if len(raw) == _LONG.size else None


def _encode_user(value: str) -> bytes:
    raw = value.encode()
    if len(raw) > USER_BYTES_MAX:
        raise ValueError(f"a user name of {len(raw)} bytes is longer than the limit of {USER_BYTES_MAX}")
    return raw


def _decode_user(raw: bytes) -> str | None:
    if len(raw) > USER_BYTES_MAX:
        return None
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None


def _encode_endpoint_id(value: bytes) -> bytes:
    return bytes(exact("an endpoint id", value, ENDPOINT_ID_SIZE))


def _decode_endpoint_id(raw: bytes) -> bytes | None:
    return raw if len(raw) == ENDPOINT_ID_SIZE else None


def _encode_further_ids(value: tuple[bytes, ...]) -> bytes:
    if not 0 < len(value) <= FURTHER_IDS_MAX:
        raise ValueError(f"1 to {FURTHER_IDS_MAX} further ids can be announced, not {len(value)}")
    return b"".join(map(_encode_endpoint_id, value))


def _decode_further_ids(raw: bytes) -> tuple[bytes, ...] | None:
    count, rest = divmod(len(raw), ENDPOINT_ID_SIZE)
    if rest or not 0 < count <= FURTHER_IDS_MAX:
        return None
    return tuple(raw[start : start + ENDPOINT_ID_SIZE] for start in range(0, len(raw), ENDPOINT_ID_SIZE))


def _encode_encryption(value: bytes) -> bytes:
    if len(value) > OFFER_BYTES_MAX:
        raise ValueError(f"a ClientHello of {len(value)} bytes is longer than the limit of {OFFER_BYTES_MAX}")
    return value


def _decode_encryption(raw: bytes) -> bytes | None:
    return raw if len(raw) <= OFFER_BYTES_MAX else None


def _encode_flag(value: bool) -> bytes:
    if not value:
        raise ValueError("what is not so is said by leaving the option out: pass None")
    return b""


def _decode_flag(raw: bytes) -> bool | None:
    return None if raw else True


# Kind -> field, encoder, decoder (returns None if the value is malformed). This is the table of 2.0.
_KINDS: dict[int, tuple[str, Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    1: ("versions", _encode_versions, _decode_versions),
    2: ("packet_bytes_max", _encode_number, _decode_number),
    3: ("keepalive_ms", _encode_number, _decode_number),
    4: ("user_timeout_ms", _encode_number, _decode_number),
    5: ("pull_interval_ms", _encode_number, _decode_number),
    6: ("user", _encode_user, _decode_user),
    7: ("endpoint_id", _encode_endpoint_id, _decode_endpoint_id),
    8: ("encryption", _encode_encryption, _decode_encryption),
    9: ("public", encode_public_place, decode_public_place),
    10: ("leaving", _encode_flag, _decode_flag),
    11: ("draining", _encode_flag, _decode_flag),
    12: ("further_ids", _encode_further_ids, _decode_further_ids),
    13: ("move", _encode_number, _decode_number),
}


def encode_options(options: Options) -> bytes:
    """Encode the options: known items in the order of their kinds, then the unknown items."""
    items = bytearray()
    for kind, (name, encode, _) in _KINDS.items():
        value = getattr(options, name)
        if value is not None:
            raw = encode(value)
            items += _ITEM.pack(kind, len(raw))
            items += raw
    return bytes(items + options.unknown)


def decode_options(data: Buffer) -> Options | None:
    """Decode options.

    Return None if an item runs past the end, or if a known item has an invalid value or comes twice.
    """
    view = memoryview(data)
    end = len(view)
    offset = 0
    fields: dict[str, Any] = {}
    unknown = bytearray()
    while offset < end:
        start = offset + _ITEM.size
        if start > end:
            return None
        kind, length = _ITEM.unpack_from(view, offset)
        stop = start + length
        if stop > end:
            return None
        if kind not in _KINDS:
            unknown += view[offset:stop]
        else:
            name, _, decode = _KINDS[kind]
            value = decode(bytes(view[start:stop]))
            if value is None or name in fields:
                return None
            fields[name] = value
        offset = stop
    return Options(unknown=bytes(unknown), **fields)
