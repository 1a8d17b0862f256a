"""Goals for rates and delays on paths that limit the rate of requests, make them wait, or pass only a few at once."""

from statistics import median

import pytest

from tests.exchange.limits import Bucket, SlotLoop
from tests.exchange.loop import Fate, Loop, data_frame, data_packet
from tunnel.exchange import LaneConfig, Request

KIB = 1024
MIB = 1024 * KIB
MS = 1_000
SECOND = 1_000_000
PACKET_BYTES = 7_500  # about an eighth of the first body, as the core cuts them


def carried(loop: Loop, *, upload: bool, seconds: int = 20) -> float:
    """Return the MiB per second that the path carries."""
    before = len(loop.relay.received if upload else loop.delivered)
    start_us = loop.now
    while loop.now < start_us + seconds * SECOND:
        if upload and len(loop.queue) < 1000:
            loop.queue.extend([data_packet(1, PACKET_BYTES)] * 1000)
        elif not upload and len(loop.relay.outbox.frames) < 1000:
            loop.relay.give([data_frame(1, PACKET_BYTES)] * 1000)
        loop.run(loop.now + 10 * MS)
    return (len(loop.relay.received if upload else loop.delivered) - before) * PACKET_BYTES / MIB / seconds


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


@pytest.mark.parametrize("upload", [True, False])
def test_on_a_slow_path_bodies_stay_small(upload: bool) -> None:
    """Trials of larger bodies find that their time grows with their size."""
    loop = Loop(one_way_us=500, bytes_per_second=300_000)
    sizes = []
    for _ in range(20):
        assert carried(loop, upload=upload, seconds=4) > 0.2
        sizes.append(loop.lanes.body_bytes if upload else loop.lanes.answer_bytes)
    assert median(sizes[5:]) <= 64 * KIB
    assert max(sizes) <= 128 * KIB


def echoes(loop: Loop, count: int) -> list[int]:
    """Send packets that are answered at once, one after another; return the times from packet to answer."""
    times = []
    for name in range(count):
        start_us, sent, delivered = loop.now, len(loop.relay.received), len(loop.delivered)
        loop.queue.append(data_packet(name))
        loop.until(lambda sent=sent: len(loop.relay.received) > sent, loop.now + 60 * SECOND)  # type: ignore[misc]
        loop.relay.give([data_frame(name)])
        loop.until(lambda before=delivered: len(loop.delivered) > before, loop.now + 60 * SECOND)  # type: ignore[misc]
        times.append(loop.now - start_us)
    return times


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
