"""Both windows against simple models: whatever is lost, duplicated or reordered, every byte is in its place."""

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from xxhash import xxh3_128

from tests.core.receive_bench import CLOSE, FIRST, data, end, make, read_all, small
from tunnel.core.budget import WindowBudget
from tunnel.core.config import EndpointConfig
from tunnel.core.receive.window import Arrival, ReceiveWindow
from tunnel.core.send.window import Segment, SegmentState, SendWindow
from tunnel.wire import PacketType, decode_end

SMALL = EndpointConfig(window_bytes_min=4000, window_bytes_start=4000, window_bytes_max=9000)


@given(st.permutations(range(12)), st.integers(0, 2**32), st.integers(1, 5))
def test_any_order_gives_the_same_stream(order: list[int], seed: int, size: int) -> None:
    random = Random(seed)
    parts = [random.getrandbits(8 * 4).to_bytes(4, "big") * (1 + random.getrandbits(8) % 40) for _ in range(11)]
    stream = b"".join(parts)
    window, read = make(), b""
    for number in order:
        if number == 11:
            assert end(window, 11, stream, CLOSE) in (Arrival.IN_ORDER, Arrival.OUT_OF_ORDER)
        else:
            assert data(window, number, memoryview(parts[number])) in (Arrival.IN_ORDER, Arrival.OUT_OF_ORDER)
        kept = set(range(12)) & set(order[: order.index(number) + 1])
        beyond = {sequence - FIRST for first, last in window.ranges() for sequence in range(first, last + 1)}
        assert beyond == {item for item in kept if FIRST + item >= window.next_sequence}
        read += bytes(window.read(size * 7))
        assert stream.startswith(read)
        assert window.at_end == (read == stream and window.closed)
    read += read_all(window)
    assert read == stream
    assert window.at_end
    assert window.finished
    assert window.closed


@given(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 3000, 5000, 65536, 70000]), st.booleans()), max_size=30),
    st.lists(st.sampled_from([1, 999, 66000, 1 << 20]), max_size=40),
    st.integers(0, 2**32),
)
def test_pinned_bytes_are_never_negative_and_zero_after_the_last_byte(
    parts: list[tuple[int, int, bool]], reads: list[int], seed: int
) -> None:
    random = Random(seed)
    window = small(2**22)
    bodies = []
    for body in range(4):  # packets are disjoint slices of each body; other bytes fill the rest
        size = sum(part[1] for part in parts if part[0] == body) + 40_000 * body
        bodies.append(memoryview(random.getrandbits(64).to_bytes(8, "big") * (size // 8 + 1)))
    payloads, cursors = [], [0, 0, 0, 0]
    for body, size, _ in parts:
        payloads.append(bodies[body][cursors[body] : cursors[body] + size])
        cursors[body] += size
    order = sorted(range(len(parts)), key=lambda number: (number + (4 if parts[number][2] else 0), number))
    got = b""
    for number in order:
        assert data(window, number, payloads[number]) in (Arrival.IN_ORDER, Arrival.OUT_OF_ORDER)
        assert window.pinned_bytes >= 0
        if reads:
            got += bytes(window.read(reads.pop()))
            assert window.pinned_bytes >= 0
    got += read_all(window, 50_000)
    assert got == b"".join(payloads)
    assert (window.pinned_bytes, window.buffered_bytes, window._ahead_bytes) == (0, 0, 0)


class Windows(RuleBasedStateMachine):
    """A send window and a receive window, with a network in between that may lose, repeat and reorder packets, and
    acknowledgements that may come late or never. The model is the stream itself."""

    def __init__(self) -> None:
        super().__init__()
        self.budget = WindowBudget(5000)
        self.sending = SendWindow(FIRST, 20_000, 4000)
        self.receiving = ReceiveWindow(SMALL, self.budget, FIRST)
        self.written = b""
        self.read_bytes = b""
        self.network: list[Segment] = []
        self.acks: list[tuple[int, list[tuple[int, int]], int]] = []
        self.edge = self.sending.peer_edge
        self.ended = False

    @precondition(lambda self: not self.ended)
    @rule(size=st.sampled_from([1, 10, 700, 1024, 5000]), seed=st.integers(0, 255))
    def write(self, size: int, seed: int) -> None:
        room = self.sending.room
        piece = bytes([seed]) * size
        taken = self.sending.write(piece)
        assert taken == min(size, room)
        self.written += piece[:taken]

    @precondition(lambda self: not self.ended)
    @rule()
    def finish(self) -> None:
        self.sending.end(PacketType.FINISH)
        self.ended = True

    @rule(size=st.sampled_from([1024, 3000]))
    def send(self, size: int) -> None:
        sendable = self.sending.sendable()
        segment = self.sending.take(size)
        assert sendable == (segment is not None)
        if segment is not None:
            self.network.append(segment)

    @precondition(lambda self: self.network)
    @rule(number=st.integers(0, 50), keep=st.booleans())
    def arrive(self, number: int, keep: bool) -> None:
        index = number % len(self.network)
        segment = self.network[index] if keep else self.network.pop(index)
        if segment.state is SegmentState.ACKNOWLEDGED:
            return  # its payload is freed; on a real network the packet has its own copy
        ending = decode_end(segment.payload) if segment.type == PacketType.FINISH else None
        arrival = self.receiving.insert(segment.sequence, segment.type, segment.payload, ending)
        assert arrival not in (Arrival.REFUSED, Arrival.MISMATCH)

    @rule(number=st.integers(0, 50), loses=st.booleans())
    def lose(self, number: int, loses: bool) -> None:
        if self.network and loses:
            self.network.pop(number % len(self.network))
        outstanding = list(self.sending.outstanding.values())
        if outstanding:
            self.sending.lose(outstanding[number % len(outstanding)], "test")

    @rule(size=st.sampled_from([1, 500, 100_000]))
    def read(self, size: int) -> None:
        self.read_bytes += bytes(self.receiving.read(size))
        self.receiving.advance()

    @rule()
    def acknowledge(self) -> None:
        window = self.receiving
        window.advance()
        self.acks.append((window.next_sequence - 1, window.ranges(), window.announce()))

    @precondition(lambda self: self.acks)
    @rule(number=st.integers(0, 50))
    def hear(self, number: int) -> None:
        cumulative, ranges, window_bytes = self.acks.pop(number % len(self.acks))
        newly = self.sending.acknowledge(cumulative, ranges)
        assert newly is not None
        assert len({segment.sequence for segment in newly}) == len(newly)
        before = self.sending.peer_edge
        self.sending.open_peer_window(cumulative, window_bytes)
        assert self.sending.peer_edge >= before  # 4.1

    @rule(sequence=st.integers(-1, 30), room=st.sampled_from([0, 1000, 3000, 1 << 40]))
    def announce(self, sequence: int, room: int) -> None:
        self.sending.announce_edge(FIRST + sequence, room)

    @invariant()
    def holds(self) -> None:
        sending, receiving = self.sending, self.receiving
        assert self.written.startswith(self.read_bytes)
        assert receiving.received_offset >= sending.acknowledged_offset  # 4.2
        assert sending.sent_offset <= sending.peer_edge <= receiving.right_edge
        assert receiving.buffered_bytes + receiving._ahead_bytes <= receiving.size_bytes
        charged = [segment.size for segment in sending.outstanding.values() if segment.charged]
        assert sending.edge_used == sum(charged)
        assert sending.waiting_bytes >= sending.pending_bytes
        assert sending.unacknowledged_bytes <= 20_000
        assert 0 <= self.budget.granted_bytes <= 5000
        assert receiving.at_end <= (self.read_bytes == self.written)
        assert not sending.idle or receiving.received_offset == len(self.written)

    def teardown(self) -> None:
        """Heal the network, and check that everything comes through."""
        for _ in range(2_000):
            for segment in list(self.sending.outstanding.values()):
                self.sending.lose(segment, "healing")
            self.sending.announce_edge(self.sending.next_sequence - 1, 1 << 40)
            while (found := self.sending.take(1024)) is not None:
                self.network.append(found)
            while self.network:
                self.arrive(0, keep=False)
            self.read(1 << 20)
            self.acknowledge()
            self.hear(len(self.acks) - 1)
            if self.sending.idle:
                break
        assert self.sending.idle
        self.read_bytes += read_all(self.receiving)
        assert self.read_bytes == self.written
        assert self.receiving.at_end == self.ended
        assert self.sending.digest() == xxh3_128(self.written).digest()


TestWindows = Windows.TestCase
TestWindows.settings = settings(stateful_step_count=60)
