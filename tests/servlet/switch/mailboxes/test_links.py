"""The relay's record of a link: receipts come in order, and also for batches that were taken back (PROTOCOL 8.2)."""

import pytest

from tests.servlet.support import data, frames_of
from tunnel.wire import HEADER_SIZE, Frame
from tunnel_servlet.switch.mailboxes.links import ServedLink
from tunnel_servlet.switch.stats import Traffic

KIB = 1024
MS = 1_000
SECOND = 1_000_000


def sent(*times: int) -> tuple[ServedLink, list[list[Frame]]]:
    link = ServedLink(5)
    batches = [frames_of(data(1, 2, time), data(1, 2, time + 1)) for time in times]
    for time, batch in zip(times, batches, strict=True):
        link.on_sent(batch, time)
    return link, batches


def test_8_2_a_receipt_covers_all_batches_up_to_it() -> None:
    link, (first, second, third) = sent(10, 20, 30)
    assert link.unreceipted_bytes == 6 * 29
    assert link.take_receipted(2, 0) == first + second
    assert link.unreceipted_bytes == 2 * 29
    assert link.unreceipted_frames() == third
    assert link.take_receipted(5, 0) == third
    assert link.unreceipted_bytes == 0


def test_8_3_batches_without_a_receipt_are_returned_in_order() -> None:
    link, (_, second, third) = sent(10, 20, 30)
    link.take_receipted(1, 0)
    assert link.take_back() == second + third
    assert link.unreceipted_bytes == 0


def test_8_2_receipts_for_batches_taken_back_do_not_cover_later_ones() -> None:
    link, _ = sent(10, 20)
    link.take_back()
    later = frames_of(data(1, 2, 9))
    link.on_sent(later, 40)
    assert link.take_receipted(1, 0) == []
    assert link.take_receipted(2, 0) == later


def test_a_link_is_stalled_while_an_old_batch_has_no_receipt() -> None:
    link, _ = sent(10)
    assert not link.is_stalled(10, 20)
    assert link.is_stalled(11, 20)
    link.take_receipted(1, 0)
    assert not link.is_stalled(11, 20)


def test_receipts_for_several_batches_taken_back_are_discarded() -> None:
    link = ServedLink(1)
    for now in (1, 2):
        link.on_sent(frames_of(data(1, 2, now)), now)
        link.take_back()
    link.on_sent(frames_of(data(1, 2, 3)), 3)
    assert link.take_receipted(2, 0) == []
    assert len(link.take_receipted(1, 0)) == 1


def test_the_shortest_round_trip_since_the_last_look_is_kept() -> None:
    link, _ = sent(100, 200, 300)
    assert link.take_round_trip() == 0
    link.take_receipted(2, 1200)  # the newer of the two counts
    assert link.take_round_trip() == 1000
    assert link.take_round_trip() == 0
    for left, receipted in ((None, 1500), (2000, 2400), (3000, 3900)):
        if left is not None:
            link.on_sent(frames_of(data(1, 2, left)), left)
        link.take_receipted(1, receipted)
    assert link.take_round_trip() == 400
    link.on_sent(frames_of(data(1, 2, 5)), 5000)
    link.take_back()
    link.take_receipted(1, 9000)  # the batch was taken back before
    assert link.take_round_trip() == 0
    link.on_sent(frames_of(data(1, 2, 6)), 9000)
    link.take_receipted(1, 9000)
    assert link.take_round_trip() == 1


def batch(size: int) -> list[Frame]:
    return frames_of(data(1, 2, 1, bytes(size - HEADER_SIZE)))


def has_room(link: ServedLink) -> bool:
    return link.room(1 << 30, 1 << 30) > 0


def lone() -> ServedLink:
    """A link of an endpoint elsewhere that carries alone. A first receipt came after 10 ms."""
    link = ServedLink(1, traffic=Traffic())
    link.on_sent(batch(KIB), 0)
    link.take_receipted(1, 10 * MS)
    return link


def test_what_waits_on_a_link_that_carries_alone_is_bounded_by_a_window_that_receipts_shrink_and_raise() -> None:
    link = lone()
    link.on_sent(batch(256 * KIB - 1), SECOND)
    assert has_room(link)
    link.on_sent(batch(KIB), SECOND)
    assert not has_room(link)
    link.take_receipted(2, 5 * SECOND)  # the path takes so long for it: half as much may wait from now on
    link.on_sent(batch(128 * KIB + KIB), 5 * SECOND)
    assert not has_room(link)
    link.take_receipted(1, 5 * SECOND + 20 * MS)
    link.on_sent(batch(128 * KIB + KIB), 6 * SECOND)
    assert has_room(link)


def test_a_link_in_the_relays_process_has_no_window() -> None:
    link = ServedLink(1)
    link.on_sent(batch(1024 * KIB), 0)
    assert has_room(link)


def test_batches_that_were_taken_back_still_fill_the_path_of_a_link_that_carries_alone() -> None:
    link = lone()
    link.on_sent(batch(256 * KIB), SECOND)
    link.take_back()
    assert not has_room(link)
    link.take_receipted(1, 5 * SECOND)  # so late that half as much may wait
    link.on_sent(batch(128 * KIB), 5 * SECOND)
    assert not has_room(link)


def test_a_link_whose_receipts_came_late_stalls_later_but_after_eight_seconds_at_most() -> None:
    link = lone()
    for sent_us, took_us, stalls_us in ((SECOND, 2 * SECOND, 4 * SECOND), (20 * SECOND, 9 * SECOND, 8 * SECOND)):
        link.on_sent(batch(KIB), sent_us)
        link.take_receipted(1, sent_us + took_us)
        now = sent_us + took_us
        link.on_sent(batch(KIB), now)
        assert not link.is_stalled(now + stalls_us - SECOND, now + stalls_us)
        assert link.is_stalled(now + stalls_us + 1 - SECOND, now + stalls_us + 1)
        link.take_receipted(1, now + 1)


@pytest.mark.parametrize("taken_back", [False, True])
def test_what_an_application_sends_now_and_then_shows_no_high_rate(taken_back: bool) -> None:
    """One receipt covers what was sent in 25 ms, and most of it was sent long before the newest."""
    link = lone()
    link.on_sent(batch(KIB), SECOND)
    link.on_sent(batch(KIB), SECOND + 23 * MS)
    if taken_back:
        link.take_back()
    link.on_sent(batch(KIB), SECOND + 24 * MS)
    link.take_receipted(3, SECOND + 25 * MS)
    link.on_sent(batch(256 * KIB), 2 * SECOND)
    assert not has_room(link)


def test_batches_that_were_taken_back_from_a_link_that_shares_the_load_teach_it_what_the_path_carries() -> None:
    link = ServedLink(1, traffic=Traffic(), shares=True)
    link.on_sent(batch(64 * KIB), 0)
    assert not has_room(link)
    link.take_back()
    assert not has_room(link)
    link.take_receipted(1, SECOND // 2)
    link.on_sent(batch(128 * KIB), SECOND)
    assert has_room(link)
    link.on_sent(batch(128 * KIB), SECOND)
    assert not has_room(link)


def test_a_link_that_shares_the_load_stalls_only_while_a_batch_waits() -> None:
    link = ServedLink(1, traffic=Traffic(), shares=True)
    link.on_sent(batch(KIB), SECOND)
    assert link.is_stalled(0, 10 * SECOND)
    link.take_receipted(1, SECOND + MS)
    assert not link.is_stalled(0, 10 * SECOND)


@pytest.mark.parametrize("shares", [False, True])
def test_a_time_without_batches_lowers_no_rate(shares: bool) -> None:
    link = ServedLink(1, traffic=Traffic(), shares=shares)
    for sent_us, size in ((0, KIB), (9 * SECOND, 64 * KIB)):
        link.on_sent(batch(size), sent_us)
        link.take_receipted(1, sent_us + 100 * MS)
    link.on_sent(batch(1024 * KIB), 10 * SECOND)
    assert has_room(link)
