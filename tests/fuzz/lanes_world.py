"""The lanes of an endpoint, a relay that keeps its promises, and a network with liars, which the fuzzer plays.

Posted requests may arrive any number of times, late, or damaged; so may their answers.
"""

from random import Random

from tests.exchange.loop import SECRET, Relay, data_packet
from tests.fuzz.draw import Draw
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneConfig,
    LaneEvent,
    Lanes,
    PacketsReceived,
    Recovered,
    Request,
    Troubled,
)
from tunnel.wire import HEADER_SIZE, Buffer, Packet, frame_of

__all__ = ["LanesWorld"]

_ATTEMPTS_MAX = 3  # attempts of one body that may be open at once
_NAMES = 4096  # names are sequence numbers: they stay small


class LanesWorld:
    """`posted`: id and body of requests that can still arrive. `answers`: id, status and body of such answers."""

    def __init__(self, draw: Draw, config: LaneConfig, random: Random, lanes: int) -> None:
        self.draw = draw
        self.config = config
        self.now = 1_000_000
        self.relay = Relay(random, lanes=lanes, body_bytes_max=1 << 18)
        self.lanes = Lanes(config, SECRET, random, endpoint_name="fuzz")
        self.posted: list[tuple[int, bytes]] = []
        self.answers: list[tuple[int, int, Buffer]] = []
        self.handles: dict[int, int] = {}  # the relay's handle -> the request's id
        self.pushed: dict[int, list[int]] = {}  # by token: names of the packets in batches without a receipt
        self.sizes: dict[int, int] = {}  # by name: size of the payload
        self.given: list[int] = []  # names of the packets that the relay was given
        self.delivered: dict[int, int] = {}  # by name: number of deliveries
        self.resets = 0  # how often all lanes began again: unconfirmed packets may then come twice
        self.lied = False  # an answer was invented; from then on, the lanes promise only not to fail
        self.refused = False
        self._attached = self._troubled = False
        self._next_token = 1

    # the endpoint's side

    def _named(self, size: int) -> Packet:
        """Return a packet with a name of its own, and of a size that needs few pieces."""
        size = min(size, self.config.packet_bytes_max - HEADER_SIZE, 4 * self.config.body_bytes_start)
        name = len(self.sizes) + 1
        self.sizes[name] = size
        return data_packet(name, size)

    def push(self, sizes: list[int]) -> None:
        """Send one batch, if there is room for it. Packets that do not fit are left out, except the first."""
        room = self.lanes.room(self.now)
        assert room >= 0
        if not room or len(self.sizes) > _NAMES:
            return
        packets: list[Packet] = []
        for size in sizes:
            used = sum(packet.size for packet in packets)
            if not packets or used + HEADER_SIZE + size <= room:
                packets.append(self._named(size))
            if used > room:
                break
        token = self._next_token
        self._next_token += 1
        self.pushed[token] = [packet.sequence for packet in packets]
        self.lanes.push(packets, token, self.now)

    def drain(self) -> None:
        """Send all requests, then take all events: the lanes ask for this order."""
        polled = 0
        while (request := self.lanes.poll_request(self.now)) is not None:
            self._check_request(request)
            self.posted.append((request.id, b"".join(request.body)))
            polled += 1
            assert polled < 100, "the lanes send requests without end"
        while (event := self.lanes.poll_event()) is not None:
            self._heard(event)

    def _check_request(self, request: Request) -> None:
        assert not self.refused, "the lanes sent a request after the refusal"
        assert -1 <= request.lane < self.config.lanes_max
        assert request.deadline_us > self.now
        size = sum(map(len, request.body))
        assert size <= max(self.config.body_bytes_max, 256), f"a body of {size} bytes"

    def _heard(self, event: LaneEvent) -> None:
        match event:
            case PacketsReceived():
                for packet in event.packets:
                    self._received(packet)
            case BatchDone():
                names = self.pushed.pop(event.token)
                if event.ok and not self.lied:
                    arrived = {name for _, name in self.relay.received}
                    assert set(names) <= arrived, f"receipted, but not at the relay: {set(names) - arrived}"
            case AttachedEvent():
                assert not self._attached
                self._attached = True
            case Detached():
                assert self._attached
                assert not self.pushed, "Detached came before all batches were given up"
                self._attached = False
            case AttachRefused():
                self.refused = True
            case Troubled():
                assert not self._troubled
                self._troubled = True
            case Recovered():
                assert self._troubled
                self._troubled = False

    def _received(self, packet: Packet) -> None:
        if self.lied:
            return
        name = packet.sequence
        assert name in self.given, f"packet {name} was never sent"
        assert bytes(packet.payload) == bytes([name % 251]) * self.sizes[name], f"packet {name} was changed"
        self.delivered[name] = self.delivered.get(name, 0) + 1
        assert self.delivered[name] <= 1 + self.resets, f"packet {name} came twice"

    # the relay's side

    def give(self, size: int) -> None:
        """Give the relay a packet for the endpoint."""
        if len(self.sizes) <= _NAMES:
            packet = self._named(size)
            self.given.append(packet.sequence)
            self.relay.give([frame_of(packet)])
            self.collect()

    def arrive(self, index: int) -> None:
        """Deliver a copy of that request to the relay."""
        request_id, body = self.posted[index]
        handle = len(self.handles) + 1
        self.handles[handle] = request_id
        attachments = dict(self.relay.attachments)
        self.relay.request(handle, body, self.now)
        self.resets += attachments != self.relay.attachments
        self.collect()

    def collect(self) -> None:
        """Send the relay's answers on their way."""
        for handle, status, body in self.relay.replies:
            self.answers.append((self.handles[handle], status, b"".join(body)))
        self.relay.replies.clear()

    def progress(self) -> tuple[int, ...]:
        """Return a value that changes with any progress."""
        outgoing = [served._outgoing_offset for served in self.relay.lanes.values()]
        pushing = [lane._outgoing_offset for lane in self.lanes._set.lanes]
        return (len(self.delivered), len(self.relay.received), len(self.pushed), *outgoing, *pushing)

    # what must hold

    def check(self) -> None:
        """Raise AssertionError for the first promise that does not hold."""
        lanes = self.lanes
        assert 1 <= lanes.lane_count <= self.config.lanes_max
        assert lanes.path.up.limit_bytes <= self.config.body_bytes_max
        assert lanes.path.down.limit_bytes <= self.config.answer_bytes_max
        assert lanes.path.hold.hold_us <= self.config.hold_us
        assert len(lanes._attempts) <= _ATTEMPTS_MAX * (self.config.lanes_max + 1), "too many attempts are open"
        attempts = sum(len(flight.attempts) for flight in lanes._exchanges.flights())
        assert len(lanes._attempts) == attempts, "an attempt is forgotten"
        assert len(self.pushed) <= self.config.lanes_max
        assert lanes.is_attached == self._attached
        for lane in lanes._set.lanes:
            incoming = lane._incoming
            assert incoming.held_bytes <= incoming.packet_bytes_max + self.config.answer_bytes_max
        if self.lied:
            return
        assert len(self.relay.received) == len({name for _, name in self.relay.received}), "a packet was applied twice"
        for number in range(self.config.lanes_max):
            own = [name for index, name in self.relay.received if index == number]
            assert own == sorted(own), f"packets of lane {number} were applied out of order"
        kept = {frame.sequence for frame in self.relay.outbox.frames}
        for served in self.relay.lanes.values():
            kept |= {frame.sequence for frame in served._ledger.frames}
            if served._outgoing is not None:
                kept.add(served._outgoing.sequence)
        lost = [name for name in self.given if name not in kept and name not in self.delivered]
        assert not lost, f"the relay dropped packets that never arrived: {lost}"
