"""The other side of one connection, which the fuzzer plays, and the facts that it can be sure of.

It remembers and checks what it receives: the same number always has the same bytes, and bytes come in the order in
which they were written. It cuts its own stream into numbered packets, to be sent in any order, any number of times.
"""

import enum
from random import Random

from xxhash import xxh3_128_digest

from tunnel.wire import Ack, End, Packet, PacketType, encode_end, unwrap, wrap

__all__ = ["BLOB", "Peer", "Role"]

BLOB = Random(20).randbytes(1 << 20)  # both streams are slices of it, each with its own start
EARLY_BYTES = 64 * 1024  # 3.6
_ENDS = (PacketType.FINISH, PacketType.CLOSE)
_NUMBERED_WITHOUT_BYTES = (PacketType.ACCEPTED, PacketType.OPTION)


class Role(enum.Enum):
    """The peer's role in the connection."""

    INITIATOR = "initiator"
    ACCEPTOR = "acceptor"


class Peer:
    """Ids are as on the wire, sequence numbers unbounded. `theirs` is the endpoint's side, `ours` the peer's."""

    def __init__(self, role: Role, own_id: int, route_key: bytes, first: int, number: int, user: str = "") -> None:
        self.role = role
        self.number = number
        self.user = user
        self.own_id = own_id
        self.their_id = 0  # the endpoint's id of the connection, once it is known
        self.route_key = route_key
        self.first = (1 << 32) + first % (1 << 32)  # the number of CONNECT or ACCEPTED
        self.lied = False  # it sent other bytes under a used number, or a wrong end: only the digest can detect this
        self.lied_acks = False  # it acknowledged packets that never arrived
        self.rejected = False
        # our stream
        self.start = (number * 7919) % 4096
        self.sent_bytes = 0
        self.segments: list[tuple[int, int, bytes]] = []  # sequence, type, payload
        self.ends: list[tuple[int, bytes]] = []  # length and digest of every end that was ever numbered
        self.finished = False
        self.edge = 0  # the endpoint has announced room for this number of bytes of the stream
        self.acknowledged = self.first - 1  # by the endpoint, so far
        self.delivered = {self.first}  # numbers that were delivered to the endpoint
        # their stream
        self.base = 0  # their first number, unbounded; 0: the endpoint has sent no packet
        self.numbered: dict[int, tuple[int, bytes]] = {}
        self.offsets: dict[int, int] = {}  # by number: the offset in the stream after that packet
        self.newest = 0
        self.their_bytes = 0
        self.received: set[int] = set()
        self.in_order = 0
        self.furthest = EARLY_BYTES if role is Role.ACCEPTOR else 0  # the furthest window edge ever granted
        self.vouched = 0  # bytes that some valid acknowledgement has covered
        self.their_close = 0  # the sequence number of their CLOSE
        self.close_vouched = False
        self.echo = (0, 0)

    def again(self) -> "Peer":
        """Return a new peer with the initial state of this one."""
        return Peer(self.role, self.own_id, self.route_key, self.first, self.number, self.user)

    # our stream

    def next_sequence(self) -> int:
        """Return the number for the next new packet."""
        return self.first + 1 + len(self.segments)

    def say(self, size: int) -> None:
        """Write some more bytes to the stream and number them."""
        if not self.finished and self.sent_bytes + size <= len(BLOB) - 4096 and size:
            begin = self.start + self.sent_bytes
            self.segments.append((self.next_sequence(), PacketType.DATA, BLOB[begin : begin + size]))
            self.sent_bytes += size

    def granted(self, cumulative: int, window: int) -> None:
        """Record that the endpoint has room for `window` bytes beyond the cumulative number."""
        upto = self.segments[: max(0, cumulative - self.first)]
        self.edge = max(self.edge, window + sum(len(raw) for _, kind, raw in upto if kind == PacketType.DATA))

    def fits(self, index: int) -> bool:
        """Return whether the endpoint has room for that packet of the stream."""
        upto = self.segments[: index + 1] if index >= 0 else self.segments
        return self.edge >= sum(len(raw) for _, kind, raw in upto if kind == PacketType.DATA)

    def option(self, payload: bytes) -> None:
        """Number an OPTION."""
        self.segments.append((self.next_sequence(), PacketType.OPTION, payload))

    def end(self, kind: int, received: int | None) -> None:
        """Number FINISH or CLOSE, once each and in this order, with the right length and digest."""
        if any(segment[1] in (kind, PacketType.CLOSE) for segment in self.segments):
            return
        digest = xxh3_128_digest(self.stream())
        self.ends.append((self.sent_bytes, digest))
        payload = encode_end(End(self.sent_bytes, digest, None if received is None else wrap(received)))
        self.segments.append((self.next_sequence(), kind, payload))
        self.finished = True

    def stream(self) -> bytes:
        """Return every byte of our stream so far."""
        return BLOB[self.start : self.start + self.sent_bytes]

    @property
    def closed(self) -> bool:
        """Whether our CLOSE has a number."""
        return any(segment[1] == PacketType.CLOSE for segment in self.segments)

    # their stream

    def emitted(self, packet: Packet, written: bytes, size_max: int) -> None:
        """Check a sequenced packet that the endpoint has put into a batch."""
        kind, payload = packet.type, bytes(packet.payload)
        if not self.base:
            accepted = kind == PacketType.ACCEPTED
            self.base = (1 << 32) + packet.sequence + (0 if accepted or kind != PacketType.CONNECT else 1)
            self.newest = self.in_order = self.base - 1
            self.offsets[self.newest] = 0
        if kind == PacketType.CONNECT:
            assert unwrap(packet.sequence, self.base) == self.base - 1, "CONNECT has another number than the first"
            return
        sequence = unwrap(packet.sequence, self.newest)
        known = self.numbered.get(sequence)
        if known is not None:
            assert known[0] == kind, f"number {sequence} had type {known[0]}, now type {kind}"
            assert kind == PacketType.ACCEPTED or known[1] == payload, f"number {sequence} has other bytes than before"
            return
        assert sequence == self.newest + 1, f"number {sequence} follows {self.newest}"
        self.newest = sequence
        self.numbered[sequence] = (kind, payload)
        if kind == PacketType.DATA:
            begin = self.their_bytes
            self.their_bytes += len(payload)
            assert payload, "DATA without a byte"
            assert payload == written[begin : self.their_bytes], "the packet's bytes differ from those written"
            assert len(payload) <= size_max, f"{len(payload)} bytes in a packet, at most {size_max}"
            assert self.their_bytes <= self.furthest, f"{self.their_bytes} bytes sent, a window up to {self.furthest}"
        elif kind in _ENDS:
            right = encode_end(End(len(written), xxh3_128_digest(written)))
            assert payload[: len(right)] == right, "length or digest of the end is not that of what was written"
            if kind == PacketType.CLOSE:
                self.their_close = sequence
        else:
            assert kind in _NUMBERED_WITHOUT_BYTES, f"a packet of type {kind} took a number"
        self.offsets[sequence] = self.their_bytes

    def arrived(self, packet: Packet) -> None:
        """Record that the packet has arrived at the peer."""
        if packet.type == PacketType.CONNECT:
            return
        sequence = unwrap(packet.sequence, self.newest)
        self.received.add(sequence)
        self.echo = (packet.sequence, packet.attempt)
        while self.in_order + 1 in self.received:
            self.in_order += 1

    def missing(self) -> bool:
        """Return whether a packet that the endpoint has sent has not arrived."""
        return self.in_order < self.newest

    def honest_ack(self, window: int, delay_us: int) -> Ack:
        """Return an ACK of all that has arrived; if nothing has, of the number before their first."""
        beyond = sorted(number for number in self.received if number > self.in_order)
        ranges: list[tuple[int, int]] = []
        for number in beyond:
            if ranges and ranges[-1][1] == number - 1:
                ranges[-1] = (ranges[-1][0], number)
            else:
                ranges.append((number, number))
        wired = [(wrap(first), wrap(last)) for first, last in reversed(ranges[-32:])]
        return Ack(wrap(self.in_order), window, delay_us, *self.echo, wired)

    def vouch(self, cumulative: int, window: int | None) -> None:
        """Record that the endpoint receives a valid acknowledgement of everything up to a number."""
        known = min(cumulative, self.newest)
        if known < self.base - 1:
            return
        offset = self.offsets.get(known, 0)
        self.vouched = max(self.vouched, offset)
        if window is not None:
            self.furthest = max(self.furthest, offset + window)
        if self.their_close and cumulative >= self.their_close:
            self.close_vouched = True
        if cumulative > self.in_order:
            self.lied_acks = True
