"""Users who break every rule of the protocol that the relay lets them break. Their acts are drawn from the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, Protocol

from tests.sim.clock import MILLISECOND, SECOND, Clock
from tests.sim.faults import FaultKind
from tests.sim.hostile_link import Guest, HostileLink
from tests.sim.randomness import between, chance, log_between, pick
from tests.sim.relay import RelayHost
from tunnel.wire import (
    Accepted,
    Answer,
    Attach,
    Attached,
    Exchange,
    Packet,
    PacketType,
    Status,
    Target,
    decode_accepted,
    decode_envelope,
    encode_envelope,
    encode_packets,
    parse_packets,
)

__all__ = ["HostileSpec", "HostileUser", "Surroundings", "draw_hostiles"]

HOSTILE_NODE = -10  # the first of the numbers by which the relay knows the paths of hostile users
GUESTS_MAX = 24  # attachments that one user remembers
LINKS_MAX = 12
BODIES_MAX = 64  # bodies and batches that one user leaves unfinished at the same time
HOLD_MS = 20_000


@dataclass(frozen=True, slots=True)
class HostileSpec:
    """One hostile user: which acts it does, how many, and at what pace. It may go on after the faults have ended."""

    user: str
    acts: tuple[str, ...]
    count: int
    pause_us: int
    """Mean time between two acts."""


class Surroundings(Protocol):
    """The things that a hostile user knows of the others. It may have learnt them from a trace, or guessed them."""

    def targets(self) -> list[Target]:
        """Targets that the rules allow, and as the last one a target that they deny."""

    def attachments(self) -> list[bytes]:
        """The attachment ids of honest endpoints."""

    def connections(self) -> list[tuple[int, int]]:
        """The ids of honest connections, at both ends."""


class HostileUser:
    """Sends what its spec says, from the time of `start` until it has done everything or `stop` is called.

    It is a `Requester`: its path to the relay has no faults and takes no time.
    """

    def __init__(
        self,
        clock: Clock,
        relay: RelayHost,
        random: Random,
        spec: HostileSpec,
        number: int,
        surroundings: Surroundings,
        acts: dict[str, Callable[[HostileUser], None]],
    ) -> None:
        self.clock, self.relay, self.random, self.spec = clock, relay, random, spec
        self.surroundings = surroundings
        self.node = HOSTILE_NODE - number
        self.source = self.user = spec.user
        self.is_exit = False
        self.reads_answers = True
        self.guests: list[Guest] = []
        self.links: list[HostileLink] = []
        self.bodies = 0  # unfinished ones
        self.refusals: dict[int, int] = {}  # by code of STATUS
        self.done = 0
        self.acts = acts
        self._asking: dict[int, Guest] = {}
        self._next_id = 0
        self._is_stopped = False

    def start(self) -> None:
        """Act for the first time after a pause."""
        self.clock.after(self._pause_us(), self._act)

    def stop(self) -> None:
        """Stop acting; end the links, and the connections of exchanges that wait for an answer."""
        self._is_stopped = True
        for exchange_id in list(self._asking):
            self.relay.gone(self, exchange_id)
        self._asking.clear()
        for link in list(self.links):
            link.close()

    def _pause_us(self) -> int:
        return round(self.random.expovariate(1 / self.spec.pause_us))

    def _act(self) -> None:
        if self._is_stopped or self.done >= self.spec.count:
            return
        self.done += 1
        self.acts[pick(self.random, self.spec.acts)](self)
        self.clock.after(self._pause_us(), self._act)

    # --- Requester

    def respond(self, exchange_id: int, status: int, body: bytes, faults: list[FaultKind]) -> None:
        """Note what the answer says."""
        guest = self._asking.pop(exchange_id, None)
        message = decode_envelope(body)
        if isinstance(message, Status):
            self.refusals[message.code] = self.refusals.get(message.code, 0) + 1
        elif guest is not None and isinstance(message, Attached):
            if (guest.epoch, guest.generation) != (message.epoch, message.generation):
                guest.numbers, guest.serials, guest.routes = {}, {}, []
            guest.epoch, guest.generation = message.epoch, message.generation
        elif guest is not None and isinstance(message, Answer):
            if chance(self.random, 0.7):
                guest.serials[message.lane] = message.serial
            self.take(guest, parse_packets(message.data)[0])

    def stream(self, exchange_id: int, piece: bytes, faults: list[FaultKind], *, is_last: bool) -> None:
        """Take an envelope of a streamed answer."""
        guest = self._asking.pop(exchange_id, None) if is_last else self._asking.get(exchange_id)
        message = decode_envelope(piece)
        if guest is not None and isinstance(message, Answer):
            if chance(self.random, 0.7):
                guest.serials[message.lane] = message.serial
            self.take(guest, parse_packets(message.data)[0])

    def reset(self, exchange_id: int) -> None:
        """The connection was lost."""
        self._asking.pop(exchange_id, None)

    def take(self, guest: Guest, packets: list[Packet]) -> None:
        """Remember the connections that were accepted."""
        for packet in packets:
            accepted = decode_accepted(packet.payload) if packet.type == PacketType.ACCEPTED else None
            if isinstance(accepted, Accepted):
                guest.routes.append((packet.source, packet.destination))

    # --- what acts are made of

    def guest(self) -> Guest:
        """An attachment: often a known one, sometimes a new one."""
        if self.guests and (len(self.guests) >= GUESTS_MAX or chance(self.random, 0.8)):
            found = pick(self.random, self.guests)
            if found.epoch != self.relay.switch.epoch:
                self.attach(found)
            return found
        return self.new_guest()

    def new_guest(self, name: str = "") -> Guest:
        """Attach with a new secret."""
        found = Guest(self.random.randbytes(32), name)
        if len(self.guests) < GUESTS_MAX:
            self.guests.append(found)
        self.attach(found)
        return found

    def attach(self, guest: Guest) -> None:
        """Send ATTACH."""
        message = Attach(guest.secret, guest.generation, 0, 1 << 20, (1, 1), guest.name)
        self.send(guest, b"".join(encode_envelope(message)))

    def body(self, guest: Guest, packets: bytes, **changes: Any) -> bytes:
        """An EXCHANGE with the lane's next number."""
        lane = changes.get("lane", between(self.random, 0, 3))
        guest.numbers[lane] = guest.numbers.get(lane, 0) + 1
        fields: dict[str, Any] = {
            "attachment_id": guest.identity,
            "epoch": guest.epoch,
            "generation": guest.generation,
            "lane": lane,
            "number": guest.numbers[lane],
            "serial_received": guest.serials.get(lane, 0),
            "hold_ms": HOLD_MS,
            "answer_bytes_max": 1 << 20,
            "payload": packets,
        }
        return b"".join(encode_envelope(Exchange(**{**fields, **changes})))

    def push(self, guest: Guest, packets: list[Packet], **changes: Any) -> None:
        """Send packets over a lane or, if the guest has links, perhaps over one of these."""
        batch = b"".join(encode_packets(packets))
        links = [link for link in self.links if link.guest is guest]
        if links and not changes and chance(self.random, 0.5):
            pick(self.random, links).send(batch)
        else:
            self.send(guest, self.body(guest, batch, **changes))

    def send(self, guest: Guest, body: bytes, *, reads: bool = True) -> int:
        """Send a request, and return the id of its exchange. Without `reads`, the answer stays in the relay."""
        self._next_id += 1
        self._asking[self._next_id] = guest
        self.reads_answers = reads
        exchange_id = self._next_id
        if not self.relay.arrived(self, exchange_id, body, []):
            self.reset(exchange_id)
        return exchange_id

    def open_link(self, guest: Guest) -> HostileLink | None:
        """Open a link, if the relay allows it."""
        if len(self.links) >= LINKS_MAX:
            return None
        link = HostileLink(self, guest)
        if link.open():
            self.links.append(link)
            return link
        return None

    def leave_unfinished(self, size: int) -> None:
        """Send a part of a body of this size. The relay gives the body up after `body_us`."""
        front = self.relay.front
        counted = front.open(self.source, self.user, size) if self.bodies < BODIES_MAX else None
        if counted is not None:
            self.bodies += 1
            self.clock.after(self.relay.limits.body_us, lambda: self._given_up(front, counted))

    def _given_up(self, front: Any, counted: Any) -> None:
        self.bodies -= 1
        front.leave(counted)


def draw_hostiles(random: Random, phase_us: int, acts: tuple[str, ...]) -> tuple[HostileSpec, ...]:
    """One or two users with a few kinds of acts each, or with all of them."""
    found = []
    for number in range(between(random, 1, 2)):
        chosen = acts if chance(random, 0.5) else tuple(pick(random, acts) for _ in range(between(random, 1, 4)))
        count = log_between(random, 30, 200)
        pause_us = max(100, min(phase_us // count, log_between(random, MILLISECOND, SECOND)))
        found.append(HostileSpec(f"eve {number}", chosen, count, pause_us))
    return tuple(found)
