"""Clause 4.8: which packets count as lost, by the time since their receipt."""

from tunnel.core.constants import NEVER_US
from tunnel.core.send.loss import LossDetector
from tunnel.core.send.window import Segment
from tunnel.wire import PacketType

PATIENCE_US = 100


def segments(detector: LossDetector, *receipts_us: int) -> list[Segment]:
    made = []
    for number, receipt_us in enumerate(receipts_us):
        segment = Segment(number, PacketType.DATA, b"x", number, 1)
        segment.receipt_us = receipt_us
        detector.receipted(segment)
        made.append(segment)
    return made


def test_nothing_is_lost_before_something_later_is_acknowledged() -> None:
    detector = LossDetector()
    segments(detector, 0, 1, 2)
    assert detector.lost(10_000, PATIENCE_US) == ([], NEVER_US)
    assert len(detector) == 3


def test_overtaken_segments_are_lost_when_patience_ends() -> None:
    detector = LossDetector()
    first, second, third, fourth = segments(detector, 0, 50, 60, 70)
    detector.acknowledged(third)
    assert detector.lost(99, PATIENCE_US) == ([], 100)
    assert detector.lost(100, PATIENCE_US) == ([first], 150)
    assert detector.lost(150, PATIENCE_US) == ([first, second], NEVER_US)
    assert fourth.order == 3


def test_an_older_acknowledgement_overtakes_nothing_more() -> None:
    detector = LossDetector()
    first, second, third, _ = segments(detector, 0, 0, 0, 0)
    detector.acknowledged(third)
    detector.acknowledged(second)
    assert detector.lost(PATIENCE_US, PATIENCE_US) == ([first], NEVER_US)


def test_a_forgotten_segment_proves_no_loss() -> None:
    detector = LossDetector()
    _, second = segments(detector, 0, 0)
    detector.forget(second)
    detector.forget(second)
    assert second.order == -1
    assert detector.lost(PATIENCE_US, PATIENCE_US) == ([], NEVER_US)


def test_a_new_receipt_moves_a_segment_to_the_end() -> None:
    detector = LossDetector()
    first, second = segments(detector, 0, 0)
    detector.receipted(first)
    assert detector.newest() is first
    detector.acknowledged(second)
    assert detector.lost(PATIENCE_US, PATIENCE_US) == ([], NEVER_US)


def test_clear_forgets_every_segment() -> None:
    detector = LossDetector()
    first, _ = segments(detector, 0, 0)
    assert detector.newest() is not None
    detector.clear()
    assert len(detector) == 0
    assert detector.newest() is None
    assert first.order == -1


def test_an_acknowledgement_of_the_last_segment_overtakes_all_others() -> None:
    detector = LossDetector()
    first, second = segments(detector, 0, 0)
    detector.acknowledged(second)
    assert detector.lost(PATIENCE_US, PATIENCE_US) == ([first], NEVER_US)
