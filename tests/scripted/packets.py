"""Packets into the endpoint: turns the words of a script into packets."""

import enum
from collections.abc import Callable
from typing import TypeVar

from tests.scripted.language import Phrase, parse_number
from tests.scripted.party import Party, digest_of, stream
from tunnel.wire import (
    SEQUENCED,
    VERSION,
    Abort,
    AbortReason,
    Accepted,
    Ack,
    Connect,
    Dropped,
    DropReason,
    Edge,
    End,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    Target,
    TargetKind,
    encode_abort,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_edge,
    encode_end,
    encode_listen_state,
    encode_option,
    encode_rejected,
)

__all__ = ["NOBODY", "Fields", "build"]

WINDOW = "256K"  # the window of a scripted peer unless the script gives one
OTHER_ROUTE_KEY = bytes(range(16))

NOBODY = Party("", 0, 0, OTHER_ROUTE_KEY, Target(TargetKind.SERVICE, "-"), initiator=False)
"""Stands in for the connection in packets that belong to none."""

E = TypeVar("E", bound=enum.IntEnum)


class Fields:
    """The fields of a phrase; each is taken once, and a field that is never taken is an error of the script."""

    def __init__(self, phrase: Phrase) -> None:
        self._left = dict(phrase.fields)

    def text(self, key: str, default: str = "") -> str:
        """Return the field, or the default."""
        return self._left.pop(key, default)

    def number(self, key: str, default: str = "0") -> int:
        """Return the field as a number."""
        return parse_number(self.text(key, default))

    def optional(self, key: str) -> int | None:
        """Return the field as a number; None without the field."""
        return self.number(key) if key in self._left else None

    def milliseconds(self, key: str) -> int | None:
        """Return a duration in milliseconds, as options carry it."""
        value = self.optional(key)
        return None if value is None else value // 1000

    def flag(self, key: str) -> bool:
        """Return whether the field is `yes`."""
        return self.text(key, "no") == "yes"

    def member(self, key: str, kind: type[E], default: str) -> int:
        """Return a member of an enum by its name in lower case, or a plain number."""
        text = self.text(key, default)
        return kind[text.upper()] if text.upper() in kind.__members__ else parse_number(text)

    def finish(self) -> None:
        """Raise ValueError if fields are left that were never taken."""
        if self._left:
            raise ValueError(f"unknown fields: {', '.join(self._left)}")


def build(phrase: Phrase, party: Party) -> Packet:
    """Return the packet that the phrase describes, sent by the peer of this connection (`party`) or by the relay."""
    fields = Fields(phrase)
    word = phrase.word
    kind = parse_number(word.removeprefix("TYPE_")) if word.startswith("TYPE_") else int(PacketType[word])
    source, destination = _ids(kind, party, resume=phrase.fields.get("resume") == "yes")
    raw = fields.text("payload", "-")
    number = fields.number("seq") if kind in SEQUENCED or "seq" in phrase.fields else None
    attempt = fields.number("attempt")
    version = fields.number("version", str(VERSION)) if kind not in _OWN_VERSION else VERSION
    source = fields.number("source", str(source))
    destination = fields.number("destination", str(destination))
    payload = bytes.fromhex(raw) if raw != "-" else _PAYLOADS.get(kind, _nothing)(fields, party, number or 0)
    fields.finish()
    sequence = 0 if number is None else party.peer_sequence(number)
    return Packet(kind, source, destination, sequence, payload, attempt & 0xFF, version)


def _ids(kind: int, party: Party, *, resume: bool) -> tuple[int, int]:
    """Return source and destination: those of 2.1, 2.2, 2.8, 2.9 or 2.10, else the ids of sender and receiver."""
    if kind == PacketType.ACCEPTED:
        return party.own_id, party.peer_id
    if kind == PacketType.REJECTED:
        return party.own_id, 0
    if kind == PacketType.CONNECT and not resume:
        return party.peer_id, 0
    if kind == PacketType.LISTEN_STATE:
        return 0, 0
    if kind in (PacketType.DROPPED, PacketType.EDGE):
        return 0, party.own_id
    return party.peer_id, party.own_id


def _options(fields: Fields, versions: str = "", user: str = "") -> Options:
    lowest, _, highest = fields.text("versions", versions).partition("-")
    endpoint = fields.text("endpoint")
    return Options(
        versions=(int(lowest), int(highest)) if lowest else None,
        packet_bytes_max=fields.optional("packet"),
        keepalive_ms=fields.milliseconds("keepalive"),
        user_timeout_ms=fields.milliseconds("user_timeout"),
        pull_interval_ms=fields.milliseconds("pull"),
        user=fields.text("user", user) or None,
        endpoint_id=bytes.fromhex(endpoint) if endpoint else None,
        leaving=fields.flag("leaving") or None,
        draining=fields.flag("draining") or None,
    )


def _route_key(fields: Fields, party: Party) -> bytes:
    return party.route_key if fields.text("route_key", "right") == "right" else OTHER_ROUTE_KEY


def _connect(fields: Fields, party: Party, number: int) -> bytes:
    return encode_connect(
        Connect(
            _route_key(fields, party),
            fields.flag("resume"),
            party.target,
            fields.number("window", WINDOW),
            _options(fields, "1-1", "alice"),
        )
    )


def _accepted(fields: Fields, party: Party, number: int) -> bytes:
    key, resumed, window = _route_key(fields, party), fields.flag("resumed"), fields.number("window", WINDOW)
    return encode_accepted(Accepted(key, resumed, window, _options(fields, "1-1")))


def _rejected(fields: Fields, party: Party, number: int) -> bytes:
    reason = fields.member("reason", RejectReason, "denied")
    return encode_rejected(Rejected(_route_key(fields, party), reason, fields.text("text"), _options(fields)))


def _data(fields: Fields, party: Party, number: int) -> bytes:
    return stream(*party.place(number, fields.optional("len")))


def _end(fields: Fields, party: Party, number: int) -> bytes:
    length = fields.number("length", str(party.peer_length(number)))
    digest = digest_of(length) if fields.text("digest", "right") == "right" else bytes(16)
    received = fields.optional("received")
    party.peer_numbers.setdefault(number, (party.peer_length(number), 0))
    return encode_end(End(length, digest, None if received is None else party.own_sequence(received)))


def _ack(fields: Fields, party: Party, number: int) -> bytes:
    cumulative = fields.number("cum")
    sack = fields.text("sack", "none")
    ranges = []
    for item in sack.split(",") if sack != "none" else []:
        first, _, last = item.partition("-")
        ranges.append((int(first), int(last or first)))
    echo = fields.number("echo", str(ranges[0][1] if ranges else cumulative))
    return encode_ack(
        Ack(
            party.own_sequence(cumulative),
            fields.number("window", WINDOW),
            fields.number("delay"),
            party.own_sequence(echo),
            fields.number("echo_attempt") & 0xFF,
            [(party.own_sequence(first), party.own_sequence(last)) for first, last in ranges],
        )
    )


def _abort(fields: Fields, party: Party, number: int) -> bytes:
    return encode_abort(Abort(fields.member("reason", AbortReason, "application"), fields.text("text")))


def _option(fields: Fields, party: Party, number: int) -> bytes:
    party.peer_numbers.setdefault(number, (party.peer_length(number), 0))
    return encode_option(Option(fields.number("version"), _options(fields)))


def _listen_state(fields: Fields, party: Party, number: int) -> bytes:
    state = ListenStatus(fields.member("state", ListenStatus, "up"))
    return encode_listen_state(
        ListenState(fields.number("version"), state, fields.number("backlog"), fields.text("name", "svc"))
    )


def _dropped(fields: Fields, party: Party, number: int) -> bytes:
    reason = fields.member("reason", DropReason, "full")
    first, last = fields.number("first"), fields.number("last", "-1")
    limit = fields.number("limit")
    return encode_dropped(
        Dropped(reason, party.own_sequence(first), party.own_sequence(first if last < 0 else last), limit)
    )


def _edge(fields: Fields, party: Party, number: int) -> bytes:
    return encode_edge(Edge(party.own_sequence(fields.number("at")), fields.number("bytes")))


def _nothing(fields: Fields, party: Party, number: int) -> bytes:
    return b""


_OWN_VERSION = frozenset({int(PacketType.OPTION), int(PacketType.LISTEN_STATE)})  # `version` is a field of the payload

_PAYLOADS: dict[int, Callable[[Fields, Party, int], bytes]] = {
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
    PacketType.DROPPED: _dropped,
    PacketType.EDGE: _edge,
}
