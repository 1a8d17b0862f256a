"""Which segments a log keeps, by size, by age, and when it is trimmed."""

import os
import threading
import time
from pathlib import Path
from typing import Any

from tests.messages.logs import config, payloads
from tunnel.messages.log import Log


def test_retention_removes_old_segments(tmp_path: Path) -> None:
    with Log.open(tmp_path / "bytes", config(segment_bytes=50, retain_bytes=200)) as log:
        for _ in range(10):
            log.append([bytes(50)])
            log.flush()
    with Log.open(tmp_path / "bytes") as log:
        assert log.end_offset == 10
        assert 6 <= log.first_offset < 10
    with Log.open(tmp_path / "time", config(segment_bytes=50, retain_s=-1.0)) as log:
        for _ in range(3):
            log.append([bytes(50)])
            log.flush()
    with Log.open(tmp_path / "time") as log:
        assert log.first_offset == log.end_offset == 3


def aged(directory: Path, *bases: int) -> None:
    """Let segments look as if they had been written last 1,000 s ago."""
    for base in bases:
        before = time.time() - 1000
        os.utime(directory / f"{base:020d}.log", (before, before))


def filled(directory: Path, count: int, **changes: Any) -> None:
    """Make a log with a segment of 60 bytes for each message, and an empty last one."""
    with Log.open(directory, config(segment_bytes=50, **changes)) as log:
        for _ in range(count):
            log.append([bytes(50)])
            log.flush()


def test_as_many_segments_are_kept_as_the_bytes_allow(tmp_path: Path) -> None:
    filled(tmp_path, 5, retain_bytes=120)
    with Log.open(tmp_path) as log:
        assert (log.first_offset, log.end_offset, log.size_bytes) == (3, 5, 120)


def test_segments_are_kept_until_they_and_all_before_them_are_too_old(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    aged(tmp_path, 0, 1, 3)
    with Log.open(tmp_path) as log:
        log.retain()
        assert log.first_offset == 0
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        log.retain()
        assert (log.first_offset, log.end_offset) == (2, 5)
    aged(tmp_path, 2, 4)
    with Log.open(tmp_path, config(retain_s=2000.0)) as log:
        log.retain()
        assert log.first_offset == 2


def test_the_last_segment_is_removed_too_when_it_is_too_old(tmp_path: Path) -> None:
    with Log.open(tmp_path, config()) as log:
        log.append([b"old"])
    aged(tmp_path, 0)
    with Log.open(tmp_path, config(retain_s=2000.0)) as log:
        log.retain()
        assert not log._must_roll
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        log.retain()
        while log.first_offset < 1:
            threading.Event().wait(0.001)
        assert (log.first_offset, log.end_offset) == (1, 1)
        aged(tmp_path, 1)
        log.retain()  # an empty segment is not replaced
        assert not log._must_roll
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_trimming_keeps_the_segment_that_has_the_offset(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    with Log.open(tmp_path) as log:
        for before, first in ((0, 0), (1, 1), (2, 2), (2, 2)):
            log.trim(before)
            assert log.first_offset == first
            assert len(payloads(log, first)) == 4 - first
