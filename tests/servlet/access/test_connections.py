"""The limits of connections, and of the bytes held for them, for each source address and each user."""

import pytest

from tunnel_servlet.access.connections import Connections, CountedConnection
from tunnel_servlet.access.sources import source_of

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


class Ends:
    """Connections that can be evicted, and which of them were."""

    def __init__(self, connections: Connections) -> None:
        self.connections = connections
        self.evicted: list[str] = []

    def open(self, source: str, name: str = "", *, has_tls: bool = False) -> CountedConnection:
        counted = self.connections.admit(source, has_tls=has_tls)
        assert counted is not None
        counted.may_evict(lambda: self.evicted.append(name or source))
        return counted


def test_two_users_the_largest_source_makes_room_for_others() -> None:
    ends = Ends(Connections(40, 8, 40, BYTES))
    for number in range(16):
        ends.open(f"attacker{number % 2}", f"a{number}")
    ends.open("other", "o")
    ends.open("second", "s")
    ends.open("third")
    ends.open("fourth")
    victims = [ends.open(f"victim{number}") for number in range(6)]
    assert ends.evicted == ["a0", "a1", "a2", "a3", "a4", "a5"]
    assert all(victim.charge_to("ann") for victim in victims)
    assert ends.connections.unauthenticated == 14


def test_two_users_five_sources_with_all_they_can_open_keep_no_user_out() -> None:
    ends = Ends(Connections(10_000, 1024, 2048, BYTES))
    for number in range(5 * 1024):
        ends.open(f"192.0.2.{number % 5}", "attacker")
    for number in range(1000):
        victim = ends.open(f"198.51.100.{number % 250}", "victim")
        assert victim.charge_to(f"user{number}")
    assert set(ends.evicted) == {"attacker"}


def test_two_users_strangers_with_tls_displace_each_other_before_they_take_much_memory() -> None:
    ends = Ends(Connections(100, 50, 100, 8 * 64 * 1024))  # room for four
    for _ in range(10):
        ends.open("neighbour", "neighbour")
    for number in range(4):
        ends.open(f"attacker{number % 2}", f"a{number}", has_tls=True)
    assert ends.evicted == []
    users = [ends.open("victim", has_tls=True) for _ in range(2)]
    assert ends.evicted == ["a0", "a1"]
    assert all(user.charge_to("ann") for user in users)
    for number in range(4, 7):
        ends.open(f"attacker{number % 2}", f"a{number}", has_tls=True)
    assert ends.evicted == ["a0", "a1", "a2"]
    assert ends.connections.unauthenticated == 14


def test_two_users_of_one_address_displace_its_oldest_connection() -> None:
    ends = Ends(Connections(40, 3, 40, BYTES))
    for number in range(3):
        ends.open("nat", f"a{number}")
    victim = ends.open("nat", "victim")
    assert ends.evicted == ["a0"]
    ends.open("nat", "a3")
    assert victim.charge_to("ann")
    assert ends.evicted == ["a0", "a1"]


def test_two_users_a_network_of_many_small_ones_is_one_source() -> None:
    """An attacker with a /48 has 65,536 networks of the size that a household's link gets."""
    ends = Ends(Connections(4000, 100, 40, BYTES))
    neighbour = ends.open("2001:db8:1:ff00::", "neighbour")
    household = ends.open("2001:db8:1:1ff::", "household")
    victim = ends.open("2001:db8:2::", "victim")
    for number in range(1000):
        ends.open(f"2001:db8:1:1{number % 250:02x}::", f"a{number}")
    assert ends.connections.unauthenticated == 3 + 199  # two shares for the /56, which the household takes part in
    assert len(ends.evicted) == 801
    assert "neighbour" not in ends.evicted
    assert "victim" not in ends.evicted
    assert neighbour.charge_to("ann")
    assert victim.charge_to("ann")
    assert household.has_left or household.charge_to("ann")


def test_two_users_networks_of_an_attacker_displace_each_other_before_they_displace_a_neighbour() -> None:
    ends = Ends(Connections(40, 100, 40, BYTES))
    for number in range(8):
        ends.open(f"2001:db8:1:{number}::", f"a{number}")
    ends.open("2001:db8:1:ff00::", "neighbour")
    ends.open("192.0.2.1", "victim")
    for number in range(30):
        ends.open(f"192.0.2.{10 + number}", f"v{number}")
    assert ends.evicted[:7] == [f"a{number}" for number in range(7)]  # then each network has one


def test_a_connection_of_a_user_is_never_evicted() -> None:
    ends = Ends(Connections(8, 4, 8, BYTES))
    first = ends.open("x", "user")
    assert first.charge_to("ann")
    for number in range(10):
        ends.open("x", f"x{number}")
    assert "user" not in ends.evicted
    assert not first.has_left


def test_a_connection_that_was_evicted_counts_no_more() -> None:
    ends = Ends(Connections(16, 1, 8, BYTES))
    first = ends.open("x")
    assert first.hold(300)
    second = ends.open("x")
    assert first.has_left
    assert (ends.connections.total, ends.connections.unauthenticated, ends.connections.held_bytes) == (1, 1, 0)
    first.free(300)
    first.leave()
    assert first.charge_to("ann")
    second.leave()
    assert (ends.connections.total, ends.connections.payers) == (0, [])


def test_two_users_a_user_has_no_more_connections_than_stay_free() -> None:
    """With few descriptors, the limit for each user can be more than there are."""
    connections = Connections(768, 4096, 2048, BYTES)
    for user, share in (("ann", 384), ("bob", 192), ("cid", 96)):
        mine = 0
        while (counted := admitted(connections, "y")).charge_to(user):
            mine += 1
        assert mine == share
        counted.leave()
    assert all(admitted(connections, "z").charge_to(f"user{number}") for number in range(20))
