"""The endpoint under test on a virtual clock, with a carrier that follows the script."""

from collections import deque
from collections.abc import Sequence
from random import Random
from typing import Any

import msgspec

from tests.scripted.language import ScriptError
from tests.scripted.party import Party, digest_of, stream
from tests.scripted.shown import Shown, Value, show, target_text
from tunnel.core import Connection, Endpoint, EndpointConfig, Event, State
from tunnel.wire import (
    SEQUENCED,
    Packet,
    PacketType,
    Target,
    TargetKind,
    decode_accepted,
    decode_connect,
    decode_end,
    encode_packets,
    parse_packets,
)

__all__ = ["ScriptedRandom", "World", "clock"]

PEER_ID = 0xA000  # the peer's id of the first connection; others follow
PEER_BASE = 7_000_000
TIMEOUTS_MAX = 100_000  # in one step of a script; more mean that the endpoint never comes to rest
BATCHES_MAX = 10_000

_ENDS = frozenset({int(PacketType.FINISH), int(PacketType.CLOSE)})


class ScriptedRandom(Random):
    """A seeded Random for which a script can choose the next draws."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.next: deque[int] = deque()

    def getrandbits(self, bits: int, /) -> int:
        """Use the script's numbers for draws of 32 bits, which are ids and first sequence numbers."""
        return self.next.popleft() if bits == 32 and self.next else super().getrandbits(bits)


class World:
    """All that a script can see and change. Packets and events of the endpoint are kept, each with its time, until a
    line of the script expects them."""

    def __init__(self, config: EndpointConfig) -> None:
        self.random = ScriptedRandom(1)
        self.endpoint = Endpoint(config, self.random, endpoint_id=bytes(range(16, 32)))
        self.now = 0
        self.carrier_on = True
        self.receipts_at_once = True
        self.batch_bytes = 64 * 1024
        self.tokens: list[int] = []  # the endpoint's number of each batch, in the order in which they left
        self.parties: dict[str, Party] = {}
        self.sent: deque[tuple[int, Shown]] = deque()
        self.events: deque[tuple[int, Shown]] = deque()
        self.history: list[str] = []

    # parties

    def party(self, name: str) -> Party:
        """Return the connection of that name; raise ValueError before the script has opened it."""
        party = self.parties.get(name)
        if party is None:
            raise ValueError(f"no connection {name} in this script yet")
        if party.own_id not in self.endpoint.connections:
            self._find_connection(party)
        return party

    def new_party(self, name: str, target: str, base: int | None, *, initiator: bool) -> Party:
        """Make a new connection, of which the endpoint under test is the initiator or the acceptor."""
        host, colon, port = target.partition(":")
        party = Party(
            name,
            PEER_ID + len(self.parties),
            PEER_BASE if base is None else base,
            len(self.parties).to_bytes(16, "big"),
            Target(TargetKind.TCP, host, int(port)) if colon else Target(TargetKind.SERVICE, host),
            initiator,
        )
        self.parties[name] = party
        return party

    def _find_connection(self, party: Party) -> None:
        for connection in self.endpoint.connections.values():
            if connection.identity.route_key == party.route_key and not connection.identity.initiator:
                party.connection = connection

    def _party_of(self, packet: Packet) -> Party | None:
        """Return a packet's connection. ACCEPTED and REJECTED carry the initiator's id as their source (2.2)."""
        by_peer = packet.type in (PacketType.ACCEPTED, PacketType.REJECTED)
        for name in self.parties:
            party = self.party(name)
            if packet.source == (party.peer_id if by_peer else party.own_id):
                return party
        return None

    # time

    def advance(self, moment: int) -> None:
        """Let the time pass; every timer fires when it is due, and packets that it causes leave at that time."""
        if moment < self.now:
            raise ValueError(f"{clock(moment)} is over: it is {clock(self.now)}")
        for _ in range(TIMEOUTS_MAX):
            due = self.endpoint.next_timeout()
            if due is None or due > moment:
                self.now = moment
                return
            self.now = max(self.now, due)
            self.endpoint.handle_timeout(self.now)
            self.settle()
        raise ScriptError(f"timers fire without end at {clock(self.now)}")

    # the carrier

    def receive(self, packets: Sequence[Packet]) -> None:
        """Deliver one batch to the endpoint, as bytes."""
        parsed, discarded = parse_packets(b"".join(encode_packets(packets)))
        if discarded is not None:
            raise ScriptError(f"the script's own packets are broken: {discarded}")
        self.endpoint.receive_packets(parsed, self.now)

    def settle(self) -> None:
        """Let the endpoint send all the batches it wants, and take its events."""
        for _ in range(BATCHES_MAX):
            if not (self.carrier_on and self.endpoint.wants_batch()):
                break
            if not self.take_batch(self.batch_bytes) and self.endpoint.wants_batch():
                raise ScriptError("the endpoint keeps asking for a batch and has nothing to put into it")
        else:
            raise ScriptError(f"the endpoint fills batches without end at {clock(self.now)}")
        while (event := self.endpoint.poll_event()) is not None:
            shown = self._shown_event(event)
            self.events.append((self.now, shown))
            self.history.append(f"{clock(self.now)}  ! {shown}")
        self._check_timers()

    def take_batch(self, size_max: int) -> bool:
        """Send one batch, and report its receipt at once unless the script reports receipts.

        Return False if there was none.
        """
        batch = self.endpoint.next_batch(size_max, self.now)
        if batch is None:
            return False
        if batch.size != sum(packet.size for packet in batch.packets):
            raise ScriptError(f"a batch claims a size of {batch.size} bytes")
        if batch.size > size_max and len(batch.packets) > 1:
            raise ScriptError(f"a batch of {batch.size} bytes, at most {size_max} are allowed")
        self.tokens.append(batch.token)
        for packet in batch.packets:
            party = self._party_of(packet)
            shown = show(packet, party)
            shown.fields["batch"] = len(self.tokens)
            self.sent.append((self.now, shown))
            self.history.append(f"{clock(self.now)}  > {shown}")
            if party is not None:
                self._check_repeat(packet, party)
        if self.receipts_at_once:
            self.endpoint.batch_done(batch.token, True, self.now)
        return True

    def done(self, number: int, *, ok: bool) -> None:
        """Report a batch, named by its place among all that left, as receipted or as given up."""
        if not 0 < number <= len(self.tokens):
            raise ValueError(f"{len(self.tokens)} batches have left, there is no batch {number}")
        self.endpoint.batch_done(self.tokens[number - 1], ok, self.now)

    # what must hold in every script

    def _check_repeat(self, packet: Packet, party: Party) -> None:
        """Check that a retransmission differs only in its attempt (1.8), and that the stream is what was written."""
        if packet.type not in SEQUENCED or self._resumes(packet):
            return
        number = party.own_number(packet.sequence)
        payload = bytes(packet.payload)
        known = party.sent.get(number)
        if known is None:
            self._check_first(packet, party, payload)
        elif (packet.type, payload) != known[:2]:
            raise ScriptError(f"{PacketType(packet.type).name} {number} differs from its first transmission (1.8)")
        attempts = 0 if known is None else known[2]
        if packet.attempt != attempts % 256:
            raise ScriptError(f"packet {number} leaves as attempt {packet.attempt}, not {attempts} (1.8)")
        party.sent[number] = (packet.type, payload, attempts + 1)

    def _check_first(self, packet: Packet, party: Party, payload: bytes) -> None:
        if packet.type == PacketType.DATA:
            if payload != stream(party.written, len(payload)):
                raise ScriptError(f"DATA {party.own_number(packet.sequence)} differs from the bytes written")
            party.written += len(payload)
        elif packet.type in _ENDS:
            end = decode_end(payload)
            if end is None or end.length != party.written or end.digest != digest_of(party.written):
                raise ScriptError(f"the end of the stream does not match its {party.written} bytes (5.1)")

    def _resumes(self, packet: Packet) -> bool:
        if packet.type == PacketType.CONNECT:
            connect = decode_connect(packet.payload)
            return connect is not None and connect.resume
        if packet.type == PacketType.ACCEPTED:
            accepted = decode_accepted(packet.payload)
            return accepted is not None and accepted.resumed
        return False

    def _check_timers(self) -> None:
        """Check that the endpoint wakes up in time for every deadline of every connection."""
        wakes = self.endpoint.next_timeout()
        for connection in self.endpoint.connections.values():
            deadline = connection.timers.next()
            if connection.state is not State.CLOSED and deadline < 1 << 61 and (wakes is None or wakes > deadline):
                raise ScriptError(f"a timer is due at {clock(deadline)}, but the endpoint sleeps past it")

    def _shown_event(self, event: Event) -> Shown:
        fields: dict[str, Value] = {}
        for key, value in msgspec.structs.asdict(event).items():
            if key != "connection_id":
                fields[key] = _plain(value)
        name = next((party.name for party in map(self.party, self.parties) if party.own_id == event.connection_id), "?")
        return Shown(type(event).__name__, name, fields)

    def connection(self, name: str) -> Connection:
        """Return the endpoint's connection of that name."""
        return self.party(name).live()


def clock(time_us: int) -> str:
    """Return a time in the format of scripts."""
    for unit, size in (("s", 1_000_000), ("ms", 1000)):
        if time_us % size == 0:
            return f"{time_us // size}{unit}"
    return f"{time_us // 1000}.{time_us % 1000:03}ms"


def _plain(value: Any) -> Value:
    if isinstance(value, Target):
        return target_text(value)
    name = getattr(value, "name", None)
    if isinstance(name, str):
        return name
    return value if isinstance(value, int | str) else str(value)
