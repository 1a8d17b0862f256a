"""The target `served`: the relay's half of a lane, fed with exchanges of any number, serial, piece and limit.

Promises: it never raises; each HTTP exchange is answered at most once; packets taken from its outbox are confirmed,
kept or put back; the memory that it keeps is bounded; an answer is no larger than the request allows.
"""

import sys
from collections.abc import Callable, Iterator

from tests.exchange.loop import MemoryOutbox, data_frame, data_packet
from tests.fuzz.draw import SIZES, Draw
from tests.fuzz.target import Target
from tunnel.exchange import Reply, ServedLane, ServedLimits
from tunnel.wire import (
    ANSWER_BYTES,
    EVIDENCE_BYTES,
    HEADER_SIZE,
    Answer,
    Exchange,
    decode_envelope,
    encode_envelope,
    parse_frames,
    whole_packet,
)

__all__ = ["SERVED_TARGET"]

OPERATIONS_MAX = 200
_LIMITS = (
    ServedLimits(lanes=2),
    ServedLimits(lanes=8, packet_bytes_max=5000, answer_bytes_max=3000, hold_us_max=1_000_000),
    ServedLimits(lanes=1, packet_bytes_max=200_000, answer_bytes_max=100, hold_us_max=0),
)


class _World:
    """One lane and its state. `asked` is the limit of the answer to each open HTTP exchange, by handle."""

    def __init__(self, draw: Draw, limits: ServedLimits) -> None:
        self.draw = draw
        self.limits = limits
        self.now = 0
        self.outbox = MemoryOutbox()
        self.lane = ServedLane(3, self.outbox, self._evidence, limits)
        self.asked: dict[int, int] = {}
        self.handle = 0
        self.names = 0
        self.outgoing = b""  # a packet that arrives in pieces
        self.offset = 0

    def _evidence(self) -> list[tuple[int, int]]:
        return [(lane, self.lane.answered) for lane in range(self.limits.lanes)]

    def reply(self, reply: Reply | None) -> None:
        """Check an answer that the lane gives."""
        if reply is None:
            return
        asked = self.asked.pop(reply.handle)  # KeyError: answered twice, or after its connection was lost
        body = b"".join(encode_envelope(reply.answer))
        fixed = ANSWER_BYTES + EVIDENCE_BYTES * self.limits.lanes
        limit = max(fixed, min(asked, self.limits.answer_bytes_max))
        assert len(body) <= limit, f"an answer of {len(body)} bytes, at most {limit}"
        answer = decode_envelope(body)
        assert isinstance(answer, Answer)
        assert answer.lane == 3
        if not answer.piece:
            frames, discarded = parse_frames(answer.data)
            assert discarded is None
            assert len(frames) <= self.names

    def check(self) -> None:
        """Raise AssertionError for the first promise that does not hold."""
        lane, limits = self.lane, self.limits
        incoming = lane._incoming
        outgoing = lane._outgoing.size if lane._outgoing is not None else 0
        unconfirmed = lane._ledger.held_bytes
        assert lane.held_bytes == incoming.held_bytes + outgoing + unconfirmed
        assert unconfirmed <= limits.answer_bytes_max
        assert not (unconfirmed and outgoing)
        assert incoming.held_bytes <= limits.packet_bytes_max + (1 << 20), "a body more than a packet"
        memory = sys.getsizeof(incoming._held)
        assert memory <= 2 * incoming.held_bytes + 1024, f"{memory} bytes for {incoming.held_bytes}"
        names = [frame.sequence for frame in (*lane._ledger.frames, *self.outbox.frames)]
        names += [lane._outgoing.sequence] if lane._outgoing is not None else []
        assert len(names) == len(set(names)), "a packet is held twice"
        assert names[0:1] == [min(names)] if names and not outgoing else True, "a returned packet is not first"
        assert set(self.asked) == ({lane.parked_handle} if lane.parked_handle is not None else set())
        if lane.parked_handle is not None:
            assert not lane._has_more(), "the pull is parked although packets wait"


def _exchange(world: _World, *, number: int, serial: int, payload: bytes, offset: int, flags: int) -> None:
    draw = world.draw
    limit = draw.pick((100, 1 << 20, 0, 56, 60, 2000, 2**32 - 1))
    exchange = Exchange(
        attachment_id=bytes(16),
        epoch=0,
        generation=1,
        lane=3,
        number=number,
        serial_received=serial,
        hold_ms=draw.pick((0, 1, 1000, 2**32 - 1)),
        answer_bytes_max=limit,
        piece_offset=offset,
        pull=bool(flags & 1),
        piece=bool(flags & 2),
        payload=payload,
    )
    world.handle += 1
    world.asked[world.handle] = limit
    arrival = world.lane.receive(exchange, world.handle, world.now)
    for reply in arrival.replies:
        world.reply(reply)
    assert arrival.applies or world.handle not in world.asked
    if arrival.applies:
        world.reply(world.lane.answer(world.now))


def _next(world: _World) -> None:
    """Send the next number, with the newest serial or the one before."""
    lane, choice = world.lane, world.draw.byte()
    serial = max(0, lane.serial - (choice & 1))
    payload = whole_packet(data_packet(1, world.draw.below(100))) if choice & 2 else b""
    number = (lane.highest + 1) % 2**32
    _exchange(world, number=number, serial=serial, payload=payload, offset=0, flags=choice >> 2 & 1)


def _again(world: _World) -> None:
    """Send a number that was used before."""
    lane, choice = world.lane, world.draw.byte()
    number = max(0, lane.highest - (choice >> 1) % 3)
    _exchange(world, number=number, serial=max(0, lane.serial - 1), payload=b"", offset=0, flags=choice & 1)


def _piece(world: _World) -> None:
    """Send the next piece of a packet, or a piece that does not continue it."""
    draw, lane = world.draw, world.lane
    choice, size = draw.byte(), draw.pick((1, 2, 23, 24, 100, 1000, 50_000))
    if world.offset >= len(world.outgoing):
        world.outgoing, world.offset = whole_packet(data_packet(1, draw.pick(SIZES))), 0
    for _ in range(1 + (choice >> 2)):
        offset = world.offset if choice & 3 else draw.number()
        piece = world.outgoing[world.offset : world.offset + size]
        world.offset += len(piece)
        number = (lane.highest + 1) % 2**32
        _exchange(world, number=number, serial=lane.serial, payload=piece, offset=offset, flags=2)
        world.check()


def _wild(world: _World) -> None:
    """Send an exchange with arbitrary fields."""
    draw = world.draw
    flags, number, serial, offset = draw.byte(), draw.number(), draw.number(), draw.number()
    _exchange(world, number=number, serial=serial, payload=draw.raw(draw.below(64)), offset=offset, flags=flags)


def _give(world: _World) -> None:
    """Put packets into the outbox."""
    for _ in range(1 + world.draw.below(3)):
        world.names += 1
        size = min(world.draw.pick(SIZES), world.limits.packet_bytes_max - HEADER_SIZE)
        world.outbox.frames.append(data_frame(world.names, size))
    world.reply(world.lane.wake(world.now))


def _wait(world: _World) -> None:
    world.now += world.draw.pick((1, 1000, 1_000_000, 20_000_000))
    world.reply(world.lane.expire(world.now))


def _gone(world: _World) -> None:
    """End the HTTP connection of an exchange."""
    handle = world.lane.parked_handle if world.draw.flag() else world.handle
    if handle is not None:
        world.lane.on_gone(handle)
        if world.lane.parked_handle is None:
            world.asked.pop(handle, None)


def _close(world: _World) -> None:
    """End the generation; the next lane draws from the same outbox."""
    for reply in world.lane.close():
        world.reply(reply)
    assert not world.asked
    world.lane = ServedLane(3, world.outbox, world._evidence, world.limits)
    world.offset = len(world.outgoing)


Operation = Callable[[_World], None]
_WEIGHTED: tuple[tuple[Operation, int], ...] = (
    (_next, 8),
    (_give, 6),
    (_again, 5),
    (_piece, 5),
    (_wild, 3),
    (_wait, 2),
    (_gone, 2),
    (_close, 1),
)
# The lower five bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def run(data: bytes) -> None:
    """Run one life of a lane."""
    draw = Draw(data)
    world = _World(draw, draw.pick(_LIMITS))
    for _ in range(OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        world.check()
    for reply in world.lane.close():
        world.reply(reply)
    assert not world.asked, "a request was never answered"


def _script(*steps: int | Operation) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    everything = [step for operation, _ in _WEIGHTED for step in (operation, 2, 3, 4, 1, _next, 0, 1, 3)]
    for limits in range(len(_LIMITS)):
        yield (
            f"pulls_{limits}",
            _script(limits, _next, 4, 1, 3, _give, 1, 5, 6, _next, 4, 1, 3, _again, 0, 1, 3, _wait, 3),
        )
        yield f"every_operation_{limits}", _script(limits, *everything, *everything)


SERVED_TARGET = Target("served", run, _seeds, 1024)
