"""The limits of connections, and of the bytes held for them, for each source address and each user."""

import pytest

from tunnel_servlet.access.connections import Connections, CountedConnection, source_of

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
def test_the_source_of_an_ipv6_client_is_its_network(address: str, source: str) -> None:
    assert source_of(address) == source


def admitted(connections: Connections, source: str) -> CountedConnection:
    counted = connections.admit(source)
    assert counted is not None
    return counted


def test_two_users_of_one_address_share_its_connections_until_their_tokens_come() -> None:
    connections = Connections(16, 2, 2, BYTES)
    both = [admitted(connections, "x") for _ in range(2)]
    assert connections.admit("x") is None
    assert connections.admit("y") is not None
    assert both[0].charge_to("ann")
    assert (connections.total, connections.unauthenticated) == (3, 2)
    assert connections.admit("x") is not None


def test_two_users_have_their_own_connections() -> None:
    connections = Connections(16, 4, 1, BYTES)
    first, second, third = (admitted(connections, "x") for _ in range(3))
    assert first.charge_to("ann")
    assert first.charge_to("ann")
    assert not second.charge_to("ann")
    assert (second.user, connections.unauthenticated) == ("", 2)
    assert third.charge_to("bob")
    assert not third.charge_to("ann")
    first.leave()
    assert third.charge_to("ann")
    assert second.charge_to("bob")


def test_a_source_gets_a_quarter_and_unauthenticated_clients_get_half_of_all_connections() -> None:
    connections = Connections(8, 100, 100, BYTES)
    admitted(connections, "x")
    admitted(connections, "x")
    assert connections.admit("x") is None
    admitted(connections, "y")
    last = admitted(connections, "y")
    assert connections.admit("z") is None
    assert last.charge_to("ann")
    assert connections.admit("z") is not None


def test_the_total_of_connections_is_limited_too() -> None:
    connections = Connections(1, 100, 100, BYTES)
    counted = admitted(connections, "x")
    assert counted.charge_to("ann")
    assert connections.admit("y") is None
    counted.leave()
    counted.leave()
    assert counted.charge_to("bob")  # the connection has ended: nothing is charged any more
    assert (connections.total, connections.unauthenticated) == (0, 0)
    assert connections.admit("y") is not None


def test_two_users_no_user_holds_more_bytes_than_stay_free_for_others() -> None:
    connections = Connections(16, 16, 16, BYTES)
    first, second, other = (admitted(connections, "x") for _ in range(3))
    assert first.charge_to("ann")
    assert second.charge_to("ann")
    assert first.hold(300)
    assert second.hold(200)
    assert not second.hold(1)
    assert other.hold(250)
    assert not other.hold(1)
    assert connections.held_bytes == 750
    first.free(100)
    assert not second.hold(51)
    assert other.charge_to("bob")
    assert other.held_bytes == 250
    other.leave()
    assert connections.held_bytes == 400
    first.leave()
    first.free(200)
    assert first.hold(10**9)  # the connection has ended: nothing is charged any more
    second.leave()
    assert connections.held_bytes == 0
    assert admitted(connections, "x").hold(500)
