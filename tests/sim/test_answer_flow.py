"""The way of one streamed answer: a path may join pieces that come soon after each other, so that they become one."""

from random import Random

from tests.sim.answer_flow import AnswerFlow, FlowShape, FlowSink
from tests.sim.clock import MILLISECOND, Clock
from tests.sim.faults import FaultKind


class Heard:
    """The pieces that arrive at the endpoint. Those of the same time count as one, since the path may split a piece."""

    def __init__(self, shape: FlowShape, *faults: FaultKind) -> None:
        self.clock = Clock()
        self.pieces: dict[int, bytes] = {}  # by the time of their arrival, in milliseconds
        self.ended_ms: list[int] = []
        sink = FlowSink(self._piece, self._end, lambda: None)
        self._flow = AnswerFlow(self.clock, Random(1), shape, list(faults), lambda kind, piece: None, sink)

    def send(self, *pieces: tuple[int, bytes], ends: bool = True) -> None:
        """Send pieces that would arrive at these milliseconds; the last one may end the answer. Let 100 ms pass."""
        for number, (at_ms, piece) in enumerate(pieces, 1):
            self._flow.send(piece, at_ms * MILLISECOND, is_last=ends and number == len(pieces))
        until_us = self.clock.now_us + 100 * MILLISECOND
        while self.clock.step(until_us):
            pass

    def _piece(self, piece: bytes) -> None:
        now_ms = self.clock.now_us // MILLISECOND
        self.pieces[now_ms] = self.pieces.get(now_ms, b"") + piece

    def _end(self) -> None:
        self.ended_ms.append(self.clock.now_us // MILLISECOND)


PIECES = ((10, b"a"), (12, b"b"), (35, b"c"), (60, b"d"), (61, b"e"))


def test_pieces_arrive_one_by_one_on_a_path_that_does_not_join_them() -> None:
    heard = Heard(FlowShape())
    heard.send(*PIECES)
    assert heard.pieces == dict(PIECES)
    assert heard.ended_ms == [61]


def test_a_path_joins_the_pieces_that_come_within_its_time() -> None:
    heard = Heard(FlowShape(joins_us=20 * MILLISECOND))
    heard.send(*PIECES)
    assert heard.pieces == {30: b"ab", 55: b"c", 61: b"de"}  # the end of the answer lets the last ones go on at once
    assert heard.ended_ms == [61]


def test_joined_pieces_arrive_although_no_further_one_follows() -> None:
    heard = Heard(FlowShape(joins_us=20 * MILLISECOND))
    heard.send(*PIECES[:2], ends=False)
    assert heard.pieces == {30: b"ab"}
    heard.send((120, b"c"), (130, b"d"), ends=False)
    assert heard.pieces == {30: b"ab", 140: b"cd"}
    assert heard.ended_ms == []


def test_nothing_that_was_joined_arrives_after_a_cut() -> None:
    heard = Heard(FlowShape(joins_us=20 * MILLISECOND), FaultKind.STREAM_CUT)
    heard._flow._strikes_at = 2
    heard.send((10, b"abc"), (12, b"def"), (50, b"ghi"))
    assert heard.pieces == {30: b"ab"}
    assert len(heard.ended_ms) <= 1  # a cut looks like an end or like a failure
