"""Paths that refuse large bodies without saying so: by another status than 413, by a reset, or by silence.

Clause 7.16 of docs/PROTOCOL.md.
"""

from collections.abc import Callable
from random import Random
from statistics import median

import pytest

from tests.exchange.loop import Fate, Loop, data_frame, data_packet
from tunnel.exchange import LaneConfig, Request

KIB = 1024
SECOND = 1_000_000
PACKET_BYTES = 7_500  # about an eighth of the first body, as the core cuts them
LIMIT = 40 * KIB
REFUSALS = {
    "400": Fate(status=400),
    "403": Fate(status=403),
    "500": Fate(status=500),
    "502": Fate(status=502),
    "503": Fate(status=503),
    "200 with a page": Fate(status=200),
    "a reset": Fate(request_lost=True, response_lost=True, reported=True),
    "silence": Fate(request_lost=True, response_lost=True),
}


def size_of(request: Request) -> int:
    return sum(map(len, request.body))


def refusing(refusal: Fate, limit: int = LIMIT) -> Callable[[Request, int], Fate]:
    """Return fates: large requests get this one, and all others pass."""
    return lambda request, now: refusal if size_of(request) > limit else Fate()


def upload(loop: Loop, count: int, seconds: int) -> None:
    """Send packets; fail if they have not all arrived after this number of seconds."""
    loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(count))
    wanted = set(range(count))
    loop.until(lambda: {name for _, name in loop.relay.received} >= wanted, loop.now + seconds * SECOND)


@pytest.mark.parametrize("idle_seconds", [1, 60])
@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_requests_that_are_too_large_become_smaller(refusal: Fate, idle_seconds: int) -> None:
    loop = Loop(fate=refusing(refusal), resends=True)
    loop.run(idle_seconds * SECOND)
    upload(loop, 300, 600)
    assert 16 * KIB <= loop.lanes.path.up.limit_bytes <= LIMIT


CROWDED = {
    "all eight lanes": (LaneConfig(), False),
    "streams": (LaneConfig(), True),
    "pulls at intervals": (LaneConfig(pull_interval_us=SECOND // 10), False),
    "two lanes": (LaneConfig(lanes_max=2), False),
    "two lanes, pulls at intervals": (LaneConfig(lanes_max=2, pull_interval_us=SECOND // 10), False),
    "three lanes, one with a stream": (LaneConfig(lanes_max=3), True),
}


@pytest.mark.parametrize("refusal", ["a reset", "silence"])
@pytest.mark.parametrize(("config", "streams"), CROWDED.values(), ids=CROWDED)
def test_pushes_that_are_too_large_leave_a_lane_for_small_bodies(
    config: LaneConfig, streams: bool, refusal: str
) -> None:
    """There is always more to push, and the path passes only bodies that are much smaller than the first ones."""
    loop = Loop(config, fate=refusing(REFUSALS[refusal], 20 * KIB), resends=True, streams=streams)
    loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(1500))
    for _ in range(3):  # the connection would be lost if nothing passed for 300 s (4.15)
        before = len(loop.relay.received)
        loop.until(lambda before=before: len(loop.relay.received) >= before + 50, loop.now + 150 * SECOND)  # type: ignore[misc]


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_answers_that_are_too_large_become_smaller(refusal: Fate) -> None:
    loop = Loop(fate=lambda request, now: Fate(too_large=refusal, answer_bytes_max=LIMIT))
    loop.run(SECOND)
    loop.relay.give([data_frame(name, PACKET_BYTES) for name in range(300)])
    loop.until(lambda: set(loop.delivered) == set(range(300)), loop.now + 60 * SECOND)
    assert 16 * KIB <= loop.lanes.path.down.limit_bytes <= LIMIT


TOLD = {
    "403": Fate(status=403),
    "502": Fate(status=502),
    "a reset": Fate(response_lost=True, reported=True),
}


@pytest.mark.parametrize("limit", [30 * KIB, 5 * KIB])
@pytest.mark.parametrize("refusal", TOLD.values(), ids=TOLD)
def test_refusals_of_large_answers_do_not_add_up_to_long_pauses(refusal: Fate, limit: int) -> None:
    """All lanes wait for large answers, so that none of them passes, as in an outage. Each must not have to learn by
    itself, since all share one back-off."""
    for seed in range(5):
        loop = Loop(seed=seed, resends=True)
        loop.run(SECOND)
        loop.fate = lambda request, now: Fate(too_large=refusal, answer_bytes_max=limit)
        loop.relay.give([data_frame(name, 4 * KIB - 100) for name in range(500)])
        loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(250))
        loop.until(lambda loop=loop: set(loop.delivered) == set(range(500)), loop.now + 12 * SECOND)  # type: ignore[misc]


@pytest.mark.parametrize(("limit", "seconds"), [(30 * KIB, 15), (5 * KIB, 25)])
@pytest.mark.parametrize("is_busy", [False, True])
def test_large_answers_that_vanish_do_not_add_up_to_silence(limit: int, seconds: int, *, is_busy: bool) -> None:
    """All lanes carry bytes both ways, so that every answer is large, and each lane repeats in its turn, once a second.
    Nor is it a ban, even after many requests."""
    for seed in range(3):
        loop = Loop(seed=seed, resends=True)
        for tenth in range(30 if is_busy else 0):
            loop.at(tenth * SECOND // 10, lambda loop=loop: loop.queue.append(data_packet(1000)))  # type: ignore[misc]
        loop.run(3 * SECOND)
        loop.fate = lambda request, now: Fate(too_large=Fate(response_lost=True), answer_bytes_max=limit)
        loop.relay.give([data_frame(name, 4 * KIB - 100) for name in range(500)])
        loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(250))
        loop.until(lambda loop=loop: set(loop.delivered) >= set(range(500)), loop.now + seconds * SECOND)  # type: ignore[misc]


@pytest.mark.parametrize("limit", [900, 1200, 3000, 5 * KIB, 20 * KIB, 48 * KIB])
@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("pushes", [0, 100])
def test_packets_larger_than_the_answers_that_pass_come_in_pieces(limit: int, pushes: int, *, streams: bool) -> None:
    """The answer to a question about sizes then brings nothing but the news that more waits."""
    for seed in range(3):
        loop = Loop(seed=seed, resends=True, streams=streams)
        loop.fate = lambda request, now: Fate(too_large=Fate(response_lost=True), answer_bytes_max=limit)
        loop.run(SECOND)
        loop.relay.give([data_frame(name, PACKET_BYTES) for name in range(40)])
        loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(pushes))
        loop.until(lambda loop=loop: set(loop.delivered) >= set(range(40)), loop.now + (7 if pushes else 5) * SECOND)  # type: ignore[misc]


def test_where_round_trips_vary_silence_does_not_keep_answers_small() -> None:
    """Hardly any answer is quick there, so the limit must grow by slow ones."""
    lowest = set[int]()
    for seed in range(8):
        varying = Random(seed)
        loop = Loop(seed=seed, resends=True, one_way_us=SECOND)
        back_us = 45 * SECOND

        def fate(request: Request, now: int, varying: Random = varying, back_us: int = back_us) -> Fate:
            outage_us = back_us - now if back_us - 30 * SECOND <= now < back_us else 0
            return Fate(delay_us=outage_us + varying.randrange(300_000))

        loop.fate = fate
        loop.run(back_us - 30 * SECOND)
        loop.relay.give([data_frame(name, 4 * KIB - 100) for name in range(10_000)])
        while loop.now < back_us + 25 * SECOND:
            loop.run(loop.now + SECOND // 10)
            lowest.add(loop.lanes.path.down.limit_bytes)
        assert loop.lanes.path.down.limit_bytes >= 32 * KIB
    assert min(lowest) < KIB  # the silence was taken for a size


def test_silence_lowers_the_limit_of_answers_no_further_than_to_what_has_passed() -> None:
    loop = Loop(fate=lambda request, now: Fate(too_large=Fate(response_lost=True), answer_bytes_max=70 * KIB))
    loop.run(SECOND)
    loop.relay.give([data_frame(name, 4 * KIB - 100) for name in range(3000)])
    lowest = 64 * KIB
    while loop.relay.outbox.frames:
        loop.run(loop.now + SECOND // 10)
        lowest = min(lowest, loop.lanes.path.down.limit_bytes)
    assert lowest >= 32 * KIB
    assert loop.now < 60 * SECOND


def after_large_answers(limit: int, seed: int = 1) -> Loop:
    """Return a loop in which answers of 64 KiB and more have passed, until larger ones than `limit` began to vanish."""
    loop = Loop(seed=seed, resends=True)
    loop.run(SECOND)
    loop.relay.give([data_frame(0, 4 * KIB - 100)] * 3000)
    loop.run(10 * SECOND)
    loop.fate = lambda request, now: Fate(too_large=Fate(response_lost=True), answer_bytes_max=limit)
    loop.run(loop.now + 20 * SECOND)  # no pull of before is held any more
    return loop


def test_where_large_answers_have_passed_one_silence_says_nothing_about_their_size() -> None:
    """Nor do two more than 30 s apart, even if none was large in between."""
    loop = after_large_answers(KIB)
    before = loop.lanes.path.down.limit_bytes
    for name in (10, 20):
        loop.relay.give([data_frame(name + number, 500) for number in range(2)])
        loop.until(lambda name=name: name + 1 in loop.delivered, loop.now + 9 * SECOND)  # type: ignore[misc]
        loop.run(loop.now + 40 * SECOND)
        assert loop.lanes.path.down.limit_bytes == before
    for name in (30, 40):
        loop.relay.give([data_frame(name + number, 500) for number in range(2)])
        loop.until(lambda name=name: name + 1 in loop.delivered, loop.now + 9 * SECOND)  # type: ignore[misc]
    assert loop.lanes.path.down.limit_bytes < 16 * KIB


@pytest.mark.parametrize(("limit", "tenths"), [(1200, 95), (20 * KIB, 65), (48 * KIB, 65)])
def test_what_has_passed_says_nothing_once_silence_has_shown_a_smaller_size(limit: int, tenths: int) -> None:
    for seed in range(3):
        loop = after_large_answers(limit, seed)
        loop.relay.give([data_frame(name, 4 * KIB - 100) for name in range(1, 201)])
        loop.until(lambda loop=loop: set(loop.delivered) == set(range(201)), loop.now + tenths * SECOND // 10)  # type: ignore[misc]


def test_the_limit_of_answers_grows_past_one_that_a_single_packet_fits() -> None:
    """The packet is no three quarters of 12 KiB, and two do not fit."""
    loop = Loop(fate=lambda request, now: Fate(too_large=Fate(response_lost=True), answer_bytes_max=48 * KIB))
    loop.run(SECOND)
    loop.relay.give([data_frame(name, PACKET_BYTES) for name in range(150)])
    loop.until(lambda: loop.lanes.path.down.limit_bytes < 4 * KIB, loop.now + 5 * SECOND)
    loop.until(lambda: loop.lanes.path.down.limit_bytes > 20 * KIB, loop.now + SECOND)


@pytest.mark.parametrize(("limit", "seconds"), [(30 * KIB, 15), (5 * KIB, 25)])
@pytest.mark.parametrize("is_busy", [False, True])
def test_large_requests_that_vanish_become_smaller_within_seconds(limit: int, seconds: int, *, is_busy: bool) -> None:
    """Each lane must not have to learn by itself, nor one that failed fill the others with bodies of its size."""
    for seed in range(3):
        loop = Loop(seed=seed, resends=True)
        loop.run(SECOND)
        for tenth in range(30 if is_busy else 0):
            loop.at(SECOND + tenth * SECOND // 10, lambda loop=loop: loop.queue.append(data_packet(1000)))  # type: ignore[misc]
        loop.run(4 * SECOND)
        loop.fate = refusing(REFUSALS["silence"], limit)
        upload(loop, 250, seconds)


def test_other_pushes_are_smaller_only_while_one_is_in_doubt() -> None:
    loop = Loop(resends=True)
    loop.run(SECOND)
    room = loop.lanes.room(loop.now)
    loop.fate = refusing(REFUSALS["silence"], LIMIT)
    loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(8))
    loop.until(lambda: 0 < loop.lanes.room(loop.now) < room, loop.now + 3 * SECOND)
    sent_bytes = size_of(next(request for _, request in reversed(loop.requests) if not request.pull))
    assert sent_bytes // 2 - 100 <= loop.lanes.room(loop.now) <= sent_bytes // 2
    loop.fate = lambda request, now: Fate()
    loop.until(lambda: set(loop.ok()) == {1}, loop.now + 5 * SECOND)
    assert loop.lanes.room(loop.now) >= room


def test_pushes_stay_large_in_an_outage() -> None:
    """Nothing smaller passes, so nothing says that the size is the reason."""
    loop = Loop(resends=True)
    loop.run(SECOND)
    room = loop.lanes.room(loop.now)
    loop.fate = lambda request, now: REFUSALS["silence"]
    loop.queue.extend(data_packet(name, PACKET_BYTES) for name in range(8))
    for _ in range(20):
        loop.run(loop.now + SECOND)
        assert loop.lanes.room(loop.now) in (0, room)


@pytest.mark.parametrize("refusal", REFUSALS.values(), ids=REFUSALS)
def test_an_outage_says_nothing_about_sizes(refusal: Fate) -> None:
    loop = Loop(resends=True)
    upload(loop, 300, 10)
    before = loop.lanes.path.up.limit_bytes, loop.lanes.path.down.limit_bytes
    back_us = loop.now + 20 * SECOND
    loop.fate = lambda request, now: Fate() if now >= back_us else refusal
    loop.relay.give([data_frame(name, PACKET_BYTES) for name in range(300)])
    upload(loop, 300, 40)
    assert loop.lanes.path.up.limit_bytes >= before[0]
    assert loop.lanes.path.down.limit_bytes >= before[1]


@pytest.mark.parametrize("both", [False, True])
def test_failures_by_chance_say_nothing_about_sizes(both: bool) -> None:
    """Three of ten exchanges fail, during an upload alone and during transfers in both directions."""
    sizes = []
    for seed in range(12):
        random = Random(seed)
        loop = Loop(
            LaneConfig(),
            lambda request, now, random=random: Fate(status=502) if random.random() < 0.3 else Fate(),  # type: ignore[misc]
            seed=seed,
            resends=True,
        )
        if both:
            loop.relay.give([data_frame(name, PACKET_BYTES) for name in range(1500)])
        upload(loop, 1500, 100)
        sizes.append(min(loop.lanes.path.up.limit_bytes, loop.lanes.path.down.limit_bytes if both else 1 << 30))
    assert median(sizes) >= 64 * KIB
