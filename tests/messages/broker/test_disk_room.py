"""The room on a broker's disk.

It is counted down without a look at the disk, and looked up again when the figure is old or seems used up.
"""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from tunnel.messages.broker.disk_room import DiskRoom, free_bytes
from tunnel.messages.broker.protocol import STORAGE
from tunnel.messages.errors import RemoteCallError

PLACE = Path("/broker")


class Disk:
    """A disk whose free bytes and time the test sets. It records each look."""

    def __init__(self, free: int) -> None:
        self.free = free
        self.now = 0.0
        self.looks: list[Path] = []

    def look(self, directory: Path) -> int:
        self.looks.append(directory)
        return self.free

    def room(self, reserve_bytes: int) -> DiskRoom:
        return DiskRoom(PLACE, reserve_bytes, free=self.look, clock=lambda: self.now)


def test_the_room_is_counted_down_without_a_look_at_the_disk() -> None:
    disk = Disk(100)
    room = disk.room(50)
    room.take(20)
    disk.free = 0
    room.take(20)
    disk.now = 0.5
    room.take(10)
    assert disk.looks == [PLACE]


def test_the_room_is_looked_up_again_when_the_figure_is_old() -> None:
    disk = Disk(100)
    room = disk.room(50)
    room.take(1)
    disk.free, disk.now = 60, 0.6
    room.take(8)
    disk.free, disk.now = 0, 1.0
    room.take(2)
    disk.now = 1.2
    with pytest.raises(RemoteCallError):
        room.take(1)
    assert disk.looks == [PLACE] * 3


def test_the_room_is_looked_up_again_when_it_seems_used_up() -> None:
    disk = Disk(100)
    room = disk.room(50)
    room.take(50)
    disk.free = 1000
    room.take(950)
    assert disk.looks == [PLACE] * 2


def test_a_message_that_does_not_fit_is_refused_and_takes_nothing() -> None:
    disk = Disk(100)
    room = disk.room(50)
    text = (
        "the disk of the broker is full: 100 bytes are left, and 50 of them are reserved; nothing was stored: "
        "free the disk, then send again"
    )
    for _ in range(2):
        with pytest.raises(RemoteCallError) as caught:
            room.take(51)
        assert (caught.value.code, str(caught.value)) == (STORAGE, text)
    room.take(50)
    disk.free = 50
    with pytest.raises(RemoteCallError, match="50 bytes are left, and 50 of them are reserved"):
        room.take(1)


def test_only_the_room_that_this_process_may_use_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the free blocks are reserved for root.

    The sizes are in fragments (f_frsize), not in the preferred size of a read (f_bsize).
    """
    seen: list[Path] = []

    def statvfs(directory: Path) -> SimpleNamespace:
        seen.append(directory)
        return SimpleNamespace(f_bsize=1 << 20, f_frsize=4096, f_blocks=100, f_bfree=8, f_bavail=3)

    monkeypatch.setattr(os, "statvfs", statvfs)
    assert free_bytes(PLACE) == 3 * 4096
    assert seen == [PLACE]
