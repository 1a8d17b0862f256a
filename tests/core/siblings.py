"""A process with endpoints at several relays, whose packets the test writes and reads, for tests of moves (6.11)."""

from random import Random

from tests.core.solo import BIG, FIRST, KEY, MS, SERVICE
from tunnel.core import Endpoint, EndpointConfig, Incoming, Siblings
from tunnel.core.constants import SECOND_US
from tunnel.wire import (
    Accepted,
    Ack,
    Connect,
    Options,
    Packet,
    PacketType,
    decode_connect,
    encode_accepted,
    encode_ack,
    encode_connect,
    wrap,
)

__all__ = ["HERE", "PEER", "THERE", "Process", "answer", "connect", "other_acceptor"]

PEER = 77
HERE, THERE, THIRD = bytes([1]) * 16, bytes([2]) * 16, bytes([3]) * 16


class Process:
    """A process with an endpoint at each of several relays, whose packets the test writes and reads."""

    def __init__(
        self,
        *,
        same_users: bool = True,
        packet_bytes_max: int = BIG,
        relays: int = 2,
        config: EndpointConfig = EndpointConfig(),  # noqa: B008 - it is immutable
    ) -> None:
        self.now = SECOND_US
        self.siblings = Siblings(is_one_domain=same_users)
        self.woken: list[int] = []
        self.endpoints = [
            Endpoint(config, Random(number), endpoint_id=identity)
            for number, identity in enumerate((HERE, THERE, THIRD)[:relays])
        ]
        for number, endpoint in enumerate(self.endpoints):
            endpoint.join(self.siblings, number, lambda number=number: self.woken.append(number))  # type: ignore[misc]
            endpoint.listen("s", 9, self.now)
            endpoint.on_attached(True, packet_bytes_max if number else BIG, 1 << 30, self.now)
            self.out(number)

    def out(self, number: int) -> list[Packet]:
        """Return what leaves for a relay, and receipt it."""
        endpoint, found = self.endpoints[number], []
        while (batch := endpoint.next_batch(1 << 20, self.now)) is not None:
            found += batch.packets
            endpoint.batch_done(batch.token, True, self.now)
        return found

    def into(self, number: int, *packets: Packet) -> list[Packet]:
        """Receive packets from a relay, and return what leaves for it."""
        self.endpoints[number].receive_packets(list(packets), self.now)
        return self.out(number)

    def wait(self, duration_us: int) -> None:
        ends_us = self.now + duration_us
        while self.now < ends_us:
            self.now = min(ends_us, self.now + 10 * MS)
            for endpoint in self.endpoints:
                due_us = endpoint.next_timeout()
                if due_us is not None and due_us <= self.now:
                    endpoint.handle_timeout(self.now)

    # at the acceptor

    def asked(self, *, user: str = "ann") -> int:
        """Accept a connection at the first relay, and return its id."""
        self.into(0, connect(user=user))
        (number,) = self.endpoints[0].connections
        first = wrap(self.endpoints[0].connections[number].identity.first_sequence)
        ack = Packet(PacketType.ACK, PEER, number, 0, encode_ack(Ack(first, BIG, 0, first, 0)))
        self.into(0, ack, Packet(PacketType.DATA, PEER, number, wrap(FIRST + 1), b"abc"))
        assert isinstance(self.endpoints[0].poll_event(), Incoming)
        self.endpoints[0].poll_event()
        return number

    # at the initiator

    def opened(self, count: int = 1) -> list[int]:
        """Open connections at the first relay."""
        for number in range(count):
            made = self.endpoints[0].connect(SERVICE, self.now)
            options = Options(endpoint_id=HERE[::-1], further_ids=(THERE[::-1],))
            payload = encode_accepted(Accepted(made.identity.route_key, False, BIG, options))
            self.out(0)
            self.into(0, Packet(PacketType.ACCEPTED, made.id, PEER + number, wrap(FIRST), payload))
        return list(self.endpoints[0].connections)

    def resumes(self, number: int = 1) -> list[Packet]:
        return [packet for packet in self.out(number) if packet.type == PacketType.CONNECT]


def connect(*, user: str = "ann", resumed: int = 0, move: int | None = None, source: int = PEER) -> Packet:
    """CONNECT, or with the acceptor's id a resume."""
    ids = {"endpoint_id": HERE, "further_ids": (THERE,)} if resumed else {}
    options = Options(user=user, move=move, **ids)  # type: ignore[arg-type]
    message = Connect(KEY, bool(resumed), SERVICE, BIG, options)
    return Packet(PacketType.CONNECT, source, resumed, wrap(FIRST), encode_connect(message))


def answer(packet: Packet, move: int | None, *, key: bytes | None = None) -> Packet:
    """ACCEPTED that answers a resume."""
    asked = decode_connect(packet.payload)
    assert asked is not None
    options = Options(endpoint_id=THERE[::-1], further_ids=(HERE[::-1],), move=move)
    payload = encode_accepted(Accepted(key or asked.route_key, True, BIG, options))
    return Packet(PacketType.ACCEPTED, packet.source, packet.destination, wrap(FIRST), payload)


def other_acceptor(process: Process) -> int:
    """Open a connection at the first relay that another endpoint accepts."""
    made = process.endpoints[0].connect(SERVICE, process.now)
    options = Options(endpoint_id=bytes([8]) * 16, further_ids=(bytes([9]) * 16,))
    payload = encode_accepted(Accepted(made.identity.route_key, False, BIG, options))
    process.out(0)
    process.into(0, Packet(PacketType.ACCEPTED, made.id, PEER + 100, wrap(FIRST), payload))
    return made.id
