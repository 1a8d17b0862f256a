"""Packets out of the endpoint, in the words of scripts, and whether a script expects them."""

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

from tests.scripted.language import Phrase, parse_number
from tests.scripted.party import Party
from tunnel.wire import (
    SEQUENCED,
    AbortReason,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    RejectReason,
    Target,
    TargetKind,
    decode_abort,
    decode_accepted,
    decode_ack,
    decode_connect,
    decode_end,
    decode_listen_state,
    decode_option,
    decode_rejected,
)

__all__ = ["Shown", "Value", "agrees", "matches", "show", "target_text"]

Value: TypeAlias = int | str | bool | None

STRICT = {"attempt": "0", "sack": "none"}
"""Fields that have these values unless a script gives others; all other fields that it leaves out are not compared."""


@dataclass(frozen=True)
class Shown:
    """A packet or an event in words."""

    word: str
    connection: str  # its name in the script; "?" if it has none there, "" for what belongs to no connection
    fields: dict[str, Value]

    def __str__(self) -> str:
        name = f"{self.word}@{self.connection}" if self.connection not in ("", "c") else self.word
        return " ".join((name, *(f"{key}={_text(value)}" for key, value in self.fields.items())))


def matches(expected: Phrase, actual: Shown) -> bool:
    """Return whether the packet or event has the expected type and the values of all the fields that are given."""
    if expected.word != actual.word or (actual.connection and expected.connection != actual.connection):
        return False
    wanted = {**{key: value for key, value in STRICT.items() if key in actual.fields}, **expected.fields}
    return all(agrees(value, actual.fields.get(key)) for key, value in wanted.items())


def agrees(wanted: str, actual: Value) -> bool:
    """Return whether a word of the script stands for the value: a number with a unit, yes, no, none, * (any value)."""
    if wanted == "*":
        return True
    if actual is None or isinstance(actual, str | bool):
        return wanted == _text(actual)
    try:
        return parse_number(wanted) == actual
    except ValueError:
        return False


def show(packet: Packet, party: Party | None) -> Shown:
    """Return the packet in the words of a script; `party` is the connection that it belongs to."""
    word = PacketType(packet.type).name
    fields: dict[str, Value] = {}
    if party is not None and packet.type in SEQUENCED:
        fields["seq"] = party.own_number(packet.sequence)
    if packet.type in SEQUENCED or packet.type == PacketType.SHUTDOWN:  # 1.8: no other type counts its attempts
        fields["attempt"] = packet.attempt
    fields |= _PAYLOADS.get(packet.type, _nothing)(packet, party)
    fields["source"], fields["destination"] = packet.source, packet.destination
    if party is None:
        return Shown(word, "?" if packet.source or packet.destination else "", fields)
    return Shown(word, party.name, fields)


def target_text(target: Target) -> str:
    """Return a service as its name, a TCP target as host:port."""
    return target.host if target.kind == TargetKind.SERVICE else f"{target.host}:{target.port}"


def _text(value: Value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _name(kind: type[enum.IntEnum], number: int) -> str:
    return kind(number).name.lower() if number in kind.__members__.values() else str(number)


def _micros(milliseconds: int | None) -> int | None:
    return None if milliseconds is None else milliseconds * 1000


def _options(options: Options) -> dict[str, Value]:
    versions = options.versions
    shown: dict[str, Value] = {
        "versions": f"{versions[0]}-{versions[1]}" if versions else None,
        "packet": options.packet_bytes_max,
        "keepalive": _micros(options.keepalive_ms),
        "user_timeout": _micros(options.user_timeout_ms),
        "pull": _micros(options.pull_interval_ms),
        "user": options.user,
        "endpoint": options.endpoint_id.hex() if options.endpoint_id else None,
        "leaving": options.leaving,
        "draining": options.draining,
    }
    return {key: value for key, value in shown.items() if value is not None}


def _connect(packet: Packet, party: Party | None) -> dict[str, Value]:
    connect = _decoded(decode_connect(packet.payload))
    target: dict[str, Value] = {"target": target_text(connect.target)}
    return target | {"resume": connect.resume, "window": connect.window} | _options(connect.options)


def _accepted(packet: Packet, party: Party | None) -> dict[str, Value]:
    accepted = _decoded(decode_accepted(packet.payload))
    fields: dict[str, Value] = {"resumed": accepted.resumed, "window": accepted.window}
    return fields | _options(accepted.options)


def _rejected(packet: Packet, party: Party | None) -> dict[str, Value]:
    rejected = _decoded(decode_rejected(packet.payload))
    fields: dict[str, Value] = {"reason": _name(RejectReason, rejected.reason), "text": rejected.text}
    return fields | _options(rejected.options)


def _data(packet: Packet, party: Party | None) -> dict[str, Value]:
    return {"len": len(packet.payload)}


def _end(packet: Packet, party: Party | None) -> dict[str, Value]:
    end = _decoded(decode_end(packet.payload))
    received = None if end.received is None or party is None else party.peer_number(end.received)
    return {"length": end.length, "received": received}


def _ack(packet: Packet, party: Party | None) -> dict[str, Value]:
    ack = _decoded(decode_ack(packet.payload))
    if party is None:
        return {}
    number = party.peer_number
    pairs = [(number(first), number(last)) for first, last in ack.ranges]
    return {
        "cum": number(ack.cumulative),
        "window": ack.window,
        "delay": ack.delay_us,
        "echo": number(ack.echo_sequence),
        "echo_attempt": ack.echo_attempt,
        "sack": ",".join(f"{first}-{last}" if first != last else str(first) for first, last in pairs) or "none",
    }


def _abort(packet: Packet, party: Party | None) -> dict[str, Value]:
    abort = _decoded(decode_abort(packet.payload))
    return {"reason": _name(AbortReason, abort.reason), "text": abort.text}


def _option(packet: Packet, party: Party | None) -> dict[str, Value]:
    option = _decoded(decode_option(packet.payload))
    fields: dict[str, Value] = {"version": option.version}
    return fields | _options(option.options)


def _listen_state(packet: Packet, party: Party | None) -> dict[str, Value]:
    state = _decoded(decode_listen_state(packet.payload))
    status = _name(ListenStatus, state.state)
    return {"name": state.name, "state": status, "version": state.version, "backlog": state.backlog}


def _echoed(packet: Packet, party: Party | None) -> dict[str, Value]:
    return {"payload": bytes(packet.payload).hex()}


def _nothing(packet: Packet, party: Party | None) -> dict[str, Value]:
    return {}


def _decoded(value: Any) -> Any:
    if value is None:
        raise AssertionError("the endpoint sent a malformed packet")
    return value


_PAYLOADS: dict[int, Callable[[Packet, Party | None], dict[str, Value]]] = {
    PacketType.CONNECT: _connect,
    PacketType.ACCEPTED: _accepted,
    PacketType.REJECTED: _rejected,
    PacketType.DATA: _data,
    PacketType.CLOSE: _end,
    PacketType.FINISH: _end,
    PacketType.ACK: _ack,
    PacketType.ABORT: _abort,
    PacketType.OPTION: _option,
    PacketType.LISTEN_STATE: _listen_state,
    PacketType.PING: _echoed,
    PacketType.PONG: _echoed,
}
