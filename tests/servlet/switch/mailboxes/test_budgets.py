"""Bytes are counted at every level of budgets: mailbox, user and process. A *pool* is the *room* of PROTOCOL 9.2."""

import pytest

from tests.servlet.support import data
from tunnel.wire import (
    Frame,
    encode_packets,
    frame_of,
    parse_frames,
)
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES
from tunnel_servlet.switch.mailboxes.budgets import Budget, charge, keep
from tunnel_servlet.switch.own_packets import (
    dropped_frame,
    edge_frame,
)


def parsed(*sizes: int) -> list[Frame]:
    body = b"".join(encode_packets([data(1, 2, number, bytes(size)) for number, size in enumerate(sizes)]))
    return parse_frames(body)[0]


def family() -> tuple[Budget, Budget, Budget]:
    process = Budget(1000, 750)
    user = Budget(400, 300, process)
    return process, user, Budget(200, 150, user)


def test_a_pool_is_no_larger_than_the_hard_limit() -> None:
    with pytest.raises(ValueError, match="must be above 0 and at most"):
        Budget(10, 11)
    with pytest.raises(ValueError, match="must be above 0 and at most"):
        Budget(10, 0)


def test_bytes_counted_at_one_level_are_counted_at_those_above() -> None:
    process, user, mailbox = family()
    mailbox.hold(100)
    mailbox.let_go(60)  # of the 100 bytes held, 60 have left a queue and are not confirmed yet
    mailbox.exceed(30)  # 30 bytes wait beyond the reservations
    assert [level.held for level in mailbox.levels()] == [100, 100, 100]
    assert [process.outstanding, user.beyond] == [60, 30]
    mailbox.release(100)
    mailbox.let_go(-60)
    mailbox.exceed(-30)
    assert [process.held, user.outstanding, mailbox.beyond] == [0, 0, 0]


def test_free_is_the_room_at_the_tightest_level() -> None:
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


def test_closing_a_level_removes_its_bytes_from_those_above() -> None:
    process, user, mailbox = family()
    user.hold(1)
    mailbox.reserve(10)
    mailbox.hold(20)
    mailbox.let_go(20)
    mailbox.exceed(5)
    mailbox.close()
    assert [process.reserved, process.beyond, process.outstanding, process.held] == [0, 0, 0, 1]
    assert mailbox.held == 0


def test_free_bytes_are_limited_by_the_level_above() -> None:
    above = Budget(1000, 800)
    below = Budget(1000, 1000, above)
    assert above.reserve(100)
    assert below.free() == 700
    below.let_go(50)
    assert (below.free(), above.free()) == (650, 650)
    alone = Budget(1000, 1000)
    alone.let_go(50)
    assert alone.free() == 950


def test_9_2_stored_packets_are_charged_except_the_types_dropped_and_edge() -> None:
    assert charge(frame_of(data(1, 2, 3, bytes(100)))) == 124 + FRAME_OVERHEAD_BYTES
    assert charge(dropped_frame(1, 1)) == charge(edge_frame(1, 1, 1)) == 0


def test_9_2_a_small_packet_does_not_keep_a_large_body_alive() -> None:
    budget = Budget(1000, 1000)
    small, large = parsed(10, 1000)
    for frame in (small, large):
        before = bytes(frame.data)
        keep(frame, budget)
        assert frame.data == before
    assert isinstance(small.data, bytes)
    assert isinstance(large.data, memoryview)


def test_9_2_under_pressure_a_packet_keeps_a_body_of_at_most_twice_its_size_alive() -> None:
    budget = Budget(1000, 1000)
    budget.hold(200)
    eighths = parsed(*[100] * 8)
    keep(eighths[0], budget)
    assert isinstance(eighths[0].data, bytes)
    (alone,) = parsed(100)
    keep(alone, budget)
    assert isinstance(alone.data, memoryview)


def test_9_2_a_packet_that_is_not_a_slice_is_not_copied() -> None:
    frame = frame_of(data(1, 2, 3))
    before = frame.data
    keep(frame, Budget(1, 1))
    assert frame.data is before


@pytest.mark.parametrize(("held", "copied"), [(124, False), (125, True)])
def test_9_2_pressure_begins_at_an_eighth_of_the_mailbox(held: int, copied: bool) -> None:
    budget = Budget(1000, 1000)
    budget.hold(held)
    eighths = parsed(*[100] * 8)
    keep(eighths[0], budget)
    assert isinstance(eighths[0].data, bytes) is copied


def test_9_2_a_packet_of_exactly_half_its_body_is_not_copied() -> None:
    budget = Budget(1000, 1000)
    budget.hold(500)
    halves = parsed(100, 100)
    keep(halves[0], budget)
    assert isinstance(halves[0].data, memoryview)
