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
        detector.on_receipted(segment)
        made.append(segment)
    return made


def test_an_older_acknowledgement_overtakes_nothing_more() -> None:
    detector = LossDetector()
    first, second, third, _ = segments(detector, 0, 0, 0, 0)
    detector.on_acknowledged(third)
    detector.on_acknowledged(second)
    assert detector.find_lost(PATIENCE_US, PATIENCE_US) == ([first], NEVER_US)


def test_a_forgotten_segment_proves_no_loss() -> None:
    detector = LossDetector()
    _, second = segments(detector, 0, 0)
    detector.forget(second)
    detector.forget(second)
    assert second.order == -1
    assert detector.find_lost(PATIENCE_US, PATIENCE_US) == ([], NEVER_US)


def test_a_new_receipt_moves_a_segment_to_the_end() -> None:
    detector = LossDetector()
    first, second = segments(detector, 0, 0)
    detector.on_receipted(first)
    assert detector.newest() is first
    detector.on_acknowledged(second)
    assert detector.find_lost(PATIENCE_US, PATIENCE_US) == ([], NEVER_US)


def test_clear_forgets_every_segment() -> None:
    detector = LossDetector()
    first, _ = segments(detector, 0, 0)
    assert detector.newest() is not None
    detector.clear()
    assert len(detector) == 0
    assert detector.newest() is None
    assert first.order == -1
