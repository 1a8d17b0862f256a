"""One endpoint whose peer is played by the test, which writes every packet that reaches the endpoint."""

from random import Random
from typing import TypeVar

from xxhash import xxh3_128

from tunnel.core import Connection, Endpoint, EndpointConfig, Event, State
from tunnel.core.constants import SECOND_US
from tunnel.traces.record import TraceSink
from tunnel.wire import (
    Accepted,
    Ack,
    Connect,
    Dropped,
    DropReason,
    End,
    Option,
    Options,
    Packet,
    PacketType,
    Target,
    TargetKind,
    decode_ack,
    decode_connect,
    encode_accepted,
    encode_ack,
    encode_connect,
    encode_dropped,
    encode_end,
    encode_option,
    encode_packets,
    parse_packets,
    wrap,
)

__all__ = ["BIG", "FIRST", "KEY", "MS", "NO_ROUTE", "PEER", "SERVICE", "TARGET", "Solo", "payload"]

MS = 1_000
BIG = 1 << 24
PEER = 77  # the peer's id
FIRST = 2**32 - 2  # the peer's first sequence number: its data starts at 2**32 - 1 and wraps
KEY = bytes(range(16))  # the route key of the CONNECT that the peer sends
SERVICE = Target(TargetKind.SERVICE, "s")
TARGET = Target(TargetKind.TCP, "db", 5432)
NO_ROUTE = encode_dropped(Dropped(DropReason.NO_ROUTE, 0, 0, 0))
_E = TypeVar("_E", bound=Event)


def payload(packets: list[Packet], packet_type: PacketType) -> bytes:
    """Return the payload of the only packet of that type."""
    (found,) = [bytes(packet.payload) for packet in packets if packet.type == packet_type]
    return found


class Solo:
    """Drive the endpoint, take its packets, and speak for the peer. `connection` is the one that was opened last."""

    connection: Connection

    def __init__(self, config: EndpointConfig | None = None, *, trace: TraceSink | None = None) -> None:
        self.now = SECOND_US
        self.endpoint = Endpoint(config or EndpointConfig(exit=True), Random(5), name="solo", trace=trace)
        self.endpoint.on_attached(True, BIG, 1 << 30, self.now)
        self.route_key = KEY
        self.stream = b""  # the peer's stream so far

    # opening

    def connect(self, target: Target = SERVICE) -> "Solo":
        """Send CONNECT, which is not answered yet."""
        self.connection = self.endpoint.connect(target, self.now)
        packet = next(packet for packet in self.out() if packet.source == self.connection.id)
        connect = decode_connect(packet.payload)
        assert connect is not None
        self.route_key = connect.route_key
        return self

    def answer(self, options: Options | None = None, *, window: int = BIG, resumed: bool = False) -> None:
        """Receive the peer's ACCEPTED."""
        payload = encode_accepted(Accepted(self.route_key, resumed, window, options or Options()))
        self.receive(Packet(PacketType.ACCEPTED, self.connection.id, PEER, wrap(FIRST), payload))

    def opened(self, target: Target = SERVICE) -> "Solo":
        """Open a connection from this endpoint; events and packets of the opening are removed."""
        self.connect(target)
        self.answer()
        self.out()
        self.events()
        return self

    def request(
        self,
        target: Target = TARGET,
        options: Options | None = None,
        *,
        resume: bool = False,
        source: int = PEER,
        destination: int = 0,
        window: int = BIG,
    ) -> None:
        """Receive the peer's CONNECT."""
        payload = encode_connect(Connect(self.route_key, resume, target, window, options or Options()))
        self.receive(Packet(PacketType.CONNECT, source, destination, wrap(FIRST), payload))
        if self.endpoint.connections:
            self.connection = list(self.endpoint.connections.values())[-1]

    def served(self, target: Target = SERVICE) -> "Solo":
        """Let the peer open a connection; events and packets of the opening are removed."""
        self.endpoint.listen(target.host, 8, self.now)
        self.request(target)
        if self.connection.state is State.REQUESTED:
            self.endpoint.accept(self.connection.id, self.now)
        self.out()
        self.ack()
        self.out()
        self.events()
        return self

    # the peer

    def receive(self, *packets: Packet) -> None:
        """Receive packets as one batch."""
        self.endpoint.receive_packets(parse_packets(b"".join(encode_packets(packets)))[0], self.now)

    def packet(self, packet_type: int, payload: bytes = b"", *, number: int = -1, attempt: int = 0) -> Packet:
        """Make a packet of the peer; number 0 is the first after the one that opened the connection."""
        sequence = wrap(FIRST + 1 + number) if number >= 0 else 0
        return Packet(packet_type, PEER, self.connection.id, sequence, payload, attempt)

    def say(self, packet_type: int, payload: bytes = b"", *, number: int = -1, attempt: int = 0) -> None:
        """Receive one packet of the peer, alone."""
        self.receive(self.packet(packet_type, payload, number=number, attempt=attempt))

    def relay(self, packet_type: int, payload: bytes) -> None:
        """Receive a packet of the relay's own."""
        self.receive(Packet(packet_type, 0, self.connection.id, 0, payload))

    def data(self, number: int, payload: bytes = b"x") -> None:
        """Receive bytes of the peer's stream, which grows in the order of the calls, whatever the numbers are."""
        self.stream += payload
        self.say(PacketType.DATA, payload, number=number)

    def end(self, number: int, packet_type: int = PacketType.CLOSE, received: int | None = None) -> None:
        """Receive the end of everything that the peer has sent."""
        end = End(len(self.stream), xxh3_128(self.stream).digest(), received)
        self.say(packet_type, encode_end(end), number=number)

    def option(self, number: int, version: int, options: Options) -> None:
        """Receive an OPTION of the peer."""
        self.say(PacketType.OPTION, encode_option(Option(version, options)), number=number)

    def ack(
        self,
        missing: int = 0,
        *,
        window: int = BIG,
        ranges: tuple[tuple[int, int], ...] = (),
        cumulative: int | None = None,
        echo: int = 0,
        attempt: int = 0,
    ) -> None:
        """Acknowledge everything that was sent, except the last `missing` packets."""
        if cumulative is None:
            cumulative = self.connection.sender.window.next_sequence - 1 - missing
        message = Ack(wrap(cumulative), window, 0, wrap(echo or cumulative), attempt, list(ranges))
        self.say(PacketType.ACK, encode_ack(message))

    # the endpoint

    def out(self, *, ok: bool = True, size: int = 1 << 20) -> list[Packet]:
        """Take every packet that wants to leave now; each batch is done at once. If not `ok`, take only the first
        batch, and give it up."""
        packets: list[Packet] = []
        while self.endpoint.wants_batch():
            batch = self.endpoint.next_batch(size, self.now)
            if batch is None:
                break
            packets += batch.packets
            self.endpoint.batch_done(batch.token, ok, self.now)
            if not ok:
                break
        return packets

    def types(self) -> list[PacketType]:
        """Take the packets that want to leave now, and return their types."""
        return [PacketType(packet.type) for packet in self.out()]

    def acked(self) -> Ack:
        """Take the packets that want to leave now, and return the only ACK."""
        (ack,) = [decode_ack(packet.payload) for packet in self.out() if packet.type == PacketType.ACK]
        assert ack is not None
        return ack

    def events(self) -> list[Event]:
        """Take all events so far."""
        found = []
        while (event := self.endpoint.poll_event()) is not None:
            found.append(event)
        return found

    def event(self, kind: type[_E]) -> _E:
        """Take the only event so far."""
        (event,) = self.events()
        assert isinstance(event, kind)
        return event

    def in_state(self, state: State) -> bool:
        """Return whether the connection is in this state."""
        return self.connection.state is state

    def wait(self, duration_us: int) -> None:
        """Let time pass, timer by timer; no packet leaves."""
        end = self.now + duration_us
        while (due := self.endpoint.next_timeout()) is not None and due <= end:
            self.now = max(self.now, due)
            self.endpoint.handle_timeout(self.now)
            later = self.endpoint.next_timeout()
            assert later is None or later > self.now
        self.now = end
