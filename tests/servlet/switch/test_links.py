"""The relay's record of a link: receipts come in order, and also for batches that were taken back (PROTOCOL 8.2)."""

from tests.servlet.support import data, frames_of
from tunnel.wire import Frame
from tunnel_servlet.switch.links import ServedLink


def sent(*times: int) -> tuple[ServedLink, list[list[Frame]]]:
    link = ServedLink(5)
    batches = [frames_of(data(1, 2, time), data(1, 2, time + 1)) for time in times]
    for time, batch in zip(times, batches, strict=True):
        link.sent(batch, time)
    return link, batches


def test_8_2_a_receipt_covers_all_batches_up_to_it() -> None:
    link, (first, second, third) = sent(10, 20, 30)
    assert link.unreceipted_bytes == 6 * 29
    assert link.receipted(2) == first + second
    assert link.unreceipted_bytes == 2 * 29
    assert link.unreceipted() == third
    assert link.receipted(5) == third
    assert link.unreceipted_bytes == 0


def test_8_3_batches_without_a_receipt_are_returned_in_order() -> None:
    link, (_, second, third) = sent(10, 20, 30)
    link.receipted(1)
    assert link.take_back() == second + third
    assert link.unreceipted_bytes == 0


def test_8_2_receipts_for_batches_taken_back_do_not_cover_later_ones() -> None:
    link, _ = sent(10, 20)
    link.take_back()
    later = frames_of(data(1, 2, 9))
    link.sent(later, 40)
    assert link.receipted(1) == []
    assert link.receipted(2) == later


def test_a_link_is_stalled_while_an_old_batch_has_no_receipt() -> None:
    link, _ = sent(10)
    assert not link.is_stalled(10)
    assert link.is_stalled(11)
    link.receipted(1)
    assert not link.is_stalled(11)


def test_receipts_for_several_batches_taken_back_are_discarded() -> None:
    link = ServedLink(1)
    for now in (1, 2):
        link.sent(frames_of(data(1, 2, now)), now)
        link.take_back()
    link.sent(frames_of(data(1, 2, 3)), 3)
    assert link.receipted(2) == []
    assert len(link.receipted(1)) == 1
