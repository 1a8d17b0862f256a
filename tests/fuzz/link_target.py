"""The target `link_stream`: two halves of a link, and between them a stream of bytes that arrives in any portions.

Promises: the batches that arrive are a prefix of those sent, whole and in order, whatever was damaged on the way;
receipts name batches that have arrived; a half never raises, whatever it reads, and keeps no more than a batch.
"""

from collections.abc import Callable, Iterator

from tests.fuzz.checksums import repair_link
from tests.fuzz.draw import SIZES, Draw
from tests.fuzz.peer import BLOB
from tests.fuzz.target import Target
from tunnel.exchange import LinkState
from tunnel.wire import LINK_HEADER_SIZE

__all__ = ["LINK_TARGET"]

OPERATIONS_MAX = 200
LENGTH_MAX = 100_000
MEMORY_MAX = 2**17  # for an incomplete batch
_RECEIPT_US = 25_000  # 8.2


class _Half:
    """One side: its sent batches, the bytes in flight to it, and its received batches."""

    def __init__(self) -> None:
        self.state = LinkState(LENGTH_MAX)
        self.sent: list[bytes] = []
        self.receipted = 0
        self.received: list[bytes] = []
        self.coming = bytearray()
        self.damaged = False  # the stream towards this side was damaged


class _World:
    def __init__(self, draw: Draw) -> None:
        self.draw = draw
        self.now = 0
        self.halves = (_Half(), _Half())

    def side(self) -> tuple[_Half, _Half]:
        """Return one of the two sides, and the other."""
        index = self.draw.byte() & 1
        return self.halves[index], self.halves[1 - index]

    def feed(self, half: _Half, other: _Half, size: int) -> None:
        """The next `size` bytes arrive at `half`."""
        data = bytes(half.coming[:size])
        del half.coming[:size]
        found = half.state.receive(data, self.now)
        half.received += [bytes(batch) for batch in found.batches]
        for token in found.receipts:
            assert token == half.receipted, "receipts out of order"
            half.receipted += 1
        other.coming += b"".join(half.state.handle_timeout(self.now))
        if not half.damaged:
            assert half.received == other.sent[: len(half.received)], "received batches differ from those sent"
        if not other.damaged and not half.damaged:
            assert half.receipted <= len(other.received), "a receipt for a batch that has not arrived"
            assert not half.state.closed, half.state.closed

    def check(self) -> None:
        """Raise AssertionError for the first promise that does not hold."""
        for half in self.halves:
            state = half.state
            assert state.closed or state._intake.end - state._intake.start <= LENGTH_MAX
            assert len(state._intake.view) <= MEMORY_MAX, f"{len(state._intake.view)} bytes of memory"
            assert len(state.tokens_unreceipted) == len(half.sent) - half.receipted
            deadline = state.next_timeout()
            assert deadline is None or deadline <= self.now + _RECEIPT_US


def _send(world: _World) -> None:
    half, other = world.side()
    size = min(world.draw.pick(SIZES), LENGTH_MAX)
    if not half.state.closed:
        batch = BLOB[len(half.sent) : len(half.sent) + size]
        cut = size // 3
        other.coming += b"".join(half.state.send([batch[:cut], batch[cut:]] if cut else [batch], len(half.sent)))
        half.sent.append(batch)


def _arrive(world: _World) -> None:
    half, other = world.side()
    world.feed(half, other, world.draw.pick((1, 23, 24, 25, 100, 1000, 20_000, 1 << 20)))


def _trickle(world: _World) -> None:
    """Deliver many portions of one byte."""
    half, other = world.side()
    for _ in range(world.draw.byte() * 4):
        world.feed(half, other, 1)


def _wait(world: _World) -> None:
    world.now += world.draw.pick((1, 24_999, 25_000, 1_000_000))
    for half, other in (world.halves, world.halves[::-1]):
        other.coming += b"".join(half.state.handle_timeout(world.now))
        deadline = half.state.next_timeout()
        assert half.state.closed or deadline is None or deadline > world.now


def _damage(world: _World) -> None:
    """Change, insert or lose a byte of a stream."""
    half, _ = world.side()
    kind, at = world.draw.below(3), world.draw.below(max(1, len(half.coming)))
    if half.coming:
        half.damaged = True
        half.coming[at : at + (kind < 2)] = [bytes([half.coming[at] ^ 1]), b"", b"\0"][kind]


def _lie(world: _World) -> None:
    """Insert a header that neither side sent, with a right checksum."""
    draw = world.draw
    half, _ = world.side()
    half.damaged = True
    header = bytearray(LINK_HEADER_SIZE)
    number = half.state._received + 1 if draw.flag() else draw.number()
    received = draw.below(max(1, half.state._sent + 2)) if draw.flag() else draw.number()
    header[4:16] = b"".join(value.to_bytes(4, "big") for value in (number, received, draw.number()))
    half.coming += repair_link(bytes(header)) + draw.raw(draw.below(64))


Operation = Callable[[_World], None]
_WEIGHTED: tuple[tuple[Operation, int], ...] = (
    (_send, 10),
    (_arrive, 12),
    (_trickle, 2),
    (_wait, 4),
    (_damage, 2),
    (_lie, 2),
)
# The lower five bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def run(data: bytes) -> None:
    """Run one life of a link."""
    draw = Draw(data)
    world = _World(draw)
    for _ in range(OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        world.check()
    for half, other in (world.halves, world.halves[::-1]):
        world.feed(half, other, 1 << 30)
        assert half.damaged or other.damaged or half.received == other.sent, "something did not arrive"


def _script(*steps: int | Operation) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    yield "there_and_back", _script(_send, 0, 4, _arrive, 1, 5, _wait, 3, _arrive, 0, 7)


LINK_TARGET = Target("link_stream", run, _seeds, 1024)
