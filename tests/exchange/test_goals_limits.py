"""Goals for rates and delays on paths that limit the rate of requests, make them wait, or pass only a few at once."""

from collections.abc import Callable
from statistics import median

import pytest

from tests.exchange.limits import Bucket, SlotLoop
from tests.exchange.loop import Fate, Loop
from tests.exchange.rig import KIB, MS, SECOND, carried, echoes
from tunnel.exchange import LaneConfig, Request


@pytest.mark.parametrize("burst", [1, 20])
@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize("upload", [True, False])
def test_ten_requests_a_second_carry_some_mib_a_second(upload: bool, status: int, burst: int) -> None:
    passes = Bucket(100 * MS, burst)
    loop = Loop(fate=lambda request, now: Fate() if passes(now) else Fate(status=status), one_way_us=500)
    carried(loop, upload=upload)
    assert carried(loop, upload=upload, seconds=10) > 5


@pytest.mark.parametrize("upload", [True, False])
def test_waiting_for_a_turn_is_no_reason_for_small_bodies(upload: bool) -> None:
    """The path lets ten requests a second pass, and delays the others."""
    free_us = 0

    def fate(request: Request, now: int) -> Fate:
        nonlocal free_us
        free_us = max(now, free_us + 100 * MS)
        return Fate(delay_us=free_us - now)

    loop = Loop(fate=fate, one_way_us=500)
    carried(loop, upload=upload)
    assert carried(loop, upload=upload) > 5


def queue(gap_us: int, left_us: list[int]) -> Callable[[Request, int], Fate]:
    """Let one request pass in each `gap_us`. The others keep their places, also those that are given up. Add to
    `left_us` when each request passes."""

    def fate(request: Request, now: int) -> Fate:
        left_us.append(max(now, left_us[-1] + gap_us) if left_us else now)
        return Fate(delay_us=left_us[-1] - now)

    return fate


@pytest.mark.parametrize("gap_s", [1, 2])
@pytest.mark.parametrize("upload", [True, False])
def test_requests_that_were_given_up_do_not_fill_a_queue(upload: bool, gap_s: int) -> None:
    left_us: list[int] = []
    loop = Loop(fate=queue(gap_s * SECOND, left_us), one_way_us=500)
    carried(loop, upload=upload, seconds=60)
    assert left_us[-1] - loop.now <= 10 * gap_s * SECOND
    assert carried(loop, upload=upload) > 0.3 / gap_s**2


def test_echoes_wait_for_their_turns_and_no_longer() -> None:
    loop = Loop(fate=queue(SECOND, []), one_way_us=500)
    echoes(loop, 2)
    assert max(echoes(loop, 20)) <= 5 * SECOND


@pytest.mark.parametrize("upload", [True, False])
def test_on_a_slow_path_bodies_stay_small(upload: bool) -> None:
    """Trials of larger bodies find that their time grows with their size."""
    loop = Loop(one_way_us=500, bytes_per_second=300_000)
    sizes = []
    for _ in range(20):
        assert carried(loop, upload=upload, seconds=4) > 0.2
        sizes.append(loop.lanes.path.up.limit_bytes if upload else loop.lanes.path.down.limit_bytes)
    assert median(sizes[5:]) <= 64 * KIB
    assert max(sizes) <= 128 * KIB


@pytest.mark.parametrize(("slots", "most_ms"), [(1, 60), (2, 5), (3, 5)])
def test_few_requests_at_once_do_not_delay_an_echo(slots: int, most_ms: int) -> None:
    loop = SlotLoop(LaneConfig(lanes_start=4), one_way_us=500)
    loop.slots = slots
    echoes(loop, 20)
    assert median(echoes(loop, 50)) <= most_ms * MS


@pytest.mark.parametrize("slots", [1, 2, 3])
@pytest.mark.parametrize("upload", [True, False])
def test_few_requests_at_once_carry_full_bodies(slots: int, upload: bool) -> None:
    loop = SlotLoop(one_way_us=50 * MS)
    loop.slots = slots
    carried(loop, upload=upload, seconds=12)
    assert carried(loop, upload=upload, seconds=4) > 4
