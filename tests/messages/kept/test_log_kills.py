"""A process that writes a log is killed, in the middle of whatever it does."""

import subprocess
import sys
from pathlib import Path

from tunnel.messages.kept.log import Log

CHILD = """
import sys
from tunnel.messages.sets.file_sets import FileMessageSet
from tunnel.messages.kept.log import Log, LogConfig
with Log.open(sys.argv[1], LogConfig(flush_messages=10, flush_s=0.001, segment_bytes=20_000)) as log:
    while True:
        offset = log.append([b"%d" % (log.next_offset + index) for index in range(50)])
        log.flush()
        print(log.end_offset, flush=True)
"""


def test_kill_9_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    for _ in range(3):
        with subprocess.Popen([sys.executable, "-c", CHILD, str(tmp_path)], stdout=subprocess.PIPE, text=True) as child:
            assert child.stdout is not None
            try:
                told = [int(child.stdout.readline()) for _ in range(30)]
            finally:
                child.kill()
            rest = [int(line) for line in child.stdout.read().split("\n")[:-1]]
        with Log.open(tmp_path) as log:
            assert log.end_offset >= max([*told, *rest])
            found: list[bytes] = []
            while len(found) < log.end_offset:
                found += log.read(len(found), 100_000).payloads()
            assert found == [b"%d" % number for number in range(log.end_offset)]
