"""The use that applications make of streams, as data: opener, bytes and pace in each direction, and the end."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from random import Random

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.randomness import between, chance, log_between, pick, stream

__all__ = ["Ending", "Flow", "StreamSpec", "content", "draw_busy_exit", "draw_extras", "draw_streams"]


class Ending(enum.Enum):
    """How a stream is meant to end."""

    FINISH = "finish"
    """Both half-close after their last byte, read to the end, and close."""
    CLOSE = "close"
    """The initiator only writes and closes; the acceptor reads to the end, and closes."""
    SIMULTANEOUS = "simultaneous close"
    """Both read exactly the bytes that they expect and close at once, without waiting for the end of stream."""
    MIDWAY = "close midway"
    """Both close at the same moment, whatever is in flight."""
    EARLY = "early close"
    """The initiator writes a little and closes before it is answered."""
    ABORT = "abort"
    """One side aborts midway; the other learns of it."""
    REFUSED = "refused"
    """A rule denies the target, or the exit refuses it."""


@dataclass(frozen=True, slots=True)
class Flow:
    """One direction: the behaviour of its writer and of its reader."""

    size: int = 0
    write_bytes: int = 1 << 16
    write_pause_us: int = 0
    start_after: int = 0
    """The writer starts after it has itself read this many bytes."""
    read_bytes: int = 1 << 20
    read_pause_us: int = 0
    stop_at: int = -1
    """The reader stops after this many bytes ..."""
    stop_us: int = 0
    """... for this time."""


@dataclass(frozen=True, slots=True)
class StreamSpec:
    """One stream, from its opening to its end. Its bytes depend on the seed and `number` alone."""

    number: int
    initiator: int
    acceptor: int
    up: Flow
    down: Flow
    ending: Ending = Ending.FINISH
    start_us: int = 0
    echo: bool = False
    """The acceptor writes what it reads."""
    moment_us: int = 0
    """For endings in the middle: the time after the opening."""
    dial_us: int = 0
    """How long the exit takes before it accepts or refuses."""
    label: str = ""
    encrypted: bool = False
    """From end to end."""


def content(seed: int, number: int, way: str, size: int) -> bytes:
    """The bytes of one direction; no other stream has the same."""
    return stream(seed, "content", number, way).randbytes(size)


def draw_streams(random: Random, pairs: list[tuple[int, int]], phase_us: int) -> list[StreamSpec]:
    """The streams of one seed between these (initiator, acceptor) pairs, active during `phase_us`."""
    style = random.random()
    if style < 0.08:
        return [_small(random, number, pick(random, pairs), phase_us) for number in range(between(random, 60, 250))]
    count = 1 if style < 0.3 else log_between(random, 2, 12)
    budget = log_between(random, 20_000, 400_000)
    return [_ordinary(random, number, pick(random, pairs), phase_us, budget // count) for number in range(count)]


def draw_extras(
    random: Random, pairs: list[tuple[int, int]], dialled: list[tuple[int, int]], first: int, phase_us: int
) -> list[StreamSpec]:
    """Streams that stay long where others pass quickly: unread after the peer's CLOSE, and undecided at an exit."""
    extras = []
    if chance(random, 0.3):
        size = log_between(random, 1000, 30_000)
        stop_us = log_between(random, SECOND, max(2 * SECOND, phase_us))
        up = Flow(size, read_bytes=size // 2, stop_at=between(random, 0, size - 1), stop_us=stop_us)
        start_us = between(random, 0, phase_us // 2)
        pair = pick(random, pairs)
        extras.append(StreamSpec(first, *pair, up, Flow(), Ending.CLOSE, start_us, label="unread close"))
    if dialled and chance(random, 0.6):
        size = log_between(random, 100, 5000)
        dial_us = log_between(random, SECOND, 20 * SECOND)
        start_us = between(random, 0, phase_us)
        flows = Flow(size), Flow(size)
        pair = pick(random, dialled)
        extras.append(StreamSpec(first + 1, *pair, *flows, Ending.FINISH, start_us, dial_us=dial_us, label="slow dial"))
    return extras


def draw_busy_exit(random: Random, dialled: list[tuple[int, int]], first: int) -> list[StreamSpec]:
    """A stream on which an exit has not decided while another stream makes it send bodies as large as possible. For
    paths that limit bodies: an exit learns the limit with its first large body."""
    if not dialled or not chance(random, 0.3):
        return []
    pair = pick(random, dialled)
    dial_us = log_between(random, 5 * SECOND, 20 * SECOND)
    undecided = StreamSpec(first, *pair, Flow(1000), Flow(1000), Ending.FINISH, dial_us=dial_us, label="slow dial")
    down = Flow(log_between(random, 100_000, 300_000))
    busy = StreamSpec(first + 1, *pair, Flow(100), down, Ending.FINISH, between(random, 0, SECOND), label="busy exit")
    return [undecided, busy]


def _small(random: Random, number: int, pair: tuple[int, int], phase_us: int) -> StreamSpec:
    """One of many small streams: a request and, unless it ends with CLOSE, a response."""
    up = Flow(size=between(random, 1, 700))
    down = Flow(size=between(random, 0, 2000), start_after=up.size)
    ending = pick(random, (Ending.FINISH, Ending.FINISH, Ending.SIMULTANEOUS, Ending.CLOSE))
    if ending is Ending.CLOSE:
        down = Flow()
    start_us = 0 if chance(random, 0.5) else between(random, 0, phase_us)
    return StreamSpec(number, *pair, up, down, ending, start_us, label="many")


def _ordinary(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int) -> StreamSpec:
    maker = pick(random, (_bulk, _bulk, _bulk, _echo, _trickle, _server_first, _one_way, _violent, _violent, _early))
    start_us = 0 if chance(random, 0.6) else between(random, 0, phase_us // 2)
    return maker(random, number, pair, phase_us, max(size, 200), start_us)


def _bulk(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    up_size = between(random, 0, size)
    ending = Ending.SIMULTANEOUS if chance(random, 0.2) else Ending.FINISH
    up = _flow(random, up_size, phase_us)
    down = _flow(random, size - up_size, phase_us)
    return StreamSpec(number, *pair, up, down, ending, start_us, dial_us=_dial(random), label="bulk")


def _echo(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    up = _flow(random, size // 2, phase_us)
    return StreamSpec(number, *pair, up, Flow(size=up.size), Ending.FINISH, start_us, True, label="echo")


def _trickle(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    """Keystrokes: one byte per write."""
    up_size = min(size, between(random, 10, 150))
    up = Flow(up_size, write_bytes=1, write_pause_us=min(phase_us // up_size, SECOND))
    return StreamSpec(number, *pair, up, Flow(size=up.size), Ending.FINISH, start_us, True, label="trickle")


def _server_first(
    random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int
) -> StreamSpec:
    down = _flow(random, size, phase_us)
    up = Flow(size=min(size, 2000), start_after=min(down.size, 100))
    return StreamSpec(number, *pair, up, down, Ending.FINISH, start_us, dial_us=_dial(random), label="server first")


def _one_way(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    up = _flow(random, size, phase_us)
    return StreamSpec(number, *pair, up, Flow(), Ending.CLOSE, start_us, label="one way")


def _violent(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    """A stream that one side or both end in the middle, or that is refused."""
    ending = pick(random, (Ending.MIDWAY, Ending.ABORT, Ending.REFUSED))
    up = _flow(random, size // 2, phase_us)
    down = _flow(random, size // 2, phase_us)
    moment_us = log_between(random, MILLISECOND, phase_us)
    return StreamSpec(
        number, *pair, up, down, ending, start_us, moment_us=moment_us, dial_us=_dial(random), label=ending.value
    )


def _early(random: Random, number: int, pair: tuple[int, int], phase_us: int, size: int, start_us: int) -> StreamSpec:
    up = Flow(size=between(random, 0, min(size, 5000)))
    return StreamSpec(number, *pair, up, Flow(), Ending.EARLY, start_us, dial_us=_dial(random), label="early close")


def _dial(random: Random) -> int:
    return log_between(random, MILLISECOND, 2 * SECOND) if chance(random, 0.3) else 0


def _flow(random: Random, size: int, phase_us: int) -> Flow:
    """A flow as fast as possible, or spread over the phase; its reader may be slow, or stop."""
    write_bytes = max(log_between(random, 100, 1 << 16), size // 200)
    pause_us = 0
    if size and chance(random, 0.7):
        writes = -(-size // write_bytes)
        pause_us = round(random.uniform(0.1, 0.9) * phase_us / writes)
    read_pause_us, read_bytes, stop_at, stop_us = 0, 1 << 20, -1, 0
    if size and chance(random, 0.2):
        reads = between(random, 5, 40)
        read_bytes = max(1, size // reads)
        read_pause_us = log_between(random, MILLISECOND, max(2 * MILLISECOND, phase_us // reads))
    elif size and chance(random, 0.2):
        stop_at = between(random, 0, size - 1)
        stop_us = log_between(random, SECOND, 600 * SECOND if chance(random, 0.1) else 60 * SECOND)
    return Flow(size, write_bytes, pause_us, 0, read_bytes, read_pause_us, stop_at, stop_us)
