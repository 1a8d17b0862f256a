"""Two endpoints under random commands, over a path that loses, duplicates, reorders and delays packets and forgets
routes: safety holds at each step, and everything is complete once the path has healed."""

from dataclasses import dataclass, field
from random import Random

from hypothesis import example, given
from hypothesis import strategies as st

from tests.core.pair import ENDS, MS, SERVICE, TARGET, Fate, Pair, Side
from tunnel.core import (
    Closed,
    Connection,
    ConnectRequested,
    EndpointConfig,
    Incoming,
    LostReason,
    PeerFinished,
    State,
    TunnelError,
)
from tunnel.core.constants import NEVER_US, SECOND_US
from tunnel.core.events import Lost
from tunnel.wire import Packet, RejectReason

SMALL = EndpointConfig(
    exit=True,
    window_bytes_min=2_000,
    window_bytes_start=3_000,
    window_bytes_max=20_000,
    budget_bytes=8_000,
    send_buffer_bytes_max=10_000,
    packet_bytes_max=1_500,
    out_of_order_packets_max=30,
)
LARGE = EndpointConfig(exit=True)
FAULTS_US = 20 * SECOND_US
HEALING_US = 760 * SECOND_US  # a drain without a route may last twice the user timeout


@dataclass(slots=True)
class End:
    """One application at one end of a connection."""

    side: Side
    connection: Connection
    to_write: bytes
    written: int = 0
    got: bytearray = field(default_factory=bytearray)
    done: bool = False  # the application has finished or closed


class Session:
    """Applications on both sides of a pair, each with a stream to send; what one reads must be what the other wrote."""

    def __init__(self, seed: int, *, rough: bool) -> None:
        self.random = Random(seed)
        self.rough = rough
        small = self.chance(50)
        self.pair = Pair(
            SMALL if small else LARGE, seed=seed, lanes=1 + self.below(6), batch_bytes=4096 << self.below(5)
        )
        self.sizes = [0, 1, 500, 5_000, 20_000] if small else [0, 1, 3_000, 70_000, 400_000]
        self.ends: dict[tuple[str, int], End] = {}
        self.partners: dict[tuple[str, int], End] = {}
        self.terminal: dict[tuple[str, int], list[object]] = {}
        self.healed = False
        self.pair.fate = self.fate
        self.pair.lose = lambda side, packet: not self.healed and self.chance(2)
        self.pair.hold = lambda side, packet: not self.healed and self.chance(2)
        self.pair.b.endpoint.listen("s", 100, self.pair.now)

    def below(self, bound: int) -> int:
        return self.random.getrandbits(24) % bound

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def fate(self, side: Side, packets: list[Packet]) -> Fate:
        """Draw the fate of a batch."""
        if self.healed:
            return Fate()
        up_us, down_us = 1 * MS + self.below(30 * MS), 1 * MS + self.below(100 * MS)
        kind = self.below(100)
        if kind < 10:
            return Fate((), up_us)
        if kind < 16:
            return Fate((), up_us, ok=False)
        if kind < 20:
            return Fate((down_us,), 200 * MS, ok=False)
        if kind < 30:
            return Fate((down_us, down_us + self.below(SECOND_US)), up_us)
        if kind < 34:
            return Fate((down_us + self.below(3 * SECOND_US),), 2 * SECOND_US)
        return Fate((up_us + down_us,), up_us)

    # applications

    def connect(self) -> None:
        pair = self.pair
        connection = pair.a.endpoint.connect(SERVICE if self.chance(50) else TARGET, pair.now)
        self.add(pair.a, connection)

    def add(self, side: Side, connection: Connection) -> None:
        size = self.sizes[self.below(len(self.sizes))]
        pattern = self.random.getrandbits(64).to_bytes(8, "big")
        end = End(side, connection, (pattern * (size // 8 + 1))[:size])
        self.ends[side.name, connection.id] = end

    def step(self) -> None:
        """Let each application handle its events, then do something or nothing."""
        for side in self.pair.sides:
            events, side.events = side.events, []
            for event in events:
                key = (side.name, event.connection_id)
                if isinstance(event, ENDS):
                    self.terminal.setdefault(key, []).append(event)
                elif isinstance(event, Incoming) and event.connection_id in side.endpoint.connections:
                    self.add(side, side.endpoint.connections[event.connection_id])  # else it has ended meanwhile
                elif isinstance(event, ConnectRequested):
                    self.decide(side, event.connection_id)
                elif isinstance(event, PeerFinished) and key in self.ends:
                    assert self.ends[key].connection.at_eof
        for end in list(self.ends.values()):
            if self.healed or self.chance(60):
                self.act(end)

    def decide(self, side: Side, connection_id: int) -> None:
        if connection_id not in side.endpoint.connections:
            return  # it has ended meanwhile
        if self.rough and self.chance(15):
            side.endpoint.refuse(connection_id, RejectReason.REFUSED, "no", self.pair.now)
        else:
            connection = side.endpoint.connections[connection_id]
            side.endpoint.accept(connection_id, self.pair.now)
            self.add(side, connection)

    def act(self, end: End) -> None:
        connection, now = end.connection, self.pair.now
        size = 1 << self.below(20)
        end.got += bytes(connection.read(size, now))
        self.check(end)
        try:
            if end.written < len(end.to_write):
                piece = end.to_write[end.written : end.written + 1 + self.below(50_000)]
                end.written += connection.write(piece, now)
            elif not end.done:
                connection.finish(now)
                end.done = True
            elif connection.at_eof or self.rough:
                connection.close(now)
            if self.rough and self.chance(2):
                connection.close(now)
            if self.rough and self.chance(1):
                connection.abort(now)
        except TunnelError:
            assert self.rough or connection.state in (State.PEER_CLOSED, State.DRAIN, State.CLOSED)
            end.done = True

    # properties

    def partner(self, end: End) -> End | None:
        """Return the other end, once it exists."""
        other = end.side.other
        for candidate in self.ends.values():
            identity = candidate.connection.identity
            if candidate.side is other and identity.route_key == end.connection.identity.route_key:
                return candidate
        return None

    def check(self, end: End) -> None:
        partner = self.partner(end)
        stream = partner.to_write[: partner.written] if partner is not None else b""
        assert stream.startswith(bytes(end.got))  # delivered bytes are a prefix of the written ones
        if end.connection.at_eof:
            assert end.got == stream  # the end of stream follows the last byte (5.9)

    def run(self, connections: int) -> None:
        pair = self.pair
        opened = 0
        while pair.now < FAULTS_US:
            if opened < connections and self.chance(20):
                self.connect()
                opened += 1
            self.step()
            if self.chance(1):
                pair.restart_relay()
            if self.chance(5):
                pair.release()
            if self.chance(3):
                side = pair.sides[self.below(2)]
                pair.lanes = 1 + self.below(6)
                side.endpoint.carrier_changed(pair.lanes, [0, 0, 500 * MS][self.below(3)], pair.now)
            pair.run(self.below(400 * MS))
        self.healed = True
        for side in pair.sides:
            side.endpoint.carrier_changed(pair.lanes, 0, pair.now)
        pair.release()
        end_us = pair.now + HEALING_US
        while pair.now < end_us and any(side.endpoint.next_timeout() is not None for side in pair.sides):
            self.step()
            pair.run(20 * MS if pair.now < FAULTS_US + 10 * SECOND_US else SECOND_US)
        pair.settle()
        self.step()


def over(session: Session) -> None:
    """Assert that each connection ended exactly once, and that nothing is left of it."""
    pair = session.pair
    for side in pair.sides:
        assert side.endpoint.connections == {}
        assert side.endpoint.budget.granted_bytes == 0
        assert not side.endpoint.wants_batch()
        assert side.endpoint.next_timeout() is None
    for key, end in session.ends.items():
        assert len(session.terminal.get(key, [])) == 1, end
        assert end.connection.timers.next() == NEVER_US


@given(st.integers(0, 2**32))
@example(0)
def test_streams_survive_everything(seed: int) -> None:
    """No application aborts or closes early: every byte arrives, and every connection ends cleanly on both sides."""
    session = Session(seed, rough=False)
    session.run(connections=1 + session.below(4))
    over(session)
    for key, end in session.ends.items():
        partner = session.partner(end)
        assert partner is not None
        assert end.got == partner.to_write
        assert end.connection.at_eof
        assert [type(event) for event in session.terminal[key]] == [Closed], end


@given(st.integers(0, 2**32))
def test_applications_that_close_at_random_learn_how_their_connections_ended(seed: int) -> None:
    """Applications may close or abort at any time: bytes that are read are right, and each end is reported once."""
    session = Session(seed, rough=True)
    session.run(connections=1 + session.below(4))
    over(session)
    for key, end in session.ends.items():
        (event,) = session.terminal[key]
        if isinstance(event, Lost):
            assert event.reason not in (LostReason.INTEGRITY, LostReason.PROTOCOL)
        if isinstance(event, Lost) and event.reason is LostReason.TIMEOUT:
            # The path was never silent for so long, so the peer was silent: it had ended, and could not say so.
            partner = session.partner(end)
            assert partner is None or isinstance(session.terminal[partner.side.name, partner.connection.id][0], Lost)
