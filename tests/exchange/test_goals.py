"""Goals: the goodput of a lossy path, the recovery of a healed path, and the cost of an idle attachment."""

from random import Random

import pytest

from tests.exchange.loop import Fate, Loop, data_frame, data_packet
from tunnel.exchange import BatchDone, LaneConfig, PacketsReceived, Request

KIB = 1024
SECOND = 1_000_000
REFERENCE = LaneConfig(
    lanes_start=4,
    lanes_max=4,
    adapt_lanes=False,
    body_bytes_start=256 * KIB,
    body_bytes_max=256 * KIB,
    answer_bytes_max=256 * KIB,
)


def carried(rate: float, *, reported: bool, upload: bool) -> int:
    """Count the packets carried in 10 s, at a round trip of 100 ms and 10 MB/s. `rate` is the share of exchanges that
    are lost, half of them with the request and half with the response."""
    random = Random(5)

    def fate(request: Request, now: int) -> Fate:
        draw = random.getrandbits(16) / 65536
        return Fate(request_lost=draw < rate / 2, response_lost=rate / 2 <= draw < rate, reported=reported)

    loop = Loop(REFERENCE, fate, one_way_us=50_000, bytes_per_second=10_000_000)
    if upload:
        loop.queue.extend([data_packet(1, 30_000)] * 4000)
    else:
        loop.relay.give([data_frame(1, 30_000)] * 4000)
    loop.run(10 * SECOND)
    return len(loop.relay.received) if upload else len(loop.delivered)


@pytest.mark.parametrize("upload", [True, False])
def test_the_goodput_under_loss_meets_its_goals(upload: bool) -> None:
    clean = carried(0, reported=True, upload=upload)
    assert clean > 10 * 5_000_000 / 30_000
    for reported, goals in ((True, {0.02: 0.9, 0.1: 0.6, 0.3: 0.25}), (False, {0.02: 0.5, 0.1: 0.2, 0.3: 0.05})):
        for rate, goal in goals.items():
            assert carried(rate, reported=reported, upload=upload) >= goal * clean


def healed_after(length_us: int, config: LaneConfig, *, upload: bool) -> int:
    """Send a packet every 100 ms in one direction, through a blackhole of requests and responses; return the time from
    its end to the first packet that is carried."""
    start_us = 3 * SECOND
    heals_us = start_us + length_us
    loop = Loop(config, lambda request, now: Fate(request_lost=start_us <= now < heals_us), one_way_us=40_000)
    kind = BatchDone if upload else PacketsReceived
    name = 0
    while loop.now < heals_us + 20 * SECOND:
        name += 1
        if upload:
            loop.queue.append(data_packet(name))
        else:
            loop.relay.give([data_frame(name)])
        if start_us <= loop.now < heals_us:
            loop.waiting.clear()  # the relay's answers are lost
        loop.run(loop.now + 100_000)
        times = [time_us for time_us, event in loop.events if isinstance(event, kind) and time_us >= heals_us]
        if times:
            return times[0] - heals_us
    raise AssertionError("no packet was carried after the path had healed")


@pytest.mark.parametrize("config", [LaneConfig(), LaneConfig(lanes_start=4), LaneConfig(one_connection=True)])
@pytest.mark.parametrize("upload", [True, False])
def test_a_healed_path_is_used_within_a_second_and_a_half(config: LaneConfig, upload: bool) -> None:
    # A pull's first deadline includes its hold, which is 1 s while packets flow. After a short outage, this
    # deadline decides when the path is used again.
    assert healed_after(SECOND // 2, config, upload=upload) <= 1_500_000
    for length_us in (2 * SECOND, 10 * SECOND, 60 * SECOND):
        assert healed_after(length_us, config, upload=upload) <= SECOND + 3 * 80_000


@pytest.mark.parametrize(
    ("config", "most"), [(LaneConfig(), 5), (LaneConfig(one_connection=True), 61), (LaneConfig(hold_us=2 * SECOND), 31)]
)
def test_an_idle_attachment_sends_few_requests(config: LaneConfig, most: int) -> None:
    loop = Loop(config)
    loop.queue.append(data_packet(1))
    loop.run(60 * SECOND)
    count = len(loop.requests)
    loop.run(120 * SECOND)
    assert len(loop.requests) - count <= most


def test_an_outage_costs_a_request_each_second_however_many_lanes_are_silent() -> None:
    loop = Loop(LaneConfig(), lambda request, now: Fate(request_lost=now > SECOND))
    loop.run(2 * SECOND)
    loop.queue.append(data_packet(1))
    loop.run(20 * SECOND)
    count = len(loop.requests)
    loop.run(80 * SECOND)
    assert 50 <= len(loop.requests) - count <= 61
    assert len(loop.waiting) <= len(loop.requests)


def test_an_unthrottled_path_fills_its_lanes_and_bodies() -> None:
    loop = Loop(LaneConfig(), one_way_us=50_000, bytes_per_second=10_000_000)
    loop.queue.extend([data_packet(1, 30_000)] * 3000)
    loop.run(5 * SECOND)
    before = len(loop.relay.received)
    loop.run(8 * SECOND)
    assert (len(loop.relay.received) - before) * 30_000 > 3 * 9_000_000
    assert loop.lanes.path.round_trip.srtt_us < 500_000
