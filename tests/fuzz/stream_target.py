"""The target `streams`: streamed answers between a relay that keeps its promises and an endpoint, over paths that hold,
cut, stall, repeat and falsify them (7.20).

Promises: the endpoint never raises, whatever comes in whatever pieces; it keeps no more than an envelope and a piece.
Unless something false has come, every packet that arrives was sent, unchanged, and once the path is whole, every
packet has arrived.
"""

from collections.abc import Callable, Iterator
from random import Random

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tests.fuzz.draw import Draw
from tests.fuzz.target import Target
from tunnel.exchange import LaneConfig, Lanes, PacketsReceived, Request
from tunnel.exchange.lanes.incoming_stream import IncomingStream
from tunnel.wire import Answer, Status, encode_envelope, encode_packets

__all__ = ["STREAM_TARGET"]

_OPERATIONS_MAX = 60
_SECOND_US = 1_000_000
_SIZES = (8, 100, 3000, 40_000)
_HEALING_US = 60 * _SECOND_US


class _World:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.is_whole = False
        self.lied = False
        self.sizes: list[int] = []  # of the packets that the relay was given, by name
        config = LaneConfig(stream_after_us=0, stream_us=draw.pick((2, 5, 55)) * _SECOND_US)
        relay = Relay(Random(2), streams=True, hold_ms_max=60_000)
        self.loop = Loop(config, self._fate, relay=relay, streams=True)

    @property
    def lanes(self) -> Lanes:
        return self.loop.lanes

    @property
    def streams(self) -> dict[int, IncomingStream]:
        """The open streams, by request id."""
        return self.lanes._exchanges.streams.open

    def _fate(self, request: Request, now: int) -> Fate:
        draw = self.draw
        if self.is_whole or not draw.more:
            return Fate()
        kind = draw.below(12)
        reported = draw.flag()
        if kind == 1:
            return Fate(response_lost=True, reported=reported)
        if kind == 2:
            return Fate(request_lost=True, reported=reported)
        if kind == 3:
            return Fate(copies=(draw.pick((1000, 100_000, 3_000_000)),))
        if request.stream and kind == 4:
            return Fate(buffered=True)
        if request.stream and kind in (5, 6, 7):
            return Fate(stream_bytes=draw.pick((0, 1, 20, 50, 100, 5000, 70_000)), reported=reported)
        return Fate()

    def check(self) -> None:
        """Raise AssertionError for the first promise that does not hold."""
        assert self.lanes.streams is not None
        for stream in self.streams.values():
            assert stream._body.held_bytes <= self.lanes.streams.envelope_bytes_max + (1 << 17)
        attempts = [attempt for flight in self.lanes._exchanges.flights() for attempt in flight.attempts]
        assert sum(attempt.body is not None for attempt in attempts) <= 8 * 3
        if self.lied:
            return
        for _, event in self.loop.events:
            if isinstance(event, PacketsReceived):
                for packet in event.packets:
                    assert bytes(packet.payload) == bytes([packet.sequence % 251]) * self.sizes[packet.sequence]
        self.loop.events.clear()


def _give(world: _World) -> None:
    loop, frames = world.loop, []
    for _ in range(1 + world.draw.below(20)):
        size = world.draw.pick(_SIZES)
        frames.append(data_frame(len(world.sizes), size))
        world.sizes.append(size)
    loop.relay.give(frames, loop.now)


def _push(world: _World) -> None:
    world.loop.queue.append(data_packet(1))


def _wait(world: _World) -> None:
    world.loop.run(world.loop.now + world.draw.pick((1000, 21_000, 100_000, 400_000, 1_500_000, 20_000_000)))


def _lie(world: _World) -> None:
    """Let a piece come that the relay did not send: any bytes, or a whole envelope with any fields."""
    draw, lanes = world.draw, world.lanes
    ids = [*world.streams, *lanes._attempts]
    if not ids:
        return
    request_id = draw.pick(ids)
    piece = draw.raw(draw.below(64))
    stream = world.streams.get(request_id)
    if draw.flag():
        near = stream.serial + draw.below(3) if stream is not None else 1
        lane = stream.lane.index if stream is not None else draw.below(4)
        number = stream.number if stream is not None else draw.below(4)
        payload = b"".join(encode_packets([data_packet(draw.below(9))])) if draw.flag() else b""
        message = Answer(lane, number, near, piece=draw.byte() < 32, payload=payload, goes_on=draw.flag())
        piece = b"".join(encode_envelope(message if draw.byte() < 200 else Status(draw.below(12))))
    world.lied = True
    if draw.byte() < 20:
        lanes.on_ended(request_id, world.loop.now)
    else:
        lanes.on_received(request_id, piece, world.loop.now)


Operation = Callable[[_World], None]
_WEIGHTED: tuple[tuple[Operation, int], ...] = ((_give, 10), (_wait, 14), (_push, 4), (_lie, 4))
# The lower five bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def run(data: bytes) -> None:
    """Run one life of an endpoint and its streams."""
    draw = Draw(data)
    world = _World(draw)
    world.loop.run(100_000)
    for _ in range(_OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        world.check()
    world.is_whole = True
    world.loop.run(world.loop.now + _HEALING_US)
    world.check()
    if not world.lied:
        lost = set(range(len(world.sizes))) - set(world.loop.delivered)
        assert not lost, f"packets that never arrived: {sorted(lost)}"


def _script(*steps: int | Operation) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    yield "a_stream", _script(0, _wait, 3, _give, 5, 1, 1, 1, 1, 1, 1, _wait, 2, _push, _wait, 1)
    yield "cut", bytes([1, 5, 4, 1]) + _script(_wait, 3, _give, 9, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, _wait, 4)


STREAM_TARGET = Target("streams", run, _seeds, 512)
