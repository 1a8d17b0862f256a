"""What several tests of trace files share: contents, and how a file is read back."""

from pathlib import Path

import zstandard

from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import read_trace
from tunnel.traces.salvage import SUFFIX

__all__ = ["CONTENTS", "FRAMES", "WAIT_S", "read_all", "record"]

CONTENTS = [b'{"a":%d}\n' % number * 50 for number in range(4)]
FRAMES = [zstandard.ZstdCompressor(level=1, write_checksum=True).compress(content) for content in CONTENTS]
WAIT_S = 30.0


def record(number: int, text: str = "") -> TraceRecord:
    return TraceRecord(time_us=number, node="a", event=TraceEvent.ATTACHED, text=text)


def read_all(directory: Path) -> list[TraceRecord]:
    return [each for path in sorted(directory.glob(f"*{SUFFIX}")) for each in read_trace(path)]
