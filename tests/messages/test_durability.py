"""The power fails at every step of a log, and again in the lives after it: what was promised is still true.

`tests/support/disk.py` says what a power failure leaves. Each life of a random run opens what the last one left.
"""

import os
import shutil
from collections.abc import Collection
from pathlib import Path
from random import Random

import pytest

from tests.support.disk import RecordedDisk
from tests.support.power import Crash
from tunnel.messages.kept.log import Log, LogConfig
from tunnel.messages.kept.segments import segment_path
from tunnel.messages.sets.message import encode_payloads

NEVER_S = 3600.0
SMALL = LogConfig(flush_messages=1_000_000, flush_s=NEVER_S, segment_bytes=150)


@pytest.fixture(autouse=True)
def no_real_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the real disk: the recorded disk knows the content that it would have after a power failure."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


def payload(number: int) -> bytes:
    return b"%d:" % number + b"x" * (number * 7 % 50)


def read(log: Log) -> list[bytes]:
    found: list[bytes] = []
    while log.first_offset + len(found) < log.end_offset:
        found += log.read(log.first_offset + len(found), 300).payloads()
    return found


def check_log(directory: Path, crash: Crash, *, appended: int) -> int:
    """Open what is left of a log, and check it against the promises; return its end."""
    with Log.open(directory, SMALL) as log:
        durable, trimmed = crash.last("durable", 0), crash.last("trimmed", 0)
        assert durable <= log.end_offset <= appended, "a message that was reported as durable is lost"
        assert log.first_offset <= max(trimmed, 0), "more was removed than asked for"
        assert read(log) == [payload(number) for number in range(log.first_offset, log.end_offset)]
        return log.end_offset


def append(disk: RecordedDisk, log: Log, count: int) -> None:
    log.append([payload(log.next_offset + index) for index in range(count)])


def flush(disk: RecordedDisk, log: Log) -> None:
    log.flush()
    disk.mark("durable", log.end_offset)


def test_a_power_failure_at_any_step_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        with Log.open(disk.root / "deep" / "log", SMALL) as log:
            for count in (1, 5, 2, 9, 1, 4):
                append(disk, log, count)
                flush(disk, log)
            disk.mark("trimmed", 9)
            log.trim(9)
            append(disk, log, 3)
        disk.mark("durable", 25)
        with Log.open(disk.root / "deep" / "log", SMALL) as log:
            append(disk, log, 2)
            flush(disk, log)
    ends = set()
    for crash in disk.crashes():
        for _ in crash.images(tmp_path / "image", range(4)):
            ends.add(check_log(tmp_path / "image" / "deep" / "log", crash, appended=27))
    assert {0, 27} < ends


@pytest.mark.parametrize("seed", range(20))
def test_a_log_survives_one_death_after_another(tmp_path: Path, seed: int) -> None:
    """In each life the power fails, or the process is killed, at any step, and the next life opens what is left."""
    random = Random(seed)
    known = trimmed = 0  # what the last life left
    crash: Crash | None = None
    for life in range(6):
        with RecordedDisk(tmp_path / "disk", killed=crash) as disk:
            disk.mark("durable", known)
            disk.mark("trimmed", trimmed)
            with Log.open(disk.root / "log", SMALL) as log:
                disk.mark("durable", log.end_offset)  # readers may have seen it
                for _ in range(random.randrange(6)):
                    append(disk, log, random.randrange(1, 6))
                    if random.random() < 0.7:
                        flush(disk, log)
                    if random.random() < 0.2:
                        trimmed = random.randrange(log.first_offset, log.end_offset + 1)
                        disk.mark("trimmed", max(trimmed, log.first_offset))
                        log.trim(trimmed)
                appended = log.next_offset
        power_fails = random.random() < 0.6 or life == 4
        place = tmp_path / "disk" if power_fails else tmp_path / "spared"
        ended = fail(disk, random, place, spared=() if power_fails else ["log"])
        crash = None if power_fails else ended
        shutil.rmtree(tmp_path / "copy", ignore_errors=True)
        shutil.copytree(place, tmp_path / "copy")
        end = check_log(tmp_path / "copy" / "log", ended, appended=appended)
        known = end if power_fails else ended.last("durable", 0)
        trimmed = ended.last("trimmed", 0)


def fail(disk: RecordedDisk, random: Random, place: Path, spared: Collection[str]) -> Crash:
    """At one step, mostly a late one, let the power fail, or with `spared` the process die; write what is left."""
    steps = len(disk.steps)
    chosen = steps - min(steps, int(random.expovariate(1 / 8)))
    for crash in disk.crashes():
        if crash.steps == chosen:
            crash.write(place, random, spared=spared)
            return crash
    raise AssertionError


def test_a_tail_that_was_cut_off_never_comes_back(tmp_path: Path) -> None:
    """Recovery cuts off a torn message and the whole one after it. If the cut were not on disk before a new message
    takes the place of the torn one, the next power failure could bring back the whole one, which was sent again."""
    torn, behind = encode_payloads([b"sent first"]), encode_payloads([b"behind"])
    with RecordedDisk(tmp_path / "disk") as disk:
        Log.open(disk.root, SMALL).close()
        descriptor = os.open(segment_path(disk.root, 0), os.O_RDWR | os.O_APPEND)
        os.write(descriptor, bytes(len(torn)) + behind)
        os.fsync(descriptor)
        os.close(descriptor)
        with Log.open(disk.root, SMALL) as log:
            assert log.cut_bytes == len(torn) + len(behind)
            log.append([b"sent again"])
            log.flush()
    for crash in disk.crashes():
        for _ in crash.images(tmp_path / "image", range(60)):
            with Log.open(tmp_path / "image", SMALL) as log:
                assert read(log) in ([], [b"sent again"])


def test_messages_of_a_killed_process_are_on_disk_before_readers_see_them(tmp_path: Path) -> None:
    """A message that was read, and perhaps confirmed to its sender, must not disappear when the power fails later."""
    with RecordedDisk(tmp_path / "disk") as first, Log.open(first.root / "log", SMALL) as log:
        append(first, log, 3)
    written = next(crash for crash in first.crashes() if crash.seen().get(f"log/{0:020d}.log"))
    with RecordedDisk(tmp_path / "disk", killed=written) as disk, Log.open(disk.root / "log", SMALL) as log:
        assert log.end_offset == 3
        disk.mark("durable", 3)
    for crash in disk.crashes():
        for _ in crash.images(tmp_path / "image", range(5)):
            check_log(tmp_path / "image" / "log", crash, appended=3)
