"""Bytes are counted at every level that has to answer for them (9.2)."""

import pytest

from tunnel_servlet.switch.budgets import Budget


def family() -> tuple[Budget, Budget, Budget]:
    process = Budget(1000, 750)
    user = Budget(400, 300, process)
    return process, user, Budget(200, 150, user)


def test_a_pool_lies_within_what_may_be_held() -> None:
    with pytest.raises(ValueError, match="does not lie within"):
        Budget(10, 11)
    with pytest.raises(ValueError, match="does not lie within"):
        Budget(10, 0)


def test_what_is_counted_at_one_level_is_counted_above() -> None:
    process, user, mailbox = family()
    mailbox.hold(100)
    mailbox.let_go(60)
    mailbox.exceed(30)
    assert [level.held for level in mailbox.levels()] == [100, 100, 100]
    assert [process.outstanding, user.beyond] == [60, 30]
    mailbox.release(100)
    mailbox.let_go(-60)
    mailbox.exceed(-30)
    assert [process.held, user.outstanding, mailbox.beyond] == [0, 0, 0]


def test_free_is_what_the_tightest_level_has() -> None:
    process, user, mailbox = family()
    assert mailbox.free() == 150
    user.exceed(200)
    assert mailbox.free() == 100
    process.exceed(600)
    assert mailbox.free() == -50


def test_a_reservation_is_made_at_every_level_or_at_none() -> None:
    process, user, mailbox = family()
    assert mailbox.reserve(150)
    assert not mailbox.reserve(1)
    mailbox.unreserve(150)
    assert Budget(400, 300, user).reserve(290)
    assert not mailbox.reserve(20)
    assert [process.reserved, user.reserved, mailbox.reserved] == [290, 290, 0]


def test_nothing_passes_the_hard_limit_of_any_level() -> None:
    process, user, mailbox = family()
    assert mailbox.admits(200)
    assert not mailbox.admits(201)
    process.hold(900)
    assert mailbox.admits(100)
    assert not mailbox.admits(101)
    user.hold(1)
    assert not mailbox.admits(100)


def test_a_level_that_is_closed_leaves_nothing_above() -> None:
    process, user, mailbox = family()
    user.hold(1)
    mailbox.reserve(10)
    mailbox.hold(20)
    mailbox.let_go(20)
    mailbox.exceed(5)
    mailbox.close()
    assert [process.reserved, process.beyond, process.outstanding, process.held] == [0, 0, 0, 1]
    assert mailbox.held == 0


def test_what_is_free_is_free_at_every_level() -> None:
    above = Budget(1000, 800)
    below = Budget(1000, 1000, above)
    assert above.reserve(100)
    assert below.free() == 700
    below.let_go(50)
    assert (below.free(), above.free()) == (650, 650)
    alone = Budget(1000, 1000)
    alone.let_go(50)
    assert alone.free() == 950
