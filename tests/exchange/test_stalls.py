"""A machine or a path that stands still for a moment delays everything: that is no sign of held pulls in the way."""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from statistics import median

import pytest

from tests.exchange.limits import SlotLoop
from tests.exchange.loop import Loop, data_packet
from tests.exchange.rig import carried, echoes
from tunnel.exchange import LaneConfig

MS = 1_000
SECOND = 1_000_000


@dataclass
class StallLoop(Loop):
    """At random times nothing arrives for up to `stall_us`, and then everything that came meanwhile arrives at once."""

    stall_us: int = 200 * MS
    between_us: int = 500 * MS
    chances: Random = field(default_factory=lambda: Random(3))
    free_us: int = 0  # nothing arrives before this time
    next_us: int = 0  # when the next stall begins

    def _answer(self, request_id: int, status: int, body: bytes, retry_after_us: int) -> None:
        while self.now >= self.next_us:
            self.free_us = self.next_us + self.chances.randrange(self.stall_us)
            self.next_us = self.free_us + self.chances.randrange(2 * self.between_us)
        if self.now < self.free_us:
            answer = super()._answer
            self.at(self.free_us, lambda: answer(request_id, status, body, retry_after_us))
        else:
            super()._answer(request_id, status, body, retry_after_us)


@dataclass
class JitterLoop(Loop):
    """Each answer is delayed by a random time of up to `most_us`."""

    most_us: int = 400 * MS
    chances: Random = field(default_factory=lambda: Random(3))

    def _answering(self, request_id: int, status: int, body: bytes) -> Callable[[], None]:
        pass_on = super()._answering(request_id, status, body)
        delay_us = self.chances.randrange(self.most_us)
        return lambda: self.at(self.now + delay_us, pass_on)


SLOW, FAST, FASTER = 5_000_000, 40_000_000, 100_000_000


@pytest.mark.parametrize("bytes_per_second", [SLOW, FAST, FASTER])
@pytest.mark.parametrize("kind", [Loop, StallLoop, JitterLoop])
def test_an_upload_does_not_end_held_pulls(kind: type[Loop], bytes_per_second: int) -> None:
    """Its bodies wait for each other, so some that took long are answered just after a hold."""
    loop = kind(LaneConfig(), one_way_us=1500, bytes_per_second=bytes_per_second)
    for _ in range(8):
        carried(loop, upload=True, seconds=1)
        assert not loop.lanes.is_narrow


@pytest.mark.parametrize("kind", [StallLoop, JitterLoop])
def test_messages_now_and_then_do_not_end_held_pulls(kind: type[Loop]) -> None:
    """A hold ends after each second of silence, so holds and answers often come together."""
    loop = kind(LaneConfig(), one_way_us=1500)
    for name in range(200):
        loop.queue.append(data_packet(name))
        loop.run(loop.now + 900 * MS + name % 7 * 40 * MS)
        assert not loop.lanes.is_narrow


@pytest.mark.parametrize("slots", [1, 2])
def test_a_sign_by_chance_is_forgotten_within_seconds(slots: int) -> None:
    """The path carries few requests at once for a moment only: soon pulls are held again, and echoes are quick."""
    loop = SlotLoop(LaneConfig(lanes_start=4), one_way_us=500)
    loop.slots = slots
    until_us = 20 * SECOND
    while loop.now < until_us and not loop.lanes.is_narrow:
        echoes(loop, 1)
    assert loop.lanes.is_narrow
    loop.slots = 100
    began_us = loop.now
    while loop.lanes.is_narrow:
        echoes(loop, 1)
        loop.run(loop.now + 100 * MS)
        assert loop.now - began_us < 30 * SECOND
    assert median(echoes(loop, 9)) < 5 * MS
