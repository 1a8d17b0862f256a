"""A trace directory with every kind of damage."""

import shutil
from pathlib import Path

import msgspec
import zstandard

from tunnel.traces import TraceEvent, TraceRecord
from tunnel.traces.jsonl import encode_record
from tunnel.traces.salvage import SUFFIX

__all__ = ["BAD_LINES", "FRAME_RECORDS", "damaged_directory"]

FRAME_RECORDS = 4096
_IMPOSSIBLE = {"time_us": 1 << 62, "sequence": (1 << 63) - 1, "size_bytes": (1 << 63) - 1, "attempt": -1}
BAD_LINES = 1 + len(_IMPOSSIBLE)


def damaged_directory(directory: Path) -> dict[str, str]:
    """Write one whole file, and others with every kind of damage; return the problem of each damaged file by name."""
    for name in ("whole", "truncated", "corrupt", "newer"):
        _write(directory, name)
    names = {path.name.split("-")[0]: path for path in directory.iterdir()}
    cut = names["truncated"].read_bytes()
    names["truncated"].write_bytes(cut[: len(cut) - 100])
    _corrupt(names["corrupt"])
    _make_newer(names["newer"])
    shutil.copy(names["whole"], directory / f"zcopy{SUFFIX}")
    (directory / f"empty{SUFFIX}").write_bytes(b"")
    (directory / f"_left-1-1-1{SUFFIX}").write_bytes(b"x")
    return {
        names["truncated"].name: "truncated",
        names["corrupt"].name: "corrupt",
        names["newer"].name: "version",
        f"zcopy{SUFFIX}": "duplicate",
        f"empty{SUFFIX}": "empty",
        f"_left-1-1-1{SUFFIX}": "open",
    }


def _write(directory: Path, name: str) -> None:
    """Write what a TraceWriter would write if it flushed only full frames; a real one flushes by time, too."""
    directory.mkdir(parents=True, exist_ok=True)
    writer = f"{name}-1-aa"
    lines = [
        encode_record(
            TraceRecord(
                time_us=number * 1000,
                node=name,
                event=TraceEvent.LOOP_LAG,
                latency_us=number,
                text=name,
                writer=writer,
                number=number + 1,
            )
        )
        + b"\n"
        for number in range(2 * FRAME_RECORDS + 100)
    ]
    compressor = zstandard.ZstdCompressor(level=1, write_checksum=True)
    frames = [
        compressor.compress(b"".join(lines[begin : begin + FRAME_RECORDS]))
        for begin in range(0, len(lines), FRAME_RECORDS)
    ]
    (directory / f"{writer}-00001{SUFFIX}").write_bytes(b"".join(frames))


def _corrupt(path: Path) -> None:
    """Damage the middle of the second of the three frames."""
    data = bytearray(path.read_bytes())
    second = data.index(b"\x28\xb5\x2f\xfd", 10)
    third = data.index(b"\x28\xb5\x2f\xfd", second + 10)
    for at in range((second + third) // 2, (second + third) // 2 + 40):
        data[at] ^= 0x5A
    path.write_bytes(bytes(data))


def _make_newer(path: Path) -> None:
    """Add a frame with a line of a version that does not exist yet, some with impossible numbers, and no JSON."""
    line = {"version": 99, "time_us": 1, "node": "future", "event": "beamed", "writer": "w", "number": 1}
    sent = {"version": 1, "time_us": 1, "node": "newer", "event": "packet_sent", "packet_type": 4}
    lines = [line, *(sent | {name: value} for name, value in _IMPOSSIBLE.items())]
    with path.open("ab") as file:
        file.write(zstandard.ZstdCompressor().compress(msgspec.json.Encoder().encode_lines(lines) + b"no json\n"))
