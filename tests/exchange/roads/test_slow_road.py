"""The ladder leaves a slow road where exchanges carry more, and stays on every other road."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tunnel.exchange import Ladder, Refusal, Road, Step
from tunnel.exchange.backoff import Backoff
from tunnel.exchange.roads.slow_road import Carried

MS = 1_000
SECOND = 1_000 * MS
KIB = 1024
LEAVES = "link", "leave"
TRIES = "link", "try"


class Path:
    """A ladder on the link, on a path that shapes each HTTP connection, with one flow. The clock is virtual.

    The flow is `road` bytes/s on the link and `exchanges` bytes/s otherwise; receipts on the link take `took_us`.
    """

    def __init__(self, *, road: int = 64 * KIB, exchanges: int = 128 * KIB, is_down: bool = True, **more: Any) -> None:
        self.road, self.exchanges, self.is_down = road, exchanges, is_down
        self.took_us = 400 * MS
        self.now = 0
        self.carried = Carried()
        self.seen: list[tuple[int, str, str]] = []  # second, road, step
        self.ladder = Ladder([Road("link"), Road("websocket")], Random(1), carried=self.carried, **more)
        self.ladder.on_attached(0)
        self.obey()
        self.ladder.on_receipted(1, 0, 0, took_us=20 * MS)  # the road is still idle

    def obey(self) -> None:
        self.ladder.handle_timeout(self.now)
        while (decision := self.ladder.poll_decision()) is not None:
            self.seen.append((self.now // SECOND, decision.road, decision.step.value))
            if decision.step is Step.TRY:
                self.ladder.on_proven(decision.road, self.now)

    def run(self, seconds: int) -> list[tuple[str, str]]:
        """Let the flow go on; return the roads that were tried, used and left meanwhile."""
        known = len(self.seen)
        for tick in range(10 * seconds):
            self.now += 100 * MS
            if self.ladder.used_road:
                self.move_on_the_road(tick)
            elif self.is_down:
                self.carried.down_bytes += self.exchanges // 10
            else:
                self.carried.up_bytes += self.exchanges // 10
            due_us = self.ladder.next_timeout()
            if due_us is not None and due_us <= self.now:
                self.obey()
        return [(road, step) for _, road, step in self.seen[known:] if step not in ("probe", "use")]

    def move_on_the_road(self, tick: int) -> None:
        size = self.road // 10
        if self.is_down:
            self.ladder.on_received(size, self.now)
        self.ladder.on_receipted(1 if self.is_down else size, 0, self.now, took_us=self.took_us)
        self.obey()

    def next_leave(self) -> int:
        """Let the flow go on until the road is left; return how many seconds that took."""
        began = self.now
        while LEAVES not in self.run(1):
            assert self.now - began < 3000 * SECOND
        return (self.now - began) // SECOND


@pytest.mark.parametrize("is_down", [True, False])
def test_a_slow_road_is_left_where_exchanges_carry_more(is_down: bool) -> None:
    path = Path(is_down=is_down)
    assert path.run(9) == [LEAVES]
    assert (path.ladder.used_road, path.ladder.road_to_remember) == ("", "link")
    report = path.ladder.reports()[0]
    assert report.state == "resting"
    assert "63 KiB/s" in report.why
    assert path.run(60) == []  # no road is tried while exchanges carry more
    assert path.ladder.keeps_streams is not is_down  # one streamed answer is as slow as one road


@pytest.mark.parametrize(
    ("exchanges", "trial_s"),
    [(64 * KIB, 10), (90 * KIB, 10), (20 * KIB, 4), (0, 4)],
)
def test_a_road_that_is_no_slower_than_exchanges_is_used_again_after_a_bounded_trial(
    exchanges: int, trial_s: int
) -> None:
    path = Path(exchanges=exchanges)
    assert path.run(9) == [LEAVES]
    left_s = path.seen[-1][0]
    assert path.run(20) == [TRIES]
    assert path.ladder.used_road == "link"
    assert path.ladder.keeps_streams
    assert path.seen[-2][0] - left_s == trial_s


def test_trials_in_vain_become_rare() -> None:
    path = Path(exchanges=64 * KIB)
    path.next_leave()
    pauses = [path.next_leave() for _ in range(7)]
    assert [round(pause, -1) for pause in pauses] == [70, 130, 250, 490, 610, 610, 610]


def test_the_road_rests_longer_each_time_while_the_flow_lasts() -> None:
    path = Path()
    path.next_leave()
    pauses = [path.next_leave() for _ in range(6)]
    assert [round(pause, -1) for pause in pauses] == [80, 140, 260, 500, 620, 620]


def test_the_rest_is_short_again_after_the_flow_has_ended() -> None:
    path = Path()
    for _ in range(3):
        path.next_leave()
    path.run(12)
    path.exchanges = 0
    assert path.run(4) == [TRIES]
    path.exchanges = 128 * KIB
    path.next_leave()
    assert round(path.next_leave(), -1) == 80


def test_trials_are_made_again_soon_after_one_that_has_shown_more() -> None:
    path = Path(exchanges=64 * KIB)
    for _ in range(3):
        path.next_leave()
    path.run(12)
    path.exchanges = 128 * KIB
    path.next_leave()
    path.run(12)
    path.exchanges = 64 * KIB
    path.next_leave()
    assert round(path.next_leave(), -1) == 70


def test_the_road_is_used_again_as_soon_as_the_flow_ends() -> None:
    path = Path()
    assert path.run(30) == [LEAVES]
    path.exchanges = 10 * KIB
    assert path.run(4) == [TRIES]
    assert path.ladder.keeps_streams
    path.exchanges = 128 * KIB
    assert path.run(9) == [LEAVES]  # the path is known to be faster with exchanges: nothing needs to be waited for


def test_a_flow_that_ends_in_a_trial_that_has_shown_more_does_not_delay_the_next_trial() -> None:
    path = Path()
    assert path.run(12) == [LEAVES]
    path.exchanges = 0
    assert path.run(4) == [TRIES]
    path.exchanges = 128 * KIB
    assert path.run(9) == [LEAVES]


@pytest.mark.parametrize(
    "change",
    [
        {"road": 700 * KIB},  # fast enough for everyone
        {"road": 100 * 1024 * KIB},
        {"road": 10 * KIB},  # too little to be worth a trial
        {"road": 0},
        {"took_us": 150 * MS},  # no queue: an application that is slow
        {"took_us": 20 * MS},
    ],
)
def test_no_other_road_is_left(change: dict[str, int]) -> None:
    path = Path()
    for name, value in change.items():
        setattr(path, name, value)
    assert path.run(200) == []
    assert path.ladder.used_road == "link"


def test_a_flow_that_is_not_steady_leaves_no_road() -> None:
    path = Path()
    for second in range(60):
        path.road = (40 if second // 2 % 2 else 100) * KIB
        assert path.run(1) == []


def test_one_quick_receipt_in_a_period_shows_that_there_is_no_queue() -> None:
    path = Path()
    for second in range(60):
        assert path.run(1) == []
        if second % 2:
            path.ladder.on_receipted(1, 0, path.now, took_us=30 * MS)


def test_a_flow_with_pauses_leaves_no_road() -> None:
    path = Path()
    for _ in range(20):
        assert path.run(5) == []
        path.now += 5 * SECOND


def test_an_eager_ladder_never_leaves_its_road() -> None:
    assert Path(eager=True).run(200) == []


def test_a_slow_websocket_is_left_and_used_again() -> None:
    path = Path(exchanges=64 * KIB)
    path.ladder.on_lost("link", "cut", 0)
    path.ladder._rung("link").rest_us = 600 * SECOND
    path.ladder._rung("link").rests_until_us = 600 * SECOND
    path.ladder.handle_timeout(3 * SECOND)
    path.now = 3 * SECOND
    path.obey()
    assert path.ladder.used_road == "websocket"
    assert path.run(9) == [("websocket", "leave")]
    assert path.run(20) == [("websocket", "try")]


def test_no_road_is_left_while_another_is_tried() -> None:
    path = Path()
    path.ladder.renew_soon(0)
    path.obey()
    assert path.seen[-1][2] == "renew"
    assert path.run(20) == []
    path.ladder.on_renewed(path.now)
    assert path.run(9) == [LEAVES]


def test_no_road_is_left_during_a_pause_of_the_back_off() -> None:
    backoff = Backoff(Random(1))
    path = Path(backoff=backoff)
    for _ in range(20):
        backoff.on_refused(Refusal.BUSY, path.now, path.now)
        assert path.run(1) == []
    backoff.on_answered(path.now)
    assert path.run(9) == [LEAVES]


@pytest.mark.parametrize("waits", [True, False])
def test_a_road_whose_receipts_do_not_come_is_left_only_if_something_waits_for_one(waits: bool) -> None:
    """Behind a long queue, a receipt takes longer than the three periods; the road is doubted, and still carries."""
    path = Path()
    path.ladder.on_sent(100 if waits else 0, 0)
    seen = []
    for _ in range(9 * 4):
        path.now += 250 * MS
        path.ladder.on_received(16 * KIB, path.now)
        known = len(path.seen)
        path.obey()
        if path.seen[known:] and path.seen[known:][0][2] == "probe":
            path.ladder.on_sent(0, path.now)  # it is lost
        seen += [step for _, _, step in path.seen[known:]]
    assert ("leave" in seen) is waits
    assert ("yield" in seen) is waits
    assert path.ladder.reports()[0].state == ("resting" if waits else "used")


def test_another_connection_must_be_slow_itself() -> None:
    path = Path()
    for _ in range(20):
        assert path.run(5) == []
        path.ladder.on_renewed(path.now)


def test_a_trial_ends_with_its_attachment() -> None:
    path = Path()
    assert path.run(9) == [LEAVES]
    path.ladder.on_detached()
    assert path.ladder.keeps_streams
    path.ladder.on_attached(path.now)
    assert path.run(3) == [TRIES]
    assert path.ladder.used_road == "link"
