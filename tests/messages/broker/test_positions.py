"""The positions of groups: which one holds, what is on disk, and what a start reads."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.messages.broker.rig import brokered
from tests.support.loops import HANGING_S, in_loop_within
from tunnel.messages import BrokerSettings
from tunnel.messages.broker.disk_room import DiskRoom
from tunnel.messages.broker.positions import PositionKey, Positions
from tunnel.messages.broker.protocol import LIMIT, STORAGE
from tunnel.messages.errors import LogError, RemoteCallError
from tunnel.system.durable_files import write_atomically

KEY: PositionKey = ("billing", "orders", 1)
OTHER: PositionKey = ("reports", "orders", 0)


def made(directory: Path, positions_max: int = 10, **options: Any) -> Positions:
    return Positions(directory, positions_max, DiskRoom(directory, 0), **options)


@contextmanager
def failing_disk(positions: Positions) -> Iterator[None]:
    """Let the log fail when it is written. Afterwards it can be opened again at once."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(os, "writev", fail)
        yield
    positions._store._failed_at = float("-inf")  # as if the pause after the failure had passed


def fail(*arguments: object) -> None:
    raise OSError(28, "No space left on device")


def checkpoint(directory: Path) -> Any:
    path = directory / "positions.json"
    if not path.exists():
        return None
    found = msgspec.json.decode(path.read_bytes())
    return found | {"positions": [each[:-1] for each in found["positions"]]}  # without the time


@in_loop_within(HANGING_S)
async def test_a_group_moves_forward_and_moves_back_only_by_force(tmp_path: Path) -> None:
    positions = made(tmp_path)
    await positions.load()
    assert (positions.get(KEY), positions.knows(KEY), len(positions)) == (0, False, 0)
    assert await positions.set(KEY, 5) == 5
    assert (positions.get(KEY), positions.knows(KEY), positions.knows(OTHER), len(positions)) == (5, True, False, 1)
    end = positions._store.log.next_offset
    for smaller in (4, 5):
        assert await positions.set(KEY, smaller) == 5
    assert await positions.set(KEY, 5, force=True) == 5
    assert positions._store.log.next_offset == end == 1  # what changes nothing is not stored again
    assert await positions.set(KEY, 3, force=True) == 3
    assert await positions.set(OTHER, 0) == 0
    assert (positions.get(KEY), positions.knows(OTHER), len(positions)) == (3, True, 2)
    await positions.close()
    again = made(tmp_path)
    await again.load()
    assert [part async for part in again.of_group()] == [[(KEY, 3), (OTHER, 0)]]
    assert [part async for part in again.of_group("reports")] == [[(OTHER, 0)]]
    await again.close()


@in_loop_within(HANGING_S)
async def test_at_the_limit_of_positions_only_new_ones_are_refused(tmp_path: Path) -> None:
    positions = made(tmp_path, 2)
    await positions.load()
    for key in (KEY, OTHER):
        await positions.set(key, 1)
    with pytest.raises(RemoteCallError, match="the broker has 2 positions and may have 2") as caught:
        await positions.set(("new", "orders", 0), 1)
    assert caught.value.code == LIMIT
    assert await positions.set(KEY, 2) == 2
    assert len(positions) == 2
    await positions.close()


@in_loop_within(HANGING_S)
async def test_a_checkpoint_has_all_positions_and_saves_reading_the_records_before_it(tmp_path: Path) -> None:
    found = []
    positions = made(tmp_path, checkpoint_records=3)
    await positions.load()
    await positions.set(OTHER, 7)
    for offset in range(1, 9):
        await positions.set(KEY, offset)
        written = checkpoint(tmp_path)
        found.append(written and written["offset"])
    assert found == [None, None, 4, 4, 4, 4, 8, 8]
    assert checkpoint(tmp_path) == {"offset": 8, "positions": [[*OTHER, 7, ""], [*KEY, 7, ""]]}
    await positions.close()
    again = made(tmp_path, checkpoint_records=3)
    await again.load()
    assert (again.get(KEY), again.get(OTHER)) == (8, 7)
    assert again._checked == 8
    for offset in (9, 10):
        await again.set(KEY, offset)
    assert checkpoint(tmp_path)["offset"] == 8
    await again.set(KEY, 11)
    assert checkpoint(tmp_path) == {"offset": 12, "positions": [[*OTHER, 7, ""], [*KEY, 11, ""]]}
    await again.close()


@in_loop_within(HANGING_S)
async def test_a_checkpoint_that_cannot_be_written_stops_no_group(tmp_path: Path) -> None:
    positions = made(tmp_path, checkpoint_records=0)
    await positions.load()
    (tmp_path / "positions.json.new").mkdir()
    with capture_logs() as lines:
        assert await positions.set(KEY, 1) == 1
    assert (lines[0]["event"], lines[0]["log_level"]) == ("no_checkpoint", "warning")
    assert lines[0]["text"].startswith("positions are stored, but starting takes longer: ")
    (tmp_path / "positions.json.new").rmdir()
    assert await positions.set(KEY, 2) == 2
    assert checkpoint(tmp_path) == {"offset": 2, "positions": [[*KEY, 2, ""]]}
    await positions.close()


@in_loop_within(HANGING_S)
async def test_positions_that_do_not_fit_their_log_are_refused(tmp_path: Path) -> None:
    """With them, a group would go on somewhere else than where it was."""
    positions = made(tmp_path)
    await positions.load()
    for offset in (1, 2):
        await positions.set(KEY, offset)
    await positions.close()
    path = tmp_path / "positions.json"
    path.write_bytes(b'{"offset":3,"positions":[]}')
    text = f"{path} has the offset 3, but the log beside it has 0 to 2: restore both from one backup"
    with pytest.raises(LogError) as caught:
        await made(tmp_path).load()
    assert str(caught.value) == text
    path.write_bytes(b"[]")
    with pytest.raises(LogError, match=f"^{tmp_path} does not hold positions: .*; restore it$"):
        await made(tmp_path).load()
    path.write_bytes(b'{"offset":2,"positions":[["billing","orders",1,9]]}')
    again = made(tmp_path)
    await again.load()
    assert again.get(KEY) == 9
    await again.close()


@in_loop_within(HANGING_S)
@pytest.mark.parametrize("force", [False, True])
async def test_a_position_that_was_refused_never_takes_effect(tmp_path: Path, *, force: bool) -> None:
    """The answer was that nothing was stored. If a later call moved the group there, it would miss messages."""
    positions = made(tmp_path)
    await positions.load()
    await positions.set(KEY, 5)
    with failing_disk(positions), pytest.raises(RemoteCallError, match="nothing was stored"):
        await positions.set(KEY, 50, force=force)
    assert positions.get(KEY) == 5  # a member that joins now must not begin at 50
    assert [part async for part in positions.of_group(KEY[0])] == [[(KEY, 5)]]
    assert await positions.set(KEY, 6) == 6
    assert positions.get(KEY) == 6
    await positions.close()
    again = made(tmp_path)
    await again.load()
    assert again.get(KEY) == 6
    await again.close()


@in_loop_within(HANGING_S)
async def test_a_checkpoint_that_waited_during_a_failure_contains_no_refused_position(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = made(tmp_path, checkpoint_records=1)
    await positions.load()
    entered, gate, is_first = threading.Event(), threading.Event(), [True]
    real_write, real_load = write_atomically, Positions._load

    def slow_write(*arguments: Any) -> None:
        if is_first.pop() if is_first else False:
            entered.set()
            assert gate.wait(HANGING_S)
        real_write(*arguments)

    monkeypatch.setattr("tunnel.messages.broker.positions.write_atomically", slow_write)
    writing = [asyncio.ensure_future(positions.set(("group", "topic", number), 1)) for number in range(5)]
    await asyncio.to_thread(entered.wait, HANGING_S)
    for _ in range(10):
        await asyncio.sleep(0)
    with failing_disk(positions), pytest.raises(RemoteCallError):
        await positions.set(KEY, 77)
    reading = threading.Event()

    def slow_load(*arguments: Any) -> Any:
        assert reading.wait(HANGING_S)
        return real_load(*arguments)

    monkeypatch.setattr(Positions, "_load", slow_load)
    recovering = asyncio.ensure_future(positions.set(OTHER, 3))
    for _ in range(10):
        await asyncio.sleep(0)
    gate.set()  # the checkpoints that waited go on before the positions have been read again
    await asyncio.wait(writing)
    reading.set()
    assert await recovering == 3
    assert positions.get(KEY) == 0
    await positions.close()
    again = made(tmp_path)
    await again.load()
    assert (again.get(KEY), again.get(OTHER), again.get(("group", "topic", 4))) == (0, 3, 1)
    await again.close()


@in_loop_within(HANGING_S)
async def test_positions_that_cannot_be_read_again_are_reported_as_a_storage_error(tmp_path: Path) -> None:
    positions = made(tmp_path)
    await positions.load()
    with failing_disk(positions), pytest.raises(RemoteCallError):
        await positions.set(KEY, 5)
    (tmp_path / "positions.json").write_bytes(b"{")
    with pytest.raises(RemoteCallError, match=r"the broker cannot read its positions: .*restore it") as caught:
        await positions.set(KEY, 5)
    assert caught.value.code == STORAGE
    await positions.close()


@in_loop_within(HANGING_S)
async def test_positions_set_while_the_log_is_read_again_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    positions = made(tmp_path)
    await positions.load()
    await positions.set(KEY, 5)
    with failing_disk(positions), pytest.raises(RemoteCallError):
        await positions.set(OTHER, 1)
    entered, gate = asyncio.Event(), threading.Event()
    loop, real = asyncio.get_running_loop(), Positions._load

    def slow(*arguments: Any) -> Any:
        found = real(*arguments)
        loop.call_soon_threadsafe(entered.set)
        assert gate.wait(HANGING_S)
        return found

    monkeypatch.setattr(Positions, "_load", slow)
    first = asyncio.ensure_future(positions.set(KEY, 6))
    await entered.wait()
    second = asyncio.ensure_future(positions.set(OTHER, 7))
    for _ in range(10):
        await asyncio.sleep(0)
    gate.set()
    assert (await first, await second) == (6, 7)
    assert (positions.get(KEY), positions.get(OTHER)) == (6, 7)
    await positions.close()


@in_loop_within(HANGING_S)
async def test_refused_positions_do_not_count_towards_the_limit_of_a_user(tmp_path: Path) -> None:
    """A client that tries until the disk has room again would otherwise be refused for good."""
    async with brokered(tmp_path, settings=BrokerSettings(positions_max=4)) as (broker, client):
        await client.producer().send("t", b"a", b"b")
        with failing_disk(broker.positions):
            for _ in range(4):
                with pytest.raises(RemoteCallError, match="nothing was stored"):
                    await client.commit("one", "t", 0, 1)
        for group in ("two", "three", "two"):
            assert await client.commit(group, "t", 0, 1) == 1
        text = "address 127.0.0.1 has 2, and may have no more than remain free: use an existing group"
        with pytest.raises(RemoteCallError, match=text) as caught:
            await client.commit("four", "t", 0, 1)
        assert caught.value.code == LIMIT
        assert await client.commit("two", "t", 0, 2) == 2
