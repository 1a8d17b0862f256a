"""The target `lanes`: the endpoint's half of the lanes against the relay's half; the input plays the network."""

from collections.abc import Callable, Iterator
from random import Random

from tests.exchange.loop import SECRET
from tests.fuzz.checksums import repair_envelope
from tests.fuzz.draw import SIZES, Draw
from tests.fuzz.lanes_world import LanesWorld
from tests.fuzz.target import Target
from tunnel.exchange import LaneConfig
from tunnel.wire import (
    Answer,
    Attached,
    Status,
    attachment_id,
    encode_envelope,
)

__all__ = ["LANES_TARGET"]

OPERATIONS_MAX = 200
IDLE_ROUNDS_MAX = 80
_TIMES_US = (0, 1, 50_000, 250_000, 500_000, 1_000_000, 5_000_000, 15_000_000, 31_000_000, 61_000_000)
_STATUSES = (200, 200, 200, 204, 301, 400, 401, 404, 408, 409, 413, 425, 429, 500, 502, 503, 599, 0)
_CONFIGS = (
    LaneConfig(),
    LaneConfig(one_connection=True, body_bytes_start=16384, answer_bytes_max=20_000),
    LaneConfig(lanes_max=3, body_bytes_min=200, body_bytes_start=300, body_bytes_max=5000, answer_bytes_max=2000),
    LaneConfig(pull_interval_us=200_000, lanes_max=2, packet_bytes_max=100_000, adapt_lanes=False),
)

Operation = Callable[[LanesWorld], None]


def _push(world: LanesWorld) -> None:
    world.push([world.draw.pick(SIZES) for _ in range(1 + world.draw.below(4))])


def _give(world: LanesWorld) -> None:
    world.give(world.draw.pick(SIZES))


def _arrive(world: LanesWorld) -> None:
    """A request arrives; in one case of four a copy of it may arrive later."""
    choice = world.draw.byte()
    if world.posted:
        index = (choice >> 2) % len(world.posted)
        world.arrive(index)
        if choice & 3:
            del world.posted[index]


def _answer(world: LanesWorld) -> None:
    """An answer arrives; in one case of four a copy of it may arrive later."""
    choice = world.draw.byte()
    if world.answers:
        index = (choice >> 2) % len(world.answers)
        request_id, status, body = world.answers[index]
        world.lanes.on_answered(request_id, status, body, 0, world.now)
        if choice & 3:
            del world.answers[index]


def _lose(world: LanesWorld) -> None:
    """A request or an answer is lost; the endpoint may or may not be notified."""
    choice = world.draw.byte()
    if choice & 1 and world.posted:
        request_id = world.posted.pop((choice >> 2) % len(world.posted))[0]
    elif not choice & 1 and world.answers:
        request_id = world.answers.pop((choice >> 2) % len(world.answers))[0]
    else:
        return
    if choice & 2:
        world.lanes.on_failed(request_id, world.now)


def _damage(world: LanesWorld) -> None:
    """Change one byte of a request or an answer."""
    draw = world.draw
    if draw.flag() and world.posted:
        index = draw.below(len(world.posted))
        request_id, body = world.posted[index]
        world.posted[index] = request_id, _changed(body, draw)
    elif world.answers:
        index = draw.below(len(world.answers))
        request_id, status, reply = world.answers[index]
        world.answers[index] = request_id, status, _changed(bytes(reply), draw)


def _changed(body: bytes, draw: Draw) -> bytes:
    at = draw.below(min(len(body), 65536))
    return body[:at] + bytes([body[at] ^ (1 + draw.below(255))]) + body[at + 1 :] if body else body


def _foreign(world: LanesWorld) -> None:
    """A proxy, a login page or another relay answers. Without the protocol's magic only the status may be believed."""
    draw = world.draw
    status, retry_after_us = draw.pick(_STATUSES), draw.number()
    if world.posted:
        request_id = draw.pick(world.posted)[0]
        world.lanes.on_answered(request_id, status, b"<html>" + draw.raw(draw.below(40)), retry_after_us, world.now)


def _lie(world: LanesWorld) -> None:
    """A lying relay, or an intermediary that knows the protocol, gives any answer."""
    draw = world.draw
    choice = draw.byte()
    opened = list(world.lanes._attempts)
    if not opened:
        return
    world.lied = True
    request_id = opened[choice % len(opened)]
    flight = world.lanes._attempts[request_id]
    kind = choice >> 5
    if kind < 4:
        body = b"".join(encode_envelope(_invented_answer(draw, flight.lane, flight.number)))
    elif kind == 4:
        body = b"".join(encode_envelope(_invented_attached(world)))
    elif kind == 5:
        body = b"".join(encode_envelope(Status(draw.below(12), draw.number(), draw.text(20))))
    else:
        body = repair_envelope(draw.raw(draw.byte()))
    world.lanes.on_answered(request_id, draw.pick(_STATUSES), body, 0, world.now)


def _invented_answer(draw: Draw, lane: int, number: int) -> Answer:
    flags = draw.byte()
    payload = bytes(draw.pick(SIZES)) if flags & 8 else draw.raw(draw.byte())
    if flags & 16:
        payload = b"\0\1\0\4" + draw.number().to_bytes(4, "big") + payload  # the start of a packet of some size
    return Answer(
        lane=max(0, lane) if flags & 3 else draw.number() & 0xFFFF,
        number=number if flags & 3 else draw.number(),
        serial=draw.number(),
        piece_offset=draw.number() if flags & 4 else 0,
        piece=bool(flags & 32),
        more=bool(flags & 64),
        evidence=[(draw.byte(), draw.number()) for _ in range(draw.below(4))],
        payload=payload,
    )


def _invented_attached(world: LanesWorld) -> Attached:
    draw = world.draw
    generation = world.lanes.registration.generation if draw.below(4) else draw.number()
    identity = attachment_id(SECRET) if draw.below(4) else bytes(16)
    lanes, version = draw.number() & 0xFFFF, 1 if draw.below(8) else 2
    return Attached(
        identity,
        draw.number(),
        generation,
        fresh=draw.flag(),
        body_bytes_max=draw.number(),
        packet_bytes_max=draw.number(),
        hold_ms_max=draw.number(),
        pull_interval_ms=draw.number(),
        initial_edge_bytes=draw.number(),
        lanes=lanes,
        version=version,
        packets_max=draw.below(3) * 1000,
    )


def _time(world: LanesWorld) -> None:
    choice = world.draw.byte()
    if choice & 1:
        deadline = world.lanes.next_timeout()
        world.now = max(world.now, deadline or 0)
    else:
        world.now += _TIMES_US[(choice >> 2) % len(_TIMES_US)]
    world.relay.handle_timeout(world.now)
    world.collect()
    if choice & 2:
        return  # the caller is late
    world.lanes.handle_timeout(world.now)
    world.drain()
    deadline = world.lanes.next_timeout()
    assert deadline is None or deadline > world.now, "the next timeout is still due after all timeouts were handled"


def _settings(world: LanesWorld) -> None:
    """Change a setting of the driver, or the state of the relay."""
    draw = world.draw
    kind = draw.below(5)
    if kind == 0:
        world.lanes.set_pulling(draw.flag(), world.now)
    elif kind == 1:
        interval_us = draw.pick(_TIMES_US)
        world.lanes.set_pull_interval(interval_us, wanted_us=interval_us)
    elif kind == 2:
        if not world.refused:
            world.lanes._exchanges.attach_again(outbid=draw.flag())
    elif kind == 3:
        world.relay.restart()
        world.resets += 1
        world.collect()
    else:
        for lane in world.relay.lanes.values():
            if lane.parked_handle is not None and draw.flag():
                lane.on_gone(lane.parked_handle)


_WEIGHTED: tuple[tuple[Operation, int], ...] = (
    (_push, 10),
    (_give, 10),
    (_arrive, 14),
    (_answer, 14),
    (_time, 7),
    (_lose, 3),
    (_damage, 2),
    (_foreign, 1),
    (_lie, 2),
    (_settings, 1),
)
# The lower six bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def run(data: bytes) -> None:
    """Run one life of an attachment."""
    draw = Draw(data)
    config, seed, lanes, flags = _CONFIGS[draw.byte() % len(_CONFIGS)], draw.byte(), draw.byte(), draw.byte()
    world = LanesWorld(draw, config, Random(seed), 1 + lanes % 8)
    world.drain()
    if flags & 1:
        world.arrive(0)
        world.posted.clear()
        _answer(world)
    for _ in range(OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        world.drain()
        world.check()
    if not world.lied and not world.refused:
        settle(world)


def settle(world: LanesWorld) -> None:
    """All parties behave from now on: everything must get through, with progress every IDLE_ROUNDS_MAX rounds."""
    world.lanes.set_pulling(True, world.now)
    world.lanes.set_pull_interval(0, wanted_us=0)
    world.posted.clear()
    world.answers.clear()
    idle, before = 0, world.progress()
    while idle < IDLE_ROUNDS_MAX:
        world.drain()
        while world.posted:
            world.arrive(0)
            del world.posted[0]
        while world.answers:
            request_id, status, body = world.answers.pop(0)
            world.lanes.on_answered(request_id, status, body, 0, world.now)
        world.drain()
        world.check()
        if world.refused or (not world.pushed and all(name in world.delivered for name in world.given)):
            return
        deadline = world.lanes.next_timeout()
        assert deadline is not None
        world.now = max(world.now + 1000, min(deadline, world.now + 1_000_000))
        world.relay.handle_timeout(world.now)
        world.collect()
        world.lanes.handle_timeout(world.now)
        idle = idle + 1 if world.progress() == before else 0
        before = world.progress()
    missing = [name for name in world.given if name not in world.delivered]
    raise AssertionError(f"no progress: batches {list(world.pushed)}, packets {missing}")


def _script(*steps: int | Operation) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    turn = (_arrive, 1, _answer, 1, _arrive, 1, _answer, 1)
    everything = [step for operation, _ in _WEIGHTED for step in (operation, 1, 5, 1, 1, _arrive, 1, _answer, 1)]
    lies = [step for kind in range(0, 256, 32) for step in (_lie, kind, 41, 1, 2, 0, 1, 0, _push, 0, 4)]
    yield "attached", _script(0, 1, 7, 1, 1)
    for config in range(len(_CONFIGS)):
        traffic = (_push, 0, 4, *turn, _give, 5, *turn, _push, 2, 5, 6, 7, _give, 13, *turn, *turn)
        yield f"traffic_{config}", _script(config, 1, 7, 1, 1, *traffic, _time, 1, *traffic, _time, 8, *traffic)
        yield f"every_operation_{config}", _script(config, 1, 7, 1, 1, *everything)
    yield (
        "lost",
        _script(0, 1, 7, 1, 1, _push, 0, 4, _lose, 1, _time, 1, *turn, _push, 0, 4, _lose, 3, _time, 16, *turn),
    )
    yield "lies", _script(0, 1, 7, 1, 1, *lies)


LANES_TARGET = Target("lanes", run, _seeds, 1024)
