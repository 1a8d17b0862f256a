"""Which segments a log keeps, by size, by age, and when it is trimmed."""

import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tests.messages.logs import config, payloads
from tunnel.messages.errors import LogError
from tunnel.messages.kept.log import Log
from tunnel.messages.kept.segments import Segment
from tunnel.system import clock


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


def test_a_segment_that_is_written_again_is_new_again(tmp_path: Path) -> None:
    with Log.open(tmp_path, config()) as log:
        log.append([b"old"])
    aged(tmp_path, 0)
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        log.append([b"new"])
        log.flush()
        log.retain()
        assert not log._must_roll
        assert payloads(log) == [b"old", b"new"]


def test_trimming_keeps_the_segment_that_has_the_offset(tmp_path: Path) -> None:
    filled(tmp_path, 4)
    with Log.open(tmp_path) as log:
        for before, first in ((0, 0), (1, 1), (2, 2), (2, 2)):
            log.trim(before)
            assert log.first_offset == first
            assert len(payloads(log, first)) == 4 - first


def test_a_segment_that_was_just_trimmed_does_not_stop_the_retention(tmp_path: Path) -> None:
    """`trim` and `retain` may run in two threads. In the writer thread, an error would end the log."""
    filled(tmp_path, 4)
    aged(tmp_path, 1)
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        (tmp_path / f"{0:020d}.log").unlink()
        log.retain()
        assert (log.first_offset, log.error) == (2, None)


def test_a_log_without_a_limit_of_age_keeps_everything(tmp_path: Path) -> None:
    with Log.open(tmp_path, config()) as log:
        log.append([b"old"])
    aged(tmp_path, 0)
    with Log.open(tmp_path, config()) as log:
        log.retain()
    with Log.open(tmp_path) as log:
        assert payloads(log) == [b"old"]


def test_the_oldest_segments_are_removed_until_the_rest_fits_into_retain_bytes(tmp_path: Path) -> None:
    filled(tmp_path, 5)
    with Log.open(tmp_path, config(retain_bytes=120, retain_s=10_000.0)) as log:
        log.retain()
        assert (log.first_offset, log.size_bytes) == (3, 120)


def test_a_segment_whose_age_equals_the_limit_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    filled(tmp_path, 2)
    with Log.open(tmp_path, config()) as log:
        log.append([b"last"])
    for base in range(3):
        os.utime(tmp_path / f"{base:020d}.log", (900, 900))
    now = 1000.0
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(clock, "passed_s", lambda: now)
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        log.retain()
        assert (log.first_offset, log._must_roll, log.end_offset) == (0, False, 3)
        now = 1000.5
        log.retain()
        while log.first_offset < 3:
            threading.Event().wait(0.001)
    assert len(list(tmp_path.glob("*.log"))) == 1


def test_a_log_that_has_failed_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator has to look at it."""
    filled(tmp_path, 2)

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        log.append([b"last"])
        with pytest.raises(LogError):
            log.flush()
        aged(tmp_path, 0, 1)
        log.retain()
        assert log.first_offset == 0


def test_two_callers_that_remove_old_messages_at_once_replace_the_last_segment_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second new segment would have the name of the first: its messages would be lost."""
    with Log.open(tmp_path, config()) as log:
        log.append([b"old"])
    aged(tmp_path, 0)
    real = Segment.age_s

    def slow(segment: Segment) -> float:
        age_s = real(segment)
        monkeypatch.setattr(Segment, "age_s", real)
        log.retain()  # another thread comes in between
        while log.first_offset < 1:
            threading.Event().wait(0.001)
        return age_s

    with Log.open(tmp_path, config(retain_s=100.0)) as log:
        monkeypatch.setattr(Segment, "age_s", slow)
        log.retain()
        while log._must_roll:
            threading.Event().wait(0.001)
        log.flush()
        assert sorted(path.name for path in tmp_path.glob("0*")) == [f"{1:020d}.log"]  # not sealed
        log.append([b"new"])
        log.flush()
        assert payloads(log, 1) == [b"new"]
    with Log.open(tmp_path) as log:
        assert (log.first_offset, payloads(log, 1)) == (1, [b"new"])
