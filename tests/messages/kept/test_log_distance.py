"""How far an offset is from the end of a log, and whether what a reader wants there is in the page cache."""

import errno
import os
from pathlib import Path

import pytest

from tunnel.messages.errors import OffsetOutOfRangeError
from tunnel.messages.kept.log import Log, LogConfig


def test_a_log_knows_how_many_bytes_come_after_an_offset(tmp_path: Path) -> None:
    with Log.open(tmp_path, LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=50_000)) as log:
        for _ in range(6):
            log.append([bytes(20_470)])  # 20,480 bytes on disk: each message has its entry in the index
            log.flush()
        assert len(log._segments) == 2
        for offset in range(6):
            left = (6 - offset) * 20_480
            assert log.has_more_than(left - 1, offset)
            assert not log.has_more_than(left, offset)
        assert not log.has_more_than(0, 6)
        for offset in (7, -1):
            with pytest.raises(OffsetOutOfRangeError):
                log.has_more_than(0, offset)


def test_a_log_asks_for_the_part_of_the_page_cache_that_a_read_needs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []

    def preadv(descriptor: int, buffers: list[bytearray], position: int, flags: int) -> int:
        asked.append(position)
        raise BlockingIOError if position == 40_960 else OSError(errno.EOPNOTSUPP, "")

    with Log.open(tmp_path, LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=100_000)) as log:
        for _ in range(6):
            log.append([bytes(20_470)])
            log.flush()
        monkeypatch.setattr(os, "preadv", preadv)
        assert log.is_cached(2, 1000) is False
        assert log.is_cached(3, 1000) is None
        assert log.is_cached(6, 1000) is True  # nothing is to be read
        assert asked == [40_960, 61_440]
        monkeypatch.undo()
        log.trim(5)
        with pytest.raises(OffsetOutOfRangeError):
            log.is_cached(2, 1000)
