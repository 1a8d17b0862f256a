"""The owners of service names: which user gets a name, for how long, and how many names a user keeps (PROTOCOL 2.8)."""

from tunnel_servlet.switch.routes.owners import NameOwners


def test_a_name_belongs_to_the_user_who_took_it() -> None:
    owners = NameOwners(100, 2)
    assert owners.owner("a", 0) == ""
    owners.take("a", "ann")
    assert owners.owner("a", 1 << 40) == "ann"


def test_a_name_is_kept_for_a_while_and_then_free() -> None:
    owners = NameOwners(100, 2)
    owners.take("a", "ann")
    owners.on_left("a", 5)
    assert owners.owner("a", 104) == "ann"
    assert owners.owner("a", 105) == ""
    owners.take("a", "bob")
    assert owners.owner("a", 1 << 40) == "bob"


def test_an_owner_who_is_back_keeps_the_name_without_a_limit() -> None:
    owners = NameOwners(100, 2)
    owners.take("a", "ann")
    owners.on_left("a", 0)
    owners.take("a", "ann")
    assert owners.owner("a", 1 << 40) == "ann"


def test_two_users_one_who_leaves_many_names_does_not_free_those_of_the_other() -> None:
    owners = NameOwners(100, 2)
    owners.take("mine", "ann")
    owners.on_left("mine", 0)
    for number in range(50):
        owners.take(f"n{number}", "eve")
        owners.on_left(f"n{number}", 1)
    assert owners.owner("mine", 2) == "ann"
    assert [number for number in range(50) if owners.owner(f"n{number}", 2)] == [48, 49]


def test_two_users_names_are_free_when_their_owner_may_not_have_them_any_more() -> None:
    owners = NameOwners(100, 4)
    for name, user in (("a", "ann"), ("b", "ann"), ("c", "bob"), ("up", "ann")):
        owners.take(name, user)
    for name in "abc":
        owners.on_left(name, 0)
    owners.forget_unless(lambda user, name: user == "bob" or name == "b")
    assert [owners.owner(name, 1) for name in ("a", "b", "c", "up")] == ["", "ann", "bob", "ann"]


def test_a_name_without_an_owner_cannot_be_left() -> None:
    owners = NameOwners(100, 1)
    owners.on_left("a", 0)
    assert owners.owner("a", 0) == ""
