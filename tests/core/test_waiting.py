"""Clauses 4.12 and 4.15: no connection waits forever. Either it makes progress or the user timeout ends it; but a
connection that waits only for a slow application is never ended."""

from collections.abc import Callable

import pytest

from tests.core.pair import LOST, MS, TARGET, Pair, Side
from tunnel.core import Closed, Connection, EndpointConfig, Lost, LostReason, State
from tunnel.core.constants import SECOND_US

WINDOW = 64 * 1024
CONFIG = EndpointConfig(
    exit=True,
    window_bytes_min=WINDOW,
    window_bytes_start=WINDOW,
    window_bytes_max=WINDOW,
    user_timeout_us=20 * SECOND_US,
    keepalive_us=0,
)
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


# waits that may last


def test_silence_without_keepalive_is_no_loss() -> None:
    pair = Pair(CONFIG)
    one, other = pair.open()
    pair.run(3600 * SECOND_US)
    assert (one.state, other.state) == (State.OPEN, State.OPEN)
    one.write(b"abc", pair.now)
    pair.settle()
    assert other.read(3, pair.now) == b"abc"


# recovery


def shut(pair: Pair) -> tuple[Connection, Connection]:
    """Open a connection, use up its window to the last byte, and leave nothing more to send."""
    one, other = pair.open()
    one.write(bytes(WINDOW), pair.now)
    pair.run(SECOND_US)
    assert one.sender.window.idle
    assert one.sender.window.peer_edge == WINDOW
    return one, other


def test_a_window_that_opens_in_small_steps_is_used() -> None:
    pair = Pair(CONFIG)
    one, other = shut(pair)
    one.write(bytes(3_000), pair.now)
    for _ in range(WINDOW // 500 + 10):
        other.read(500, pair.now)
        pair.run(100 * MS)
    pair.run(5 * SECOND_US)
    assert one.sender.window.idle


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
