"""The clock of the broker's machine steps forward or back: nothing is lost, and nothing is removed before its time."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from tests.messages.broker.clocks import sleep, start, step
from tests.messages.broker.rig import brokered, position
from tests.support.loops import in_loop
from tunnel.messages import BrokerSettings, Log, LogConfig, TopicSpec
from tunnel.system import clock

HOUR_S = 3600.0
MEMORY = {"m": TopicSpec(storage="memory")}


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


def fill(directory: Path, config: LogConfig) -> None:
    with Log.open(directory, config) as log:
        for _ in range(3):
            log.append([bytes(50)])
            log.flush()


HALF_AN_HOUR = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=50, retain_s=HOUR_S / 2)
ANY_STEPS = [(), (8760 * HOUR_S,), (-8760 * HOUR_S,), (8760 * HOUR_S, -HOUR_S), (-HOUR_S, 2 * HOUR_S)]


@pytest.mark.parametrize("steps_s", ANY_STEPS)
@pytest.mark.parametrize("wrong_s", [0, -8760 * HOUR_S])
def test_messages_get_old_while_the_broker_runs_whatever_steps_the_clock_makes(
    wrong_s: float, steps_s: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time that a machine gets from its network is such a step. The disk would fill until the next start."""
    fill(tmp_path, HALF_AN_HOUR)
    start(monkeypatch, wrong_s)
    with Log.open(tmp_path, HALF_AN_HOUR) as log:
        log.append([bytes(50)])
        log.flush()
        for seconds in steps_s:
            step(monkeypatch, seconds)
            log.retain()
        assert log.first_offset == 0
        sleep(monkeypatch, HOUR_S / 2 - 60)
        log.retain()
        assert log.first_offset == 0
        sleep(monkeypatch, 120)
        log.append([bytes(50)])
        log.flush()
        log.retain()
        assert log.first_offset == 4


def test_messages_that_were_old_when_the_broker_started_are_removed_after_a_step_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(tmp_path, HALF_AN_HOUR)
    for path in tmp_path.glob("*.log"):
        before = time.time() - HOUR_S
        os.utime(path, (before, before))
    with Log.open(tmp_path, HALF_AN_HOUR) as log:
        step(monkeypatch, -8760 * HOUR_S)
        log.retain()
        assert log.first_offset == 3


def test_a_log_that_is_opened_again_after_a_step_has_no_older_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker does so after its disk has failed."""
    fill(tmp_path, HALF_AN_HOUR)
    step(monkeypatch, 8760 * HOUR_S)
    with Log.open(tmp_path, HALF_AN_HOUR) as log:
        log.retain()
        assert log.first_offset == 0
        sleep(monkeypatch, HOUR_S)
        log.retain()
        assert log.first_offset == 3


@pytest.mark.parametrize("steps_s", ANY_STEPS)
@pytest.mark.parametrize("wrong_s", [0, -8760 * HOUR_S])
@in_loop
async def test_positions_get_old_while_the_broker_runs_whatever_steps_the_clock_makes(
    wrong_s: float, steps_s: tuple[float, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A user could not add positions any more until the next start."""
    settings = BrokerSettings(position_s=HOUR_S / 2)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (_, client):
        await client.commit("before", "t", 0, 0)
    start(monkeypatch, wrong_s)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        await client.commit("after", "t", 0, 0)
        for seconds in steps_s:
            step(monkeypatch, seconds)
            await broker.expire_positions()
        sleep(monkeypatch, HOUR_S / 2 - 60)
        await broker.expire_positions()
        assert len(broker.positions) == 2
        await client.commit("last", "t", 0, 0)
        sleep(monkeypatch, 120)
        await broker.expire_positions()
        assert [each.group for each in await client.positions()] == ["last"]


@pytest.mark.interpreted  # it replaces a function of the clock, which calls it
@in_loop
async def test_a_checkpoint_dates_positions_by_the_clock_that_was_set_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the next start would remove what was used an hour ago as what was used a year ago."""
    settings = BrokerSettings(position_s=2 * HOUR_S)
    start(monkeypatch, -8760 * HOUR_S)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        await client.commit("before", "t", 0, 0)
        step(monkeypatch, 8760 * HOUR_S)
        sleep(monkeypatch, HOUR_S)
        broker.positions._checkpoint_records = 0
        await client.commit("after", "t", 0, 0)
    monkeypatch.undo()
    sleep(monkeypatch, HOUR_S)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, _):
        await broker.expire_positions()
        assert len(broker.positions) == 2
        sleep(monkeypatch, HOUR_S + 60)
        await broker.expire_positions()
        assert [key[0] for key in await broker.positions.keys(lambda _: True)] == ["after"]


@pytest.mark.interpreted  # it replaces a function of the clock, which calls it
def test_the_clock_of_ages_passes_as_time_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """A time in the future gives no age, and a step in either direction makes nothing older."""
    now_s = time.time()
    assert clock.age_s(now_s + HOUR_S) == 0
    passed = clock.passed_s
    monkeypatch.setattr(clock, "passed_s", lambda: passed() + 10)
    monkeypatch.setattr(time, "time", lambda: now_s + HOUR_S)
    assert 10 <= clock.age_s(now_s) < 10 + 60
    assert clock.stored_now_s() == now_s + HOUR_S
    monkeypatch.setattr(time, "time", lambda: now_s - HOUR_S)
    assert clock.age_s(now_s) == 0
    assert clock.age_s(now_s - 2 * HOUR_S) == HOUR_S
    assert clock.stored_now_s() >= now_s
