"""The carrier for an endpoint in the process and event loop of its relay.

It attaches like any other endpoint, with real lanes and envelopes, but without HTTP. Then it has a link to the relay:
packets go from one to the other as they are.

A packet from the relay was checked when it came into this process, so it is not checked again. One to the relay gets
its checksum here, for the endpoint at the other end.
"""

from collections import deque
from collections.abc import Callable
from random import Random
from typing import Protocol, TypeAlias

from tunnel.carriers.exchanging import ExchangingCarrier, Outcomes
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneConfig,
    LaneEvent,
    Lanes,
    LanesChanged,
    PacketsReceived,
    Request,
)
from tunnel.wire import Frame, Packet, frame_of

__all__ = ["Answered", "LinkEnd", "MemoryCarrier", "Relay"]

Answered: TypeAlias = Callable[[int, bytes], None]  # HTTP status, body

_BATCH_BYTES = 1 << 20  # of a batch, as on a fast link; the relay has at most two that it has not handled


class LinkEnd(Protocol):
    """The endpoint's end of a link in this process, as the relay sees it."""

    def fill(self) -> None:
        """Take the packets that wait for the endpoint, until none is left."""

    def end(self, text: str) -> None:
        """Give the link up, because the relay has forgotten it."""


class Relay(Protocol):
    """A relay in this process, which answers exchanges and carries links."""

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool, identity: bytes | None = None) -> int:
        """Send a request and return a number that names it. `answered` is called once, after this method has
        returned. `identity` is the id that an ATTACH gives the endpoint, instead of the one that its secret gives."""

    def on_gone(self, number: int) -> None:
        """Drop the request with this number: `answered` is not called."""

    def join_link(self, link: LinkEnd, user: str, identity: bytes, epoch: int, generation: int) -> int:
        """Open a link of this attachment and return its number, or 0 if there can be none."""

    def take_packets(self, link: int, limit_bytes: int) -> list[Frame]:
        """Return the packets for the endpoint that leave next, which thereby have arrived."""

    def post_packets(self, link: int, frames: list[Frame], handled: Callable[[], None]) -> None:
        """Send a batch. `handled` is called once, after this method has returned, when the relay has the batch; not at
        all if the link ends before."""

    def link_closed(self, link: int) -> None:
        """Close the link. It has no effect if the relay has ended it."""


class MemoryCarrier(ExchangingCarrier):
    """Exchanges with a relay in this process, and a link to it, on behalf of `user`.

    `identity` is the attachment id; without it the id follows from the secret, as over HTTP (6.1).
    """

    def __init__(
        self,
        relay: Relay,
        secret: bytes,
        random: Random,
        *,
        user: str,
        name: str = "",
        is_exit: bool = False,
        identity: bytes | None = None,
        config: LaneConfig | None = None,
    ) -> None:
        lanes = Lanes(config or LaneConfig(), secret, random, endpoint_name=name, identity=identity)
        super().__init__(lanes, _Exchanger(relay, user, is_exit=is_exit, identity=identity))
        self._relay = relay
        self._user = user
        self._link = 0  # its number; 0: there is none, so exchanges carry
        self._sent: deque[tuple[int, int]] = deque()  # token and size of each batch that the relay has not handled
        self._sent_bytes = 0
        self._events: deque[LaneEvent] = deque()

    # Carrier

    @property
    def has_events(self) -> bool:
        return bool(self._events or self._lane_events)

    def room(self, now: int) -> int:
        if not self._link:
            return super().room(now)
        return _BATCH_BYTES if self._sent_bytes < _BATCH_BYTES else 0

    def push(self, packets: list[Packet], token: int, now: int) -> bool:
        if not self._link:
            return super().push(packets, token, now)
        frames = [frame_of(packet) for packet in packets]
        size = sum([frame.size for frame in frames])
        self._sent.append((token, size))
        self._sent_bytes += size
        self._relay.post_packets(self._link, frames, self._handled)
        self._host.wrote(size)
        return False

    def poll_event(self) -> LaneEvent | None:
        if self._events:
            return self._events.popleft()
        event = super().poll_event()
        match event:
            case AttachedEvent():
                self._join()
            case Detached() | AttachRefused():
                self._leave()
            case LanesChanged() if self._link:
                return LanesChanged(1, 0)
        return event

    async def close(self) -> None:
        self._closed = True
        self._leave()
        await super().close()

    # the link

    def _join(self) -> None:
        """Open a link of the generation that has just been attached. An earlier one has ended with its generation."""
        self._leave()
        registration = self._lanes.registration
        link = self._relay.join_link(self, self._user, registration.id, registration.epoch, registration.generation)
        if link:
            self._link = link
            self._use_lanes(False)
            self.fill()

    def fill(self) -> None:
        if not self._link:
            return
        while frames := self._relay.take_packets(self._link, _BATCH_BYTES):
            packets = [
                Packet(
                    each.type, each.source, each.destination, each.sequence, each.payload, each.attempt, each.version
                )
                for each in frames
            ]
            self._events.append(PacketsReceived(packets, None))
        self._host.deliver()

    def end(self, text: str) -> None:
        if self._link and not self._closed:
            self._leave()
            self._host.pump()

    def _handled(self) -> None:
        """Note that the relay has the oldest batch."""
        token, size = self._sent.popleft()
        self._sent_bytes -= size
        self._events.append(BatchDone(token, ok=True))
        self._host.deliver()

    def _leave(self) -> None:
        """Give up the link, and the batches on it that the relay has not handled; exchanges carry from now on."""
        link, self._link = self._link, 0
        if not link:
            return
        self._events += [BatchDone(token, ok=False) for token, _ in self._sent]
        self._sent.clear()
        self._sent_bytes = 0
        self._relay.link_closed(link)
        if not self._closed:
            self._use_lanes(True)

    def _use_lanes(self, used: bool) -> None:
        self._lanes.set_pulling(used, self._host.now())
        self._events.append(LanesChanged(*((self._lanes.lane_count, self._lanes.pull_interval_us) if used else (1, 0))))


class _Exchanger:
    description = "memory"
    is_ready = True
    waits_for = ""

    def __init__(self, relay: Relay, user: str, *, is_exit: bool, identity: bytes | None) -> None:
        self._identity = identity
        self._relay = relay
        self._user = user
        self._is_exit = is_exit
        self._open: dict[int, int] = {}  # request id -> the relay's number
        self._outcomes: Outcomes

    def start(self, outcomes: Outcomes) -> None:
        self._outcomes = outcomes

    def send(self, request: Request) -> None:
        body = b"".join(request.body)

        def answered(status: int, answer: bytes) -> None:
            del self._open[request.id]
            self._outcomes.on_answered(request.id, status, answer, 0)

        self._open[request.id] = self._relay.post(
            self._user, body, answered, is_exit=self._is_exit, identity=self._identity
        )
        self._outcomes.on_sent(len(body))

    def abandon(self, request_id: int) -> None:
        number = self._open.pop(request_id, None)
        if number is not None:
            self._relay.on_gone(number)

    async def close(self) -> None:
        for request_id in list(self._open):
            self.abandon(request_id)
