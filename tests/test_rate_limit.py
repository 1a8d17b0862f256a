"""A limit that connections share: on a clock and timers of the test, then through a relay in this process."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tests.support.targets import echo
from tunnel import attach
from tunnel.ground.rates import RATE_LEAST
from tunnel.streams import rate_limit
from tunnel.streams.rate_limit import RateLimit, RateTurns

MIB = 1 << 20
SECOND = 1_000_000
BURST_S = 0.1


class Time:
    """A clock, and the timers that were set on it."""

    def __init__(self) -> None:
        self.now = 5 * SECOND
        self.timers: list[Timer] = []

    def run(self, until_us: int) -> None:
        """Let the time pass up to this moment. The timers that become due fire, one after the other."""
        while due := [timer for timer in self.timers if timer.due_us is not None and timer.due_us <= until_us]:
            timer = min(due, key=lambda each: each.due_us or 0)
            assert timer.due_us is not None
            self.now, timer.due_us = max(self.now, timer.due_us), None
            timer.fired()
        self.now = until_us


class Timer:
    def __init__(self, time: Time, fired: Callable[[], None]) -> None:
        self.fired = fired
        self.due_us: int | None = None
        time.timers.append(self)

    def due_by(self, due_us: int, now: int) -> None:
        rounded = now + max(1, -((now - due_us) // 1000)) * 1000
        self.due_us = rounded if self.due_us is None else min(self.due_us, rounded)


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    found = Time()
    monkeypatch.setattr(rate_limit, "now_us", lambda: found.now)
    monkeypatch.setattr(rate_limit, "LoopTimer", lambda fired: Timer(found, fired))
    return found


class Stream:
    """A stream with bytes that wait."""

    def __init__(self, time: Time, limit: RateLimit, waiting: int = 0, *, direction: str = "up") -> None:
        self.moved: list[tuple[int, int]] = []  # time, bytes
        self.waiting = waiting
        self._time = time
        self.turns = RateTurns(getattr(limit, direction), self._take)
        if waiting:
            self.turns.ask()

    def add(self, size: int) -> None:
        self.waiting += size
        self.turns.ask()

    def _take(self, size_max: int) -> int:
        used = min(size_max, self.waiting)
        self.waiting -= used
        if used:
            self.moved.append((self._time.now, used))
        return used

    @property
    def total(self) -> int:
        return sum(size for _, size in self.moved)


@pytest.mark.parametrize("rate", [RATE_LEAST, MIB, 20 * MIB, 1 << 30])
def test_the_rate_is_kept_and_a_burst_stays_below_100_ms_of_it(rate: int, time: Time) -> None:
    stream = Stream(time, RateLimit(rate), 100 * rate)
    time.run(15 * SECOND)
    assert stream.total == pytest.approx(10 * rate, rel=0.02)
    paid = 0
    for now_us, size in stream.moved:
        paid += size
        assert paid <= rate * ((now_us - 5 * SECOND) / SECOND + BURST_S)
    assert all(later[0] - one[0] <= 100_000 for one, later in pairwise(stream.moved))


def test_streams_share_fairly_and_a_small_one_goes_first(time: Time) -> None:
    limit = RateLimit(MIB)
    first, second = Stream(time, limit, 100 * MIB), Stream(time, limit, 100 * MIB)
    small = Stream(time, limit)
    for step in range(100):
        time.run((5 * SECOND) + step * 50_000)
        small.add(100)
    time.run(10 * SECOND)
    assert first.total == pytest.approx(second.total, rel=0.02)
    assert small.total == 100 * 100
    assert all(now_us - (5 * SECOND + step * 50_000) <= 20_000 for step, (now_us, _) in enumerate(small.moved))


@pytest.mark.parametrize("direction", ["up", "down"])
def test_a_wider_limit_applies_too_and_is_shared_by_the_limits_within_it(direction: str, time: Time) -> None:
    whole = RateLimit(4 * MIB)
    slow = RateLimit(MIB, whole)
    fast = RateLimit(20 * MIB, whole)
    limited, free, outside = (Stream(time, limit, 1 << 30, direction=direction) for limit in (slow, fast, whole))
    time.run(15 * SECOND)
    assert limited.total == pytest.approx(10 * MIB, rel=0.03)
    assert free.total == pytest.approx(15 * MIB, rel=0.03)
    assert outside.total == pytest.approx(15 * MIB, rel=0.03)


def test_a_stream_that_has_ended_costs_the_others_nothing(time: Time) -> None:
    limit = RateLimit(MIB)
    gone, stays = Stream(time, limit, 100 * MIB), Stream(time, limit, 100 * MIB)
    gone.turns.end()
    had = gone.total
    time.run(15 * SECOND)
    assert gone.total == had
    assert stays.total == pytest.approx(10 * MIB, rel=0.02)


def test_a_stream_that_asks_within_its_turn_waits_for_the_others(time: Time) -> None:
    limit = RateLimit(MIB)
    other = Stream(time, limit, 100 * MIB)
    moved = 0

    def take(size_max: int) -> int:
        nonlocal moved
        turns.ask()
        moved += size_max
        return size_max

    turns = RateTurns(limit.up, take)
    turns.ask()
    time.run(15 * SECOND)
    assert moved == pytest.approx(other.total, rel=0.02)


def test_bytes_that_come_within_a_turn_in_which_nothing_moved_get_the_next_one(time: Time) -> None:
    """A layer above may write, in the turn itself, what it has encrypted: nobody asks for it later."""
    moved: list[int] = []

    def take(size_max: int) -> int:
        used = 10 if len(moved) == 1 else 0
        if not moved:
            turns.ask()
        moved.append(used)
        return used

    turns = RateTurns(RateLimit(MIB).up, take)
    turns.ask()
    time.run(15 * SECOND)
    assert moved == [0, 10, 0]


def test_an_empty_text_is_no_limit_of_its_own() -> None:
    whole = RateLimit(MIB)
    assert RateLimit.parse("") is None
    assert RateLimit.parse("", whole) is whole
    with pytest.raises(ValueError, match="is not a rate"):
        RateLimit.parse("fast")


# through a relay


@pytest.mark.parametrize("encryption", ["off", "require"])
@in_loop
async def test_bytes_and_ends_arrive_whole_and_not_faster_than_the_rate(encryption: str, tmp_path: Path) -> None:
    rate, size = 2 * MIB, MIB
    data = bytes(range(256)) * (size // 256)
    async with relay(settings(switch={"settle_us": 1})) as running:
        url = f"http://{running.addresses[0]}"
        key = tmp_path / "key" if encryption == "require" else None
        async with (
            attach(url, token=TOKENS["bob"], proxy=None, encryption=encryption, key=key) as far,
            attach(url, token=TOKENS["ann"], proxy=None, encryption=encryption, rate="2 MiB/s") as near,
        ):
            await far.start_server(echo, "reports")
            reader, writer = await near.open_connection("reports")
            began = asyncio.get_running_loop().time()
            writer.write(data)
            writer.write_eof()
            assert await reader.read(-1) == data
            elapsed = asyncio.get_running_loop().time() - began
            assert size <= rate * (elapsed + BURST_S)  # it may take more time than the rate demands, but not less
            writer.close()
            await writer.wait_closed()
            await until(lambda: not near.stats().connections)


@in_loop
async def test_the_limit_of_an_open_connection_can_be_changed() -> None:
    data = bytes(range(256)) * (4 * MIB // 256)
    async with relay(settings(switch={"settle_us": 1})) as running:
        url = f"http://{running.addresses[0]}"
        async with (
            attach(url, token=TOKENS["bob"], proxy=None) as far,
            attach(url, token=TOKENS["ann"], proxy=None, rate="64 KiB/s") as near,
        ):
            await far.start_server(echo, "reports")
            reader, writer = await near.open_connection("reports")
            writer.write(data)
            writer.write_eof()
            assert await reader.readexactly(1) == data[:1]
            writer.transport.limit_rate(None)  # type: ignore[attr-defined]
            assert await reader.read(-1) == data[1:]  # at 64 KiB/s, this would take a minute
            writer.close()
