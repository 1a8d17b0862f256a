"""A connection on a road: HTTP up to the 101, then a link or a websocket, between the real carrier and the relay.

The endpoint's half of the link is the product's (`tunnel.carriers.links.dialed_link`), to which this module gives a
transport. The relay's half is `tests.sim.line`. On a websocket both halves read frames by the product's parsers.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Any, Protocol

from tests.sim.clock import MILLISECOND, SECOND, Alarm, Clock
from tests.sim.event_loop import VirtualLoop
from tests.sim.faults import FaultPlan
from tests.sim.line import NOTSENT_BYTES, Line, RelaySide
from tests.sim.path import PathShape, Strike
from tests.sim.pipe import Pipe
from tests.sim.randomness import between, chance, log_between
from tests.sim.roads import Mode, SimulatedRoad
from tests.sim.websocket_frames import FrameReader, GuardedFrameReader, framed
from tunnel.carriers.halves.link_protocol import LINK_LANE, SHARES, LinkProtocol
from tunnel.exchange import LinkInput
from tunnel.wire import (
    ENVELOPE_BYTES,
    Answer,
    Buffer,
    Exchange,
    Message,
    Status,
    StatusCode,
    decode_envelope,
    encode_envelope,
)

__all__ = ["ACCEPTED", "EndpointSide", "PathRoad", "RoadConnection"]

REQUEST = b"GET /link HTTP/1.1\r\nHost: relay\r\nConnection: Upgrade\r\n\r\n"
ACCEPTED = b"HTTP/1.1 101 Switching Protocols\r\n\r\n"
REFUSED = b"HTTP/1.1 404 Not Found\r\n\r\n"
KEEPALIVE_US = 60 * SECOND  # when the relay notices, at the latest, that a connection has ended
PORTION_SHARE = 0.15  # the share of arrivals of which a part comes later
PORTION_US_MAX = 3 * MILLISECOND


class PathRoad(SimulatedRoad):
    """A road of a node's path. `until_us`: when its behaviour may change next."""

    def __init__(self, name: str, random: Random) -> None:
        super().__init__(name, random)
        self.until_us = 0
        self.is_websocket = name == "websocket"


class EndpointSide(Protocol):
    """The endpoint, as its connections see it."""

    index: int

    @property
    def user(self) -> str: ...

    def later(self, delay_us: int, action: Callable[[], None]) -> object: ...


class Portions:
    """Passes bytes on, but sometimes keeps the last of them until more bytes come, or for a few milliseconds."""

    def __init__(self, clock: Clock, random: Random, deliver: Callable[[bytes], None]) -> None:
        self._clock, self._random, self._deliver = clock, random, deliver
        self._kept = b""
        self._alarm: Alarm | None = None

    def take(self, data: bytes) -> None:
        """Bytes arrive."""
        data, self._kept = self._kept + data, b""
        if self._alarm is not None:
            self._alarm.cancel()
            self._alarm = None
        if chance(self._random, PORTION_SHARE):
            size = between(self._random, 0, len(data) - 1)
            data, self._kept = data[:size], data[size:]
            self._alarm = self._clock.after(between(self._random, 1, PORTION_US_MAX), lambda: self.take(b""))
        if data:
            self._deliver(data)


class RoadConnection(Line):
    """A TCP connection that asks for the road. `answered` gets the head of the answer, or an error.

    The fate of the connection depends on how its road behaves when it opens, and at each change of this behaviour.
    """

    def __init__(
        self,
        clock: Clock,
        shape: PathShape,
        plan: FaultPlan,
        random: Random,
        strike: Strike,
        relay: RelaySide,
        node: EndpointSide,
        road: PathRoad,
        loops: tuple[VirtualLoop, VirtualLoop],
        ended: Callable[[RoadConnection], None],
    ) -> None:
        super().__init__(clock, shape, plan, random, strike, relay, node.index)
        self.road = road
        self.is_broken = False  # the path or the relay broke it, or an end has read bytes that the path had changed
        self._node = node
        self._ended = ended
        self._near_loop, far_loop = loops
        self.answered: asyncio.Future[bytes] = self._near_loop.create_future()
        self.transport = RoadTransport(self, self._near_loop, FrameReader() if road.is_websocket else None)
        self._far_frames = GuardedFrameReader(far_loop, self._die) if road.is_websocket else None
        self._near_portions = Portions(clock, random, self._arrive)
        self._far_portions = Portions(clock, random, self._read_up)
        self._early = b""  # bytes that the endpoint has read and no link has taken yet
        self._request = b""  # what the relay has read of the request
        self._first = b""
        self._is_upgraded = self._is_greeted = self._is_swallowed = False
        self._lies = False
        self._is_signalled = False
        self._is_forgotten = False  # the endpoint has died
        self._receipt_alarm: Alarm | None = None

    # opening

    def open(self) -> None:
        """Connect by TCP, then ask for the road."""
        round_trip_us = self._shape.up_us + self._shape.down_us
        if self.road.mode is Mode.CUTS and chance(self._random, 0.5):
            self._clock.after(round_trip_us, self._die)
        else:
            self._clock.after(round_trip_us, self._connected)

    def _connected(self) -> None:
        if self._over:
            return
        if self._clock.now_us < self._relay.down_until_us:
            self._die()
            return
        self.is_open = True
        self._plan_fault()
        if self.road.mode is Mode.DIES:
            self._clock.after(self.road.age_us + between(self._random, 0, SECOND), self._die)
        elif self.road.mode is Mode.CUTS:
            self._clock.after(log_between(self._random, MILLISECOND, SECOND), self._die)
        self.up.write(REQUEST)

    def _take_request(self, data: bytes) -> bytes:
        """The relay, or a proxy before it, reads the request. Return the bytes after the request."""
        self._request += data
        if len(self._request) < len(REQUEST):
            return b""
        request, rest = self._request[: len(REQUEST)], self._request[len(REQUEST) :]
        accepts = request == REQUEST and self.road.mode is not Mode.REFUSES
        self._is_upgraded = True
        self._is_swallowed = self.road.mode is Mode.SWALLOWS or not accepts
        self._lies = self.road.mode is Mode.LIES
        self.down.write(ACCEPTED if accepts else REFUSED)
        return rest

    def _take_first(self, data: bytes) -> bytes:
        """The relay reads the first message. Return what comes after it."""
        self._first += data
        size = ENVELOPE_BYTES + int.from_bytes(self._first[8:12], "big")
        if len(self._first) < ENVELOPE_BYTES or len(self._first) < size:
            if self._far_frames is not None or len(self._first) > 4096:
                self._die()
            return b""
        message, rest = decode_envelope(self._first[:size]), self._first[size:]
        if not isinstance(message, Exchange) or message.lane != LINK_LANE:
            self._refuse(StatusCode.MALFORMED)
            return b""
        names = message.attachment_id, message.epoch, message.generation
        self.shares = message.serial_received == SHARES
        number = self._relay.link_opened(self, self._node.user, *names, shares=self.shares)
        if not number:
            self._refuse(StatusCode.UNKNOWN)
            return b""
        self._number = number
        self._is_greeted = True
        self._far.on_opened(self._relay.now_us)
        self._say(Answer(LINK_LANE, 0, SHARES if self.shares else 0))
        self._is_swallowed = self._lies
        self._arm_receipt()
        self._relay.pump()
        return b"" if self._over else rest

    def _refuse(self, code: StatusCode) -> None:
        self._say(Status(code))
        self._clock.after(1, self._close_by_relay)

    def _close_by_relay(self) -> None:
        """Close after what was written has arrived."""
        self._clock.after(max(self._shape.down_us, self._down_stalled_until() - self._clock.now_us), self._die)

    def _say(self, message: Message) -> None:
        self._write(self.down, encode_envelope(message))

    # the relay's half

    def _arrived_up(self, data: bytes) -> None:
        if not self._over:
            self._far_portions.take(data)

    def _read_up(self, data: bytes) -> None:
        if not self._over and not self._is_upgraded:
            data = self._take_request(data)
        if self._over or self._is_swallowed or not data:
            return
        if self._far_frames is None:
            self._take_message(data)
            return
        for message in self._far_frames.feed(data):
            self._take_message(message)
        if self._far_frames.wrong:
            self._die()

    def _take_message(self, data: bytes) -> None:
        """The relay reads a message of a websocket, or any bytes of a link."""
        if not self._over and not self._is_greeted:
            data = self._take_first(data)
            if not data:
                return
        if self._is_swallowed or not self._number:
            return
        far, now_us = self._far, self._relay.now_us
        self._handle_up(far.receive(data, now_us) if self._far_frames is None else far.message(data, now_us))
        self._arm_receipt()

    def _handle_up(self, found: LinkInput) -> None:
        if all(len(batch) for batch in found.batches):
            super()._handle_up(found)
        else:
            self._die()  # an empty batch ends the link

    def signalled(self) -> None:
        self._is_signalled = True

    def fill_down(self) -> None:
        """Fetch packets only when the switch says so: it chooses among the links of an attachment."""
        if not self._is_signalled or not self._number:
            return
        self._is_signalled = False
        if self.shares and self.down.backlog_bytes() >= NOTSENT_BYTES:
            self._relay.switch.link_is_full(self._number, self._relay.now_us)
        super().fill_down()
        self._is_signalled = not self._over and self.down.backlog_bytes() >= NOTSENT_BYTES

    def _arm_receipt(self) -> None:
        due_us = self._far.next_timeout()
        if due_us is not None and not self._over:
            if self._receipt_alarm is not None:
                self._receipt_alarm.cancel()
            self._receipt_alarm = self._clock.after(max(0, due_us - self._relay.now_us), self._receipt_down)

    def _receipt_down(self) -> None:
        super()._receipt_down()
        self._arm_receipt()

    def _write(self, pipe: Pipe, buffers: list[Buffer]) -> None:
        """Write as the relay does: on a websocket, each write is one message."""
        if not buffers or self._over or self._is_swallowed:
            return
        data = b"".join(buffers)
        pipe.write(data if self._far_frames is None else framed(data, masked=False))

    # the endpoint's half

    def send(self, data: bytes) -> None:
        """The transport writes."""
        if not self._over:
            self.up.write(data)

    def _arrived_down(self, data: bytes) -> None:
        if not self._over:
            self._near_portions.take(data)

    def _arrive(self, data: bytes) -> None:
        """A paused endpoint reads later."""
        self._node.later(0, lambda: self._take_down(data))

    def _take_down(self, data: bytes) -> None:
        """The endpoint reads."""
        if self._over:
            return
        if self.answered.done() and self.transport.is_taken_over:
            self.transport.take(data)
            return
        self._early += data
        if not self.answered.done() and b"\r\n\r\n" in self._early:
            head, _, self._early = self._early.partition(b"\r\n\r\n")
            self.answered.set_result(head + b"\r\n\r\n")

    def take_early(self) -> bytes:
        """Bytes that were read after the head of the answer, before the link took the connection over."""
        early, self._early = self._early, b""
        return early

    def wake_later(self, action: Callable[[], None]) -> bool:
        """If TCP takes no more now, run the action when it takes bytes again. Return whether the action will run."""
        backlog_bytes = self.up.backlog_bytes()
        if backlog_bytes < NOTSENT_BYTES:
            return False
        rest_us = (backlog_bytes - NOTSENT_BYTES) * SECOND // self._shape.bytes_per_second
        self._node.later(rest_us + 1, action)
        return True

    # the end

    def abort(self) -> None:
        """The endpoint closes the connection. The relay learns of it, at the latest after KEEPALIVE_US."""
        self._end(is_broken=False)
        self._ended(self)

    def _die(self) -> None:
        if not self._over:
            self._end(is_broken=True)
            self._clock.after(self._shape.down_us, self._tell_node)

    def _end(self, *, is_broken: bool) -> None:
        if self._over:
            return
        silent_us = KEEPALIVE_US if self._is_swallowed else max(0, self._up_stalled_until() - self._clock.now_us)
        self._over, self.is_broken = True, is_broken
        self.up.cut()
        self.down.cut()
        if self._far_frames is not None:
            self._far_frames.close()
        if self._receipt_alarm is not None:
            self._receipt_alarm.cancel()
        self._clock.after(self._shape.up_us + min(silent_us, KEEPALIVE_US), self._tell_relay)

    def cut_by_endpoint(self) -> None:
        self._is_forgotten = True
        self._end(is_broken=False)

    def _tell_node(self) -> None:
        if not self._is_forgotten:
            self._node.later(0, self._lose)

    def _lose(self) -> None:
        self._ended(self)
        error = ConnectionResetError("the path cut the connection")
        if not self.answered.done():
            self.answered.set_exception(error)
        self.transport.lose(error)

    def behaviour_changed(self) -> None:
        """Follow a change of the road's behaviour: a road that now refuses or cuts ends an open connection, too."""
        if self.road.mode in (Mode.REFUSES, Mode.CUTS):
            self._clock.after(0, self._die)

    def _up_stalled_until(self) -> int:
        return max(super()._up_stalled_until(), self._road_stalled_until())

    def _down_stalled_until(self) -> int:
        return max(super()._down_stalled_until(), self._road_stalled_until())

    def _road_stalled_until(self) -> int:
        """An open connection stalls while its road stalls or lets no data pass."""
        stalls = (Mode.STALLS, Mode.SWALLOWS, Mode.LIES) if self._is_greeted else (Mode.STALLS,)
        if self.road.mode in stalls and not self._is_swallowed and not self._lies:
            return self.road.until_us
        return 0


class RoadTransport(asyncio.Transport):
    """The transport of the product's half of a link. With `frames` it is a websocket: each write is one message."""

    def __init__(self, connection: RoadConnection, loop: VirtualLoop, frames: FrameReader | None) -> None:
        super().__init__()
        self._connection = connection
        self._loop = loop
        self._frames = frames
        self._protocol: LinkProtocol | None = None
        self._is_paused = self._is_closing = False

    @property
    def is_taken_over(self) -> bool:
        """Whether a link uses the connection."""
        return self._protocol is not None or self._is_closing

    def take(self, data: bytes) -> None:
        """Pass bytes to the link, in the way that its kind of connection does."""
        if self._frames is not None:
            for message in self._frames.feed(data):
                if self._protocol is not None:
                    self._protocol.message_received(message)
            if self._frames.wrong and self._protocol is not None:
                self._connection.abort()
                self._connection.is_broken = True
                self.lose(ConnectionResetError(self._frames.wrong))
            return
        view = memoryview(data)
        while len(view) and self._protocol is not None:
            space = self._protocol.get_buffer(-1)
            count = min(len(space), len(view))
            space[:count] = view[:count]
            view = view[count:]
            self._protocol.buffer_updated(count)

    def lose(self, error: Exception | None) -> None:
        """Tell the link, once, that the connection has ended."""
        protocol, self._protocol = self._protocol, None
        self._is_closing = True
        if protocol is not None:
            protocol.connection_lost(error)

    # asyncio.Transport

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._connection.is_broken if name == "is_broken" else default

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing: the pipe has its own limit."""

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        assert isinstance(protocol, LinkProtocol)
        self._protocol = protocol
        if self._frames is not None:
            self._loop.call_soon(lambda: self.take(self._connection.take_early()))

    def is_closing(self) -> bool:
        return self._is_closing

    def write(self, data: Any) -> None:
        if self._is_closing:
            return
        data = bytes(data)
        self._connection.send(data if self._frames is None else framed(data, masked=True))
        if not self._is_paused and self._connection.wake_later(self._resume) and self._protocol is not None:
            self._is_paused = True
            self._protocol.pause_writing()

    def writelines(self, list_of_data: Iterable[Any]) -> None:
        self.write(b"".join(list_of_data))

    def _resume(self) -> None:
        self._is_paused = False
        if self._protocol is not None:
            self._protocol.resume_writing()

    def close(self) -> None:
        self.abort()

    def abort(self) -> None:
        if not self._is_closing:
            self._is_closing = True
            self._connection.abort()
            self._loop.call_soon(self.lose, None)
