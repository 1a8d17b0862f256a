"""A relay with bad intent, as a filter of the real switch's packets. A test chooses the attack; a seed, the details.

It knows the protocol: it writes right checksums, and lengths and digests that match what it has made of a stream. A
packet that overtook others is lost on it, so that its sender repeats it: digests are of bytes in order.
"""

from __future__ import annotations

from random import Random

import xxhash
from msgspec.structs import replace

from tunnel.wire import (
    End,
    Frame,
    Packet,
    PacketType,
    Target,
    decode_accepted,
    decode_connect,
    encode_accepted,
    encode_connect,
    encode_end,
    frame_of,
    is_sequenced,
)

__all__ = ["KINDS", "Attacker"]

KINDS = (
    *("strip offer", "strip answer", "damage offer", "forge answer", "redirect", "impersonate"),
    *("flip", "cut", "insert", "repeat", "drop record", "clear text", "end early", "swap", "replay"),
    *("replay request", "cross"),
)
_ENDS = (PacketType.FINISH, PacketType.CLOSE)


class Attacker:
    """Attacks in one way, `kind`. Some kinds alter a single packet with data; the seed draws the packet's direction.

    `elsewhere`: the service to which it redirects. `struck`: whether it has done anything yet.
    """

    def __init__(self, kind: str, random: Random, elsewhere: str = "") -> None:
        self.kind = kind
        self.struck = False
        self.seen = bytearray()  # the payloads that came to the relay
        self.is_first_over = False  # set by the test, for both kinds of replay: a whole connection was recorded
        self._random = random
        self._elsewhere = elsewhere
        self._of_acceptor = bool(random.getrandbits(1))
        self._place = random.randrange(4)
        self._initiators: dict[int, None] = {}
        self._counts: dict[int, int] = {}  # by source: the place of its latest packet with data, from 0
        self._made: dict[tuple[int, int], bytes] = {}  # altered payloads, by source and sequence, for repeats
        self._ended: dict[int, int] = {}  # by source: the sequence number before which its stream was ended
        self._hashes: dict[int, xxhash.xxh3_128] = {}
        self._sizes: dict[int, int] = {}
        self._recorded: list[bytes] = []
        self._recorded_offer = b""
        self._held = b""
        self._next: dict[int, int] = {}  # by source: the sequence number that follows those that have come in order
        self._offers: dict[int, bytes] = {}  # for "cross": the ClientHello of each initiator
        self._sent: dict[int, list[bytes]] = {}  # for "cross": the payloads of each source, in order
        self._numbers: dict[tuple[int, int], int] = {}  # for "cross": the place of each payload in _sent
        self._acceptors: dict[int, int] = {}  # for "cross": the initiator to which each acceptor's id belongs

    def __call__(self, frame: Frame) -> bool:
        self.seen += frame.payload
        if is_sequenced(frame.type, frame.source, frame.destination):
            sender = frame.destination if frame.type == PacketType.ACCEPTED else frame.source
            expected = self._next.setdefault(sender, frame.sequence)
            if frame.sequence > expected:
                return False
            self._next[sender] = max(expected, frame.sequence + 1)
        if frame.type == PacketType.CONNECT:
            self._initiators[frame.source] = None
            return self._on_connect(frame)
        if frame.type == PacketType.ACCEPTED:
            self._on_accepted(frame)
        elif frame.type == PacketType.DATA:
            return self._on_data(frame)
        elif frame.type in _ENDS:
            return self._on_end(frame)
        return True

    def _on_connect(self, frame: Frame) -> bool:
        connect = decode_connect(frame.payload)
        assert connect is not None
        options = connect.options
        target = connect.target
        if self.kind in ("strip offer", "damage offer", "impersonate", "redirect"):
            self.struck = True
        if self.kind == "strip offer":
            options = replace(options, encryption=None)
        elif self.kind == "damage offer" and options.encryption:
            raw = bytearray(options.encryption)
            raw[self._random.randrange(len(raw))] ^= 1 << self._random.randrange(8)
            options = replace(options, encryption=bytes(raw))
        elif self.kind in ("redirect", "impersonate"):
            target = Target(target.kind, self._elsewhere, target.port)
        elif self.kind == "replay request":
            options = replace(options, encryption=self._replayed_offer(options.encryption or b""))
        elif self.kind == "cross":
            self._offers.setdefault(frame.source, bytes(options.encryption or b""))
            if len(self._offers) < 2:
                return False  # the initiator repeats it; by then the other offer is known, too
            options = replace(options, encryption=self._offers[self._other(frame.source)])
        _put(frame, encode_connect(replace(connect, options=options, target=target)))
        return True

    def _replayed_offer(self, offer: bytes) -> bytes:
        if not self.is_first_over:
            self._recorded_offer = bytes(offer)
            return offer
        self.struck = True
        return self._recorded_offer

    def _other(self, initiator: int) -> int:
        one, other = list(self._initiators)[:2]
        return other if initiator == one else one

    def _on_accepted(self, frame: Frame) -> None:
        accepted = decode_accepted(frame.payload)
        assert accepted is not None
        if self.kind == "strip answer":
            options = replace(accepted.options, encryption=None)
        elif self.kind == "forge answer":
            options = replace(accepted.options, encryption=b"")
        else:
            return
        self.struck = True
        _put(frame, encode_accepted(replace(accepted, options=options)))

    def _crossed(self, frame: Frame) -> bytes | None:
        """Return what the other connection has sent at the same place; None: not yet."""
        if frame.destination in self._initiators:
            self._acceptors[frame.source] = frame.destination
        initiator = frame.source if frame.source in self._initiators else frame.destination
        sent = self._sent.setdefault(frame.source, [])
        known = self._numbers.setdefault((frame.source, frame.sequence), len(sent))
        if known == len(sent):
            sent.append(bytes(frame.payload))
        others = [initiator_ for initiator_ in self._initiators if initiator_ != initiator]
        partner = others[0]
        if frame.source not in self._initiators:
            partner = next((source for source, its in self._acceptors.items() if its == others[0]), 0)
        found = self._sent.get(partner, [])
        if known >= len(found):
            return None
        self.struck = True
        return found[known]

    def _on_data(self, frame: Frame) -> bool:
        key = frame.source, frame.sequence
        if frame.source in self._ended:
            return self._on_end(frame) if frame.sequence == self._ended[frame.source] else False
        if key not in self._made:
            made = self._crossed(frame) if self.kind == "cross" else self._alter(frame, bytes(frame.payload))
            if made is None and self.kind == "cross":
                return False
            if made is None:
                self._ended[frame.source] = frame.sequence
                return self._on_end(frame)
            self._made[key] = made
            self._hashes.setdefault(frame.source, xxhash.xxh3_128()).update(made)
            self._sizes[frame.source] = self._sizes.get(frame.source, 0) + len(made)
        _put(frame, self._made[key])
        return True

    def _on_end(self, frame: Frame) -> bool:
        """Replace this packet by an end that fits the bytes that the receiver has got."""
        cut = self._ended.get(frame.source)
        if cut is not None and frame.sequence != cut:
            return False
        if frame.type not in _ENDS:
            frame.type = int(PacketType.FINISH)
        digest = self._hashes.setdefault(frame.source, xxhash.xxh3_128()).digest()
        _put(frame, encode_end(End(self._sizes.get(frame.source, 0), digest)))
        return True

    def _alter(self, frame: Frame, payload: bytes) -> bytes | None:
        """Return what becomes of a payload; None: the stream ends before it."""
        if self.kind in ("replay", "replay request"):
            return self._replay(frame, payload)
        if self.kind == "rewrite":
            self.struck = self.struck or b"account 100" in payload
            return payload.replace(b"account 100", b"account 666")
        if (frame.source in self._initiators) is self._of_acceptor:
            return payload
        count = self._counts[frame.source] = self._counts.get(frame.source, -1) + 1
        if self.kind == "swap":
            held, self._held = self._held, payload
            self.struck = self.struck or bool(held)
            return held or payload
        if count != self._place:
            return payload
        place = self._random.randrange(len(payload))
        made: dict[str, bytes | None] = {
            "flip": payload[:place] + bytes([payload[place] ^ 1 << self._random.randrange(8)]) + payload[place + 1 :],
            "cut": payload[:place],
            "insert": payload[:place] + b"\x17\x03\x03\x00\x13" + bytes(19) + payload[place:],
            "repeat": payload + payload,
            "drop record": b"",
            "clear text": b"account 666".ljust(len(payload)),
            "end early": None,
        }
        if self.kind not in made:
            return payload
        self.struck = True
        return made[self.kind]

    def _replay(self, frame: Frame, payload: bytes) -> bytes:
        """Give the second connection the bytes that one side of the first has sent."""
        if (frame.source in self._initiators) != (self.kind == "replay request"):
            return payload
        if not self.is_first_over:
            self._recorded.append(payload)
            return payload
        self.struck = True
        return self._recorded.pop(0) if self._recorded else payload


def _put(frame: Frame, payload: bytes) -> None:
    """Replace the payload of a packet, with a right checksum."""
    packet = Packet(frame.type, frame.source, frame.destination, frame.sequence, payload, frame.attempt, frame.version)
    frame.data = frame_of(packet).data
