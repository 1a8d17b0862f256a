"""Shares of the relay's processor time."""

from tunnel.turns.shares import ProcessorShares

MS = 1_000


def test_a_user_who_is_alone_does_not_wait() -> None:
    shares, now = ProcessorShares(), 0
    waits = []
    for _ in range(100):
        now += 10 * MS
        waits.append(shares.charge("ann", 10 * MS, now))
    assert not any(waits)


def test_two_users_one_gets_at_most_half_of_the_time_and_the_other_does_not_wait() -> None:
    shares, now, next_us = ProcessorShares(), 0, 0
    spent = {"eve": 0, "ann": 0}
    while now < 10_000 * MS:
        if now >= next_us:  # eve is the attacker: she sends whenever the relay reads
            now += 8 * MS
            spent["eve"] += 8 * MS
            next_us = now + shares.charge("eve", 8 * MS, now)
        now += 1 * MS
        spent["ann"] += 1 * MS // 10
        assert shares.charge("ann", 1 * MS // 10, now) == 0
    assert spent["eve"] <= 0.5 * now


def test_a_debt_is_paid_by_time_and_no_wait_is_longer_than_250_ms() -> None:
    shares = ProcessorShares()
    assert shares.charge("eve", 20 * MS, 0) == 0
    assert shares.charge("eve", 10 * MS, 0) == 10 * MS
    assert shares.charge("eve", 0, 10 * MS) == 0
    assert shares.charge("ann", 29 * MS, 10 * MS) == 20 * MS  # 9 ms above the burst, at a share of 0.45
    assert shares.charge("eve", 10_000 * MS, 10 * MS) == 250 * MS


def test_users_who_have_left_take_no_share_and_leave_the_debts_of_others() -> None:
    shares = ProcessorShares()
    shares.charge("eve", 1, 0)
    shares.charge("ann", 28 * MS, 999 * MS)
    assert shares.charge("ann", 0, 1000 * MS) == int(7_550 / 0.45)
    assert shares.charge("ann", 0, 1001 * MS) == 6_550


def test_two_users_have_shorter_turns_than_one() -> None:
    shares = ProcessorShares()
    assert shares.turn_us == 5 * MS
    shares.charge("eve", 1, 0)
    assert shares.turn_us == 5 * MS
    shares.charge("ann", 1, 0)
    assert shares.turn_us == 2 * MS
    shares.charge("ann", 1, 2000 * MS)
    assert shares.turn_us == 5 * MS


def test_two_users_a_refund_undoes_a_charge_and_gives_no_more() -> None:
    shares = ProcessorShares()
    shares.charge("@unauthenticated", 25 * MS, 0)
    shares.refund("@unauthenticated", 25 * MS)
    shares.refund("unknown", 25 * MS)
    assert shares.charge("@unauthenticated", 20 * MS, 0) == 0
    shares.refund("@unauthenticated", 90 * MS)
    assert shares.charge("@unauthenticated", 21 * MS, 0) == 1 * MS
