"""The clock of the broker's machine steps forward or back: nothing is lost, and nothing is removed before its time."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.messages.broker.rig import brokered, position
from tests.support.loops import in_loop
from tunnel import clock
from tunnel.messages import BrokerSettings, Log, LogConfig, TopicSpec

HOUR_S = 3600.0
MEMORY = {"m": TopicSpec(storage="memory")}


def step(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the machine."""
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(seconds * 1e9))


@pytest.mark.parametrize("steps_s", [(8 * 24 * HOUR_S,), (-HOUR_S,), (-HOUR_S, 2 * HOUR_S), (1e9, -1e9)])
@in_loop
async def test_a_step_of_the_clock_makes_no_position_old(
    steps_s: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = BrokerSettings(position_s=HOUR_S / 2)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        await client.commit("before", "t", 0, 0)
        for number, seconds in enumerate(steps_s):
            step(monkeypatch, seconds)
            await client.commit(f"after{number}", "t", 0, 0)
            await broker.expire_positions()
        assert len(broker.positions) == 1 + len(steps_s)


@pytest.mark.parametrize("steps_s", [(HOUR_S,), (-HOUR_S, 2 * HOUR_S)])
def test_a_step_of_the_clock_makes_no_message_old(
    steps_s: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=50, retain_s=HOUR_S / 2)
    with Log.open(tmp_path, config) as log:
        for _ in range(3):
            log.append([bytes(50)])
            log.flush()
        for seconds in steps_s:
            step(monkeypatch, seconds)
            log.retain()
        assert log.first_offset == 0


@in_loop
async def test_messages_in_memory_follow_the_positions_of_their_readers_after_the_clock_was_set_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For an hour, the broker would take each new message for one that the group has read, and remove it."""
    async with brokered(tmp_path, topics=MEMORY):
        pass  # a new topic begins at 0, and from the second start on at the time
    async with brokered(tmp_path, topics=MEMORY) as (broker, client):
        await client.producer().send("m", b"before")
        await client.commit("group", "m", 0, broker.topics.get("m").partition(0).end_offset)
    step(monkeypatch, -HOUR_S)
    async with brokered(tmp_path, topics=MEMORY) as (broker, client):
        await client.producer().send("m", b"after")
        await broker.topics.get("m").partition(0).sweep()
        found = await client.consumer("m", 0, await position(client, "group")).fetch()
        assert [each.payload for each in found] == [b"after"]
        await client.commit("group", "m", 0, found[0].offset + 1)
        assert await position(client, "group") == found[0].offset + 1


def test_the_clock_of_ages_passes_as_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process has run for ten seconds: the step forward does not count, and a step back does."""
    now_s = clock.age_now_s()
    passed = clock._passed_s
    monkeypatch.setattr(clock, "_passed_s", lambda: passed() + 10)
    monkeypatch.setattr(time, "time", lambda: now_s + HOUR_S)
    assert 10 <= clock.age_now_s() - now_s < 10 + 60
    monkeypatch.setattr(time, "time", lambda: now_s - HOUR_S)
    assert clock.age_now_s() == now_s - HOUR_S
    assert clock.stored_now_s() >= now_s
