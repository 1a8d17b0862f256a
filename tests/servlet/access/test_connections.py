"""What one source address may cost: connections and log lines."""

import pytest

from tunnel_servlet.access.connections import Connections, LineBudget, LogLimiter, Place, source_of

SECOND = 1_000_000
BYTES = 1000


@pytest.mark.parametrize(
    ("address", "source"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        ("fe80::1%eth0", "fe80::"),
        ("::1", "::"),
        ("unix", "unix"),
        ("", ""),
    ],
)
def test_the_source_of_ipv6_is_a_network(address: str, source: str) -> None:
    assert source_of(address) == source


def test_two_users_lines_of_one_source_do_not_silence_another() -> None:
    limiter = LogLimiter()
    assert [limiter.passes("a", "x", now) for now in (0, 1, SECOND - 1, SECOND, SECOND + 1)] == [1, 0, 0, 1, 0]
    assert limiter.passes("b", "x", SECOND + 1)
    assert limiter.passes("a", "y", SECOND + 1)


def test_the_limiter_forgets_the_oldest_line() -> None:
    limiter = LogLimiter()
    assert all(limiter.passes("a", str(number), 0) for number in range(10_001))
    assert limiter.passes("a", "0", 1)
    assert not limiter.passes("a", "10000", 1)


def test_two_users_have_their_own_lines_and_what_is_left_out_is_counted() -> None:
    budget = LineBudget(2)
    assert [budget.take("eve", now) for now in (0, 1, 2, SECOND - 1)] == [0, 0, None, None]
    assert budget.take("ann", 2) == 0
    assert [budget.take("eve", SECOND + now) for now in (0, 1, 2)] == [2, 0, None]
    assert all(budget.take(str(number), SECOND) == 0 for number in range(10_000))
    assert budget.take("eve", SECOND + 3) == 0  # forgotten


def admitted(connections: Connections, source: str) -> Place:
    place = connections.admit(source)
    assert place is not None
    return place


def test_two_users_of_one_address_share_its_places_until_their_tokens_come() -> None:
    connections = Connections(16, 2, 2, BYTES)
    places = [admitted(connections, "x") for _ in range(2)]
    assert connections.admit("x") is None
    assert connections.admit("y") is not None
    assert places[0].belongs_to("ann")
    assert (connections.total, connections.strangers) == (3, 2)
    assert connections.admit("x") is not None


def test_two_users_have_their_own_places() -> None:
    connections = Connections(16, 4, 1, BYTES)
    first, second, third = (admitted(connections, "x") for _ in range(3))
    assert first.belongs_to("ann")
    assert first.belongs_to("ann")
    assert not second.belongs_to("ann")
    assert (second.user, connections.strangers) == ("", 2)
    assert third.belongs_to("bob")
    assert not third.belongs_to("ann")
    first.leave()
    assert third.belongs_to("ann")
    assert second.belongs_to("bob")


def test_a_source_gets_a_quarter_and_strangers_get_half_of_all_places() -> None:
    connections = Connections(8, 100, 100, BYTES)
    admitted(connections, "x")
    admitted(connections, "x")
    assert connections.admit("x") is None
    admitted(connections, "y")
    last = admitted(connections, "y")
    assert connections.admit("z") is None
    assert last.belongs_to("ann")
    assert connections.admit("z") is not None


def test_all_places_are_a_limit_too() -> None:
    connections = Connections(1, 100, 100, BYTES)
    place = admitted(connections, "x")
    assert place.belongs_to("ann")
    assert connections.admit("y") is None
    place.leave()
    place.leave()
    assert place.belongs_to("bob")  # too late to count
    assert (connections.total, connections.strangers) == (0, 0)
    assert connections.admit("y") is not None


def test_two_users_one_leaves_the_other_as_many_bytes_as_it_holds() -> None:
    connections = Connections(16, 16, 16, BYTES)
    first, second, other = (admitted(connections, "x") for _ in range(3))
    assert first.belongs_to("ann")
    assert second.belongs_to("ann")
    assert first.hold(300)
    assert second.hold(200)
    assert not second.hold(1)
    assert other.hold(250)
    assert not other.hold(1)
    assert connections.held_bytes == 750
    first.free(100)
    assert not second.hold(51)
    assert other.belongs_to("bob")
    assert other.held_bytes == 250
    other.leave()
    assert connections.held_bytes == 400
    first.leave()
    first.free(200)
    assert first.hold(10**9)  # too late to count
    second.leave()
    assert connections.held_bytes == 0
    assert admitted(connections, "x").hold(500)
