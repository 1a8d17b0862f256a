"""The last refusals: of each user some, whatever another user asks for."""

from __future__ import annotations

from tunnel_servlet.web.live.denials import Denials


class Clock:
    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


def test_the_same_refusal_counts_up_and_the_newest_comes_first() -> None:
    clock = Clock()
    denials = Denials(clock)
    denials.add("ann", "db:1", "old")
    denials.add("bob", "db:2", "why")
    clock.now = 5_000_000
    denials.add("ann", "db:1", "new")
    clock.now = 7_500_000
    rows = denials.rows()
    assert [(row.user, row.what, row.text, row.count, row.age_s) for row in rows] == [
        ("ann", "db:1", "new", 2, 2),
        ("bob", "db:2", "why", 1, 7),
    ]


def test_two_users_one_who_asks_for_much_displaces_only_the_own_refusals() -> None:
    clock = Clock()
    denials = Denials(clock)
    denials.add("bob", "db:1", "why")
    for number in range(5000):
        clock.now += 1
        denials.add("ann", f"host-{number}:1", "why")
    found = denials.rows()
    assert [row.what for row in found if row.user == "bob"] == ["db:1"]
    assert [row.what for row in found if row.user == "ann"] == [f"host-{number}:1" for number in range(4999, 4979, -1)]


def test_the_number_of_users_is_bounded_and_those_who_asked_last_stay() -> None:
    denials = Denials(Clock())
    for number in range(60):
        denials.add(f"user-{number}", "db:1", "why")
        denials.add("ann", "db:1", "why")
    users = {row.user for row in denials.rows()}
    assert len(users) == 50
    assert {"ann", "user-59", "user-11"} <= users
