"""Clauses 4.12 and 4.15: no connection waits forever. Either it makes progress or the user timeout ends it; but a
connection that waits only for a slow application is never ended."""

from collections.abc import Callable

import pytest

from tests.core.pair import LOST, MS, TARGET, Fate, Pair, Side
from tunnel.core import Closed, Connection, EndpointConfig, Flushed, Lost, LostReason, State, Writable
from tunnel.core.constants import SECOND_US
from tunnel.wire import Dropped, DropReason, Edge, Packet, PacketType, encode_dropped, encode_edge

WINDOW = 64 * 1024
CONFIG = EndpointConfig(
    exit=True,
    window_bytes_min=WINDOW,
    window_bytes_start=WINDOW,
    window_bytes_max=WINDOW,
    user_timeout_us=20 * SECOND_US,
    keepalive_us=0,
)
PINGING = EndpointConfig(exit=True, user_timeout_us=20 * SECOND_US, keepalive_us=5 * SECOND_US)
TIMEOUT_US = 20 * SECOND_US


def cut(pair: Pair) -> None:
    """Let every batch from now on be receipted and then lost."""
    pair.fate = lambda side, packets: LOST


def freeze(pair: Pair) -> None:
    """Let the carriers take nothing from now on."""
    for side in pair.sides:
        side.frozen = True


Strike = Callable[[Pair], None]


def connecting(pair: Pair, strike: Strike) -> Side:
    strike(pair)
    pair.a.endpoint.connect(TARGET, pair.now)
    return pair.a


def closed_early(pair: Pair, strike: Strike) -> Side:
    strike(pair)
    pair.a.endpoint.connect(TARGET, pair.now).close(pair.now)
    return pair.a


def accepted(pair: Pair, strike: Strike) -> Side:
    pair.a.endpoint.connect(TARGET, pair.now)
    pair.settle()
    strike(pair)
    pair.b.endpoint.accept(next(iter(pair.b.endpoint.connections)), pair.now)
    return pair.b


def writing(pair: Pair, strike: Strike) -> Side:
    one, _ = pair.open()
    pair.run(100 * SECOND_US)  # the connection is old, but the wait counts from the write
    strike(pair)
    one.write(b"abc", pair.now)
    return pair.a


def finishing(pair: Pair, strike: Strike) -> Side:
    one, _ = pair.open()
    pair.run(100 * SECOND_US)
    strike(pair)
    one.finish(pair.now)
    return pair.a


def closing(pair: Pair, strike: Strike) -> Side:
    one, _ = pair.open()
    pair.run(100 * SECOND_US)
    strike(pair)
    one.close(pair.now)
    return pair.a


def telling_the_pull_interval(pair: Pair, strike: Strike) -> Side:
    pair.open()
    pair.run(100 * SECOND_US)
    strike(pair)
    pair.a.endpoint.carrier_changed(1, 10 * MS, pair.now)
    return pair.a


@pytest.mark.parametrize("strike", [cut, freeze])
@pytest.mark.parametrize(
    "begin", [connecting, closed_early, accepted, writing, finishing, closing, telling_the_pull_interval]
)
def test_a_connection_that_is_not_answered_is_lost_after_the_user_timeout(
    begin: Callable[[Pair, Strike], Side], strike: Strike
) -> None:  # 4.15
    pair = Pair(CONFIG)
    side = begin(pair, strike)
    pair.run(TIMEOUT_US - 50 * MS)
    assert side.take(Lost) == []
    pair.run(100 * MS)
    assert side.lost() is LostReason.TIMEOUT
    assert side.endpoint.connections == {}


@pytest.mark.parametrize("strike", [cut, freeze])
def test_unanswered_pings_end_the_connection(strike: Strike) -> None:  # 4.15, 4.16
    pair = Pair(PINGING)
    pair.open()
    strike(pair)
    pair.run(30 * SECOND_US)
    assert pair.a.lost() is LostReason.TIMEOUT
    assert pair.b.lost() is LostReason.TIMEOUT


def test_unanswered_window_probes_end_the_connection() -> None:  # 4.12, 4.15
    pair = Pair(CONFIG)
    one, other = pair.open()
    one.write(bytes(2 * WINDOW), pair.now)
    pair.run(10 * SECOND_US)
    assert other.receiver.window.window_bytes == 0
    cut(pair)
    pair.run(TIMEOUT_US + 10 * SECOND_US)
    assert pair.a.lost() is LostReason.TIMEOUT


def test_a_route_that_does_not_come_back_ends_both_sides() -> None:  # 4.15, 6.5
    pair = Pair(CONFIG)
    pair.open()
    pair.lose = lambda side, packet: packet.type == PacketType.CONNECT
    pair.restart_relay()
    pair.run(TIMEOUT_US - 50 * MS)
    assert not pair.a.take(Lost)
    pair.run(100 * MS)
    assert pair.a.lost() is LostReason.TIMEOUT
    assert pair.b.lost() is LostReason.TIMEOUT


def test_an_attachment_that_does_not_come_back_ends_its_connections() -> None:  # 4.15
    pair = Pair(CONFIG)
    pair.open()
    pair.run(100 * SECOND_US)
    pair.a.endpoint.detached(pair.now)
    pair.run(TIMEOUT_US)
    assert pair.a.lost() is LostReason.TIMEOUT


# waits that may last


def test_a_reader_may_sleep_for_an_hour() -> None:  # 4.12
    pair = Pair(CONFIG)
    one, other = pair.open()
    stream = bytes(range(256)) * 500
    assert one.write(stream, pair.now) == len(stream)
    pair.run(3600 * SECOND_US)
    assert one.state is State.OPEN
    assert PacketType.PROBE in pair.a.types()
    assert len(pair.a.of_type(PacketType.PROBE)) < 100  # their interval doubles, up to a minute
    got = b""
    while len(got) < len(stream):
        got += bytes(other.read(10_000, pair.now))
        pair.run(SECOND_US)
    assert got == stream


def test_an_application_may_think_about_a_request_for_an_hour() -> None:  # 3.3
    pair = Pair(CONFIG, EndpointConfig(exit=True, user_timeout_us=20 * SECOND_US))
    pair.a.endpoint.connect(TARGET, pair.now)
    pair.run(10 * SECOND_US)
    assert len(pair.b.endpoint.connections) == 1
    pair.run(3600 * SECOND_US)
    assert [connection.state for connection in pair.b.endpoint.connections.values()] == [State.REQUESTED]


def test_silence_without_keepalive_is_no_loss() -> None:
    pair = Pair(CONFIG)
    one, other = pair.open()
    pair.run(3600 * SECOND_US)
    assert (one.state, other.state) == (State.OPEN, State.OPEN)
    one.write(b"abc", pair.now)
    pair.settle()
    assert other.read(3, pair.now) == b"abc"


# recovery


def read_all(connection: Connection, pair: Pair) -> bytes:
    """Read everything that can be read now."""
    parts = []
    while len(part := connection.read(1 << 20, pair.now)):
        parts.append(bytes(part))
    return b"".join(parts)


def shut(pair: Pair) -> tuple[Connection, Connection]:
    """Open a connection, use up its window to the last byte, and leave nothing more to send."""
    one, other = pair.open()
    one.write(bytes(WINDOW), pair.now)
    pair.run(SECOND_US)
    assert one.sender.window.idle
    assert one.sender.window.peer_edge == WINDOW
    return one, other


def test_a_lost_window_update_is_made_good_by_a_probe() -> None:  # 4.12
    pair = Pair(CONFIG)
    one, other = shut(pair)
    pair.lose = lambda side, packet: side is pair.b
    assert len(read_all(other, pair)) == WINDOW
    pair.run(SECOND_US)
    pair.lose = lambda side, packet: False
    one.write(b"more", pair.now)
    pair.run(1100 * MS)
    assert other.read(10, pair.now) == b"more"


def test_a_lost_probe_is_repeated() -> None:  # 4.12
    pair = Pair(CONFIG)
    one, other = shut(pair)
    one.write(b"more", pair.now)
    pair.lose = lambda side, packet: True
    read_all(other, pair)
    pair.run(3200 * MS)
    pair.lose = lambda side, packet: False
    pair.run(5 * SECOND_US)
    assert other.read(10, pair.now) == b"more"


def test_a_window_that_opens_in_small_steps_is_used() -> None:
    pair = Pair(CONFIG)
    one, other = shut(pair)
    one.write(bytes(3_000), pair.now)
    for _ in range(WINDOW // 500 + 10):
        other.read(500, pair.now)
        pair.run(100 * MS)
    pair.run(5 * SECOND_US)
    assert one.sender.window.idle


@pytest.mark.parametrize("edge_bytes", [0, 1, 500, 1500])
def test_an_edge_smaller_than_every_packet_stops_nothing(edge_bytes: int) -> None:  # 4.11
    """The relay names this edge and never another; packets pass all the same, one by one."""
    pair = Pair(CONFIG)
    one, other = pair.open()
    one.write(bytes(8_000), pair.now)
    pair.run(7 * MS)
    window = one.sender.window
    edge = encode_edge(Edge(window.oldest & 0xFFFFFFFF, edge_bytes))
    pair.inject(pair.a, Packet(PacketType.EDGE, 0, one.id, 0, edge))
    one.write(bytes(8_000), pair.now)
    got = 0
    for _ in range(100):
        got += len(other.read(10_000, pair.now))
        pair.run(100 * MS)
    assert got == 16_000


def test_packets_that_a_relay_without_any_room_dropped_are_sent_again_after_rto() -> None:  # 4.10
    pair = Pair(CONFIG)
    one, other = pair.open()
    dropped: list[int] = []

    def lose(side: Side, packet: Packet) -> bool:
        if packet.type != PacketType.DATA or len(dropped) >= 6:
            return False
        dropped.append(packet.sequence)
        payload = encode_dropped(Dropped(DropReason.FULL, packet.sequence, packet.sequence, 0))
        pair.at(10 * MS, lambda: pair.deliver(pair.a, [Packet(PacketType.DROPPED, 0, one.id, 0, payload)]))
        return True

    pair.lose = lose
    one.write(bytes(3_000), pair.now)
    pair.run(20 * SECOND_US)
    assert len(dropped) == 6
    assert len(other.read(10_000, pair.now)) == 3_000


def test_rto_backs_off_while_the_path_is_down_and_is_reset_by_progress() -> None:  # 4.6
    pair = Pair(EndpointConfig())
    one, _ = pair.open()
    cut(pair)
    one.write(b"abc", pair.now)
    start = pair.now
    times: list[int] = []

    def note(side: Side, packets: list[Packet]) -> Fate:
        times.append((pair.now - start) // SECOND_US)
        return LOST

    pair.fate = note
    pair.run(50 * SECOND_US)
    assert times == [0, 1, 3, 7, 15, 31]
    pair.fate = lambda side, packets: Fate()
    pair.run_until(lambda: bool(pair.a.take(Flushed)), 60 * SECOND_US)
    assert one.sender.rtt.backoff == 0


def test_a_full_send_buffer_reports_writable_when_it_has_room() -> None:
    config = EndpointConfig(send_buffer_bytes_max=5_000)
    pair = Pair(config)
    one, other = pair.open()
    stream = bytes(range(256)) * 400
    written = one.write(stream, pair.now)
    got = b""
    for _ in range(1000):
        if pair.a.take(Writable):
            written += one.write(stream[written:], pair.now)
        got += bytes(other.read(100_000, pair.now))
        pair.run(20 * MS)
    assert got == stream


def test_a_closed_connection_ends_once_a_frozen_path_moves_again() -> None:
    pair = Pair(EndpointConfig())
    one, other = pair.open()
    one.write(bytes(50_000), pair.now)
    one.close(pair.now)
    freeze(pair)
    pair.run(120 * SECOND_US)
    for side in pair.sides:
        side.frozen = False
    pair.run(SECOND_US)
    total = 0
    while size := len(other.read(1 << 20, pair.now)):
        total += size
        pair.run(100 * MS)
    assert total == 50_000
    pair.run(SECOND_US)
    assert pair.a.take(Closed)
