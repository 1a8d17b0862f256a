"""Endpoints as the switch sees them: bodies in, responses out. Each step ends with a check of the switch's state."""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Any

from tunnel.traces.record import TraceRecord
from tunnel.wire import (
    Accepted,
    Answer,
    Attach,
    Attached,
    Connect,
    Dropped,
    Edge,
    Exchange,
    Frame,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    PacketType,
    PublicPlace,
    Rejected,
    Status,
    Target,
    TargetKind,
    attachment_id,
    decode_connect,
    decode_dropped,
    decode_edge,
    decode_envelope,
    decode_rejected,
    encode_accepted,
    encode_connect,
    encode_envelope,
    encode_listen_state,
    encode_option,
    encode_packets,
    encode_rejected,
    frame_of,
    parse_packets,
)
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import (
    Authorise,
    Decision,
    Deny,
    Hand,
    HandTo,
    MayListen,
    PacketFilter,
    Publisher,
    RatesOf,
    SeparateExits,
)
from tunnel_servlet.switch.mailboxes.rate_turns import no_rates
from tunnel_servlet.switch.model import ANY_TOKEN, Credential
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.switch.switch import Switch
from tunnel_servlet.switch.witness import Witness

__all__ = [
    "DATABASE",
    "FORBIDDEN",
    "MS",
    "REPORTS",
    "SECOND",
    "SETTINGS",
    "Peer",
    "Relay",
    "accepted",
    "allow",
    "bind",
    "bound",
    "client_and_exit",
    "connect",
    "control",
    "data",
    "frames_of",
    "key",
    "kinds",
    "listen_state",
    "of_kind",
    "option",
    "read_connect",
    "read_dropped",
    "read_edge",
    "read_rejected",
    "reason",
    "rejected",
    "resume",
]

MS, SECOND = 1_000, 1_000_000
DATABASE = Target(TargetKind.TCP, "db.internal", 5432)
REPORTS = Target(TargetKind.SERVICE, "reports")
FORBIDDEN = Target(TargetKind.TCP, "forbidden", 1)  # no rule allows it
SETTINGS: dict[str, Any] = {
    "process_bytes_max": 8 << 20,
    "user_bytes_max": 4 << 20,
    "mailbox_bytes_max": 1 << 20,
    "exit_mailbox_bytes_max": 1 << 20,
    "route_bytes_max": 512 << 10,
    "initial_edge_bytes": 64 << 10,
    "settle_us": 0,
}


def allow(user: str, target: Target) -> Decision:
    """The rules of the tests: all targets are allowed except FORBIDDEN."""
    if target == FORBIDDEN:
        return Deny(text="not for you")
    return Hand(HandTo.SERVICE if target.kind is TargetKind.SERVICE else HandTo.EXIT)


class Relay:
    """A switch with a clock, and the answers it has given so far."""

    def __init__(
        self,
        *,
        authorise: Authorise = allow,
        may_listen: MayListen | None = None,
        may_share: MayListen | None = None,
        packet_filter: PacketFilter | None = None,
        publisher: Publisher | None = None,
        rates_of: RatesOf = no_rates,
        separate_exits: SeparateExits | None = None,
        trace: bool = False,
        witness: Witness | None = None,
        started_us: int | None = None,
        has_short_way: bool = True,
        checks_every: int = 1,
        **settings: Any,
    ) -> None:
        self.config = SwitchConfig(**{**SETTINGS, **settings})
        self._checks_every = checks_every  # one of this number of calls of `settle` checks the switch
        self._settled = 0
        self.now = 1_000_000
        self.records: list[TraceRecord] = []
        options: dict[str, Any] = {
            "packet_filter": packet_filter,
            "rates_of": rates_of,
            "publisher": publisher,
            "witness": witness,
            "started_us": started_us,
            "has_short_way": has_short_way,
        }
        if separate_exits is not None:
            options["separate_exits"] = separate_exits
        if may_listen is not None:
            options["may_listen"] = may_listen
        if may_share is not None:
            options["may_share"] = may_share
        if trace:
            options["trace"] = self.records.append
        self.switch = Switch(self.config, Random(7), authorise, **options)
        self.responses: dict[int, RelayResponse] = {}
        self.links_ready: list[int] = []
        self.links_ended: list[int] = []
        self._handle = 0

    def post(
        self,
        user: str,
        body: bytes,
        *,
        is_exit: bool = False,
        credential: Credential = ANY_TOKEN,
        identity: bytes | None = None,
    ) -> int:
        """Hand in a body, and return the handle of its response."""
        self._handle += 1
        self.switch.request(
            self._handle, user, body, self.now, is_exit=is_exit, credential=credential, identity=identity
        )
        self.settle()
        return self._handle

    def settle(self) -> None:
        """Collect the responses of the switch, and its news of links."""
        while (response := self.switch.poll_response()) is not None:
            assert response.handle not in self.responses
            self.responses[response.handle] = response
        while (link := self.switch.poll_link_ready()) is not None:
            self.links_ready.append(link)
        while (link := self.switch.poll_link_end()) is not None:
            self.links_ended.append(link)
        self._settled += 1
        if self._settled % self._checks_every == 0:
            self.switch.check_invariants()

    def advance(self, microseconds: int) -> None:
        """Let time pass, stopping at every timer."""
        end = self.now + microseconds
        while (due := self.switch.next_timeout()) is not None and due <= end:
            self.now = max(self.now, due)
            self.switch.handle_timeout(self.now)
            self.settle()
            after = self.switch.next_timeout()
            assert after is None or after > self.now
        self.now = end

    def message(self, handle: int) -> Any:
        """Return the message in the response to this request. The response must be there."""
        return decode_envelope(b"".join(self.responses[handle].body))

    @property
    def counters(self) -> Any:
        return self.switch.stats().counters


@dataclass
class Peer:
    """An endpoint, as far as the switch can tell."""

    relay: Relay
    user: str = "ann"
    seed: int = 1
    name: str = ""
    is_exit: bool = False
    own_identity: bytes | None = None  # of an endpoint in the relay's process
    generation: int = 1
    credential: Credential = ANY_TOKEN
    answer_bytes_max: int = 1 << 20
    numbers: dict[int, int] = field(default_factory=dict)
    serials: dict[int, int] = field(default_factory=dict)
    epoch: int = 0
    lanes_of: int = 0  # the generation to which `numbers` and `serials` belong

    @property
    def secret(self) -> bytes:
        return self.seed.to_bytes(32, "big")

    @property
    def identity(self) -> bytes:
        return self.own_identity or attachment_id(self.secret)

    def attach(self, **changes: Any) -> Attached | Status:
        """Send ATTACH and return the answer. A new generation starts the lanes again."""
        fields: dict[str, Any] = {
            "secret": self.secret,
            "generation": self.generation,
            "pull_interval_ms": 0,
            "body_bytes_max": 1 << 20,
            "name": self.name,
        }
        body = b"".join(encode_envelope(Attach(**{**fields, **changes})))
        handle = self.relay.post(
            self.user, body, is_exit=self.is_exit, credential=self.credential, identity=self.own_identity
        )
        message = self.relay.message(handle)
        assert isinstance(message, Attached | Status)
        if isinstance(message, Attached):
            self.epoch = message.epoch
            if message.generation != self.lanes_of:
                self.numbers.clear()
                self.serials.clear()
            self.generation = self.lanes_of = message.generation
        return message

    def attached(self) -> Peer:
        """Attach, which must succeed. An endpoint with a name then pushes once, so that it gets the name (6.4)."""
        assert isinstance(self.attach(), Attached)
        if self.name:
            self.push()
        return self

    def send(self, *packets: Packet, lane: int = 0, **changes: Any) -> int:
        """Send a new request of the lane, and return its handle."""
        self.numbers[lane] = self.numbers.get(lane, 0) + 1
        return self.repeat(*packets, lane=lane, **changes)

    def repeat(self, *packets: Packet, lane: int = 0, **changes: Any) -> int:
        """Send a request with the present number of the lane, and return its handle."""
        fields: dict[str, Any] = {
            "attachment_id": self.identity,
            "epoch": self.epoch,
            "generation": self.generation,
            "lane": lane,
            "number": self.numbers.get(lane, 0),
            "serial_received": self.serials.get(lane, 0),
            "hold_ms": 0,
            "answer_bytes_max": self.answer_bytes_max,
            "payload": list(encode_packets(packets)),
        }
        return self.relay.post(self.user, b"".join(encode_envelope(Exchange(**{**fields, **changes}))))

    def pull(self, lane: int = 0, hold_ms: int = 10_000, **changes: Any) -> int:
        """Send a pull that may be held, and return its handle."""
        return self.send(lane=lane, pull=True, hold_ms=hold_ms, **changes)

    def answer(self, handle: int) -> Answer:
        """Return the answer to a request. The lane's next request confirms it."""
        message = self.relay.message(handle)
        assert isinstance(message, Answer), message
        if message.number == self.numbers[message.lane]:
            self.serials[message.lane] = max(self.serials.get(message.lane, 0), message.serial)
        return message

    def packets(self, handle: int) -> list[Packet]:
        """Return the packets in the answer to a request."""
        packets, discarded = parse_packets(self.answer(handle).data)
        assert discarded is None
        return packets

    def push(self, *packets: Packet, lane: int = 0) -> list[Packet]:
        """Send packets, and return those that come back at once."""
        return self.packets(self.send(*packets, lane=lane))

    def status(self, handle: int) -> Status:
        """Return the refusal of a request."""
        message = self.relay.message(handle)
        assert isinstance(message, Status), message
        return message

    def listen(self, name: str = "reports", backlog: int = 8, version: int = 1) -> list[Packet]:
        """Announce a name, and return the packets that come back at once, except the answer *up*."""
        consent = listen_state(name, 0, version)
        return [packet for packet in self.push(listen_state(name, backlog, version)) if packet != consent]


# --- packets


def data(source: int, destination: int, sequence: int, payload: bytes = b"hello", attempt: int = 0) -> Packet:
    return Packet(PacketType.DATA, source, destination, sequence, payload, attempt)


def control(kind: int, source: int, destination: int, payload: bytes = b"", sequence: int = 0) -> Packet:
    return Packet(kind, source, destination, sequence, payload)


def key(number: int) -> bytes:
    """A route key."""
    return number.to_bytes(16, "big")


def connect(
    source: int,
    *,
    target: Target = DATABASE,
    route_key: bytes | None = None,
    resume: bool = False,
    destination: int = 0,
    sequence: int = 100,
    attempt: int = 0,
    **options: Any,
) -> Packet:
    message = Connect(route_key or key(source), resume, target, 1 << 16, Options(**options))
    return Packet(PacketType.CONNECT, source, destination, sequence, encode_connect(message), attempt)


def resume(initiator: int, acceptor: int, endpoint: Peer, **changes: Any) -> Packet:
    return connect(initiator, resume=True, destination=acceptor, endpoint_id=endpoint.identity, **changes)


def accepted(initiator: int, own: int, *, route_key: bytes | None = None, resumed: bool = False) -> Packet:
    message = Accepted(route_key or key(initiator), resumed, 1 << 16)
    return Packet(PacketType.ACCEPTED, initiator, own, 500, encode_accepted(message))


def rejected(initiator: int, reason: int, route_key: bytes | None = None) -> Packet:
    payload = encode_rejected(Rejected(route_key or key(initiator), reason, "no"))
    return Packet(PacketType.REJECTED, initiator, 0, 0, payload)


def listen_state(
    name: str = "reports", backlog: int = 8, version: int = 1, *, up: bool = True, public: PublicPlace | None = None
) -> Packet:
    options = Options(public=public)
    state = ListenState(version, ListenStatus.UP if up else ListenStatus.DOWN, backlog, name, options=options)
    return control(PacketType.LISTEN_STATE, 0, 0, encode_listen_state(state))


def option(version: int, **options: Any) -> Packet:
    return control(PacketType.OPTION, 0, 0, encode_option(Option(version, Options(**options))))


def frames_of(*packets: Packet) -> list[Frame]:
    return [frame_of(packet) for packet in packets]


# --- reading


def kinds(packets: list[Packet]) -> list[str]:
    return [PacketType(packet.type).name for packet in packets]


def of_kind(packets: list[Packet], kind: PacketType) -> list[Packet]:
    return [packet for packet in packets if packet.type == kind]


def read_connect(packet: Packet) -> Connect:
    found = decode_connect(packet.payload)
    assert packet.type == PacketType.CONNECT
    assert found is not None
    return found


def read_rejected(packet: Packet) -> Rejected:
    found = decode_rejected(packet.payload)
    assert packet.type == PacketType.REJECTED
    assert found is not None
    return found


def reason(packets: list[Packet]) -> int:
    """Return the reason of a REJECTED, which must be the only packet."""
    (packet,) = packets
    return read_rejected(packet).reason


def read_dropped(packet: Packet) -> Dropped:
    found = decode_dropped(packet.payload)
    assert packet.type == PacketType.DROPPED
    assert found is not None
    return found


def read_edge(packet: Packet) -> Edge:
    found = decode_edge(packet.payload)
    assert packet.type == PacketType.EDGE
    assert found is not None
    return found


# --- scenes


def client_and_exit(relay: Relay, name: str = "") -> tuple[Peer, Peer]:
    """Attach an endpoint of ann and an exit."""
    return Peer(relay).attached(), Peer(relay, user="exits", seed=2, name=name, is_exit=True).attached()


def bound(relay: Relay, initiator: int = 11, acceptor: int = 22) -> tuple[Peer, Peer]:
    """Attach an endpoint of ann and an exit, and bind a route between them."""
    client, exit_ = client_and_exit(relay)
    bind(client, exit_, initiator, acceptor)
    return client, exit_


def bind(client: Peer, exit_: Peer, initiator: int, acceptor: int) -> None:
    """Bind one more route. Nothing waits and nothing is unconfirmed afterwards."""
    client.push(connect(initiator))
    assert kinds(exit_.push()) == ["CONNECT"]
    exit_.push(accepted(initiator, acceptor))
    assert kinds(client.push()) == ["ACCEPTED"]
    assert client.push() == exit_.push() == []
