"""The measures of each second as rows: JSON lines that the processes write during a run.

`gates.py` and `page.py` judge and show them afterwards.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

from tunnel import AttachmentStats

__all__ = ["Row", "read_rows", "row_of"]

Row = dict[str, Any]


def row_of(stats: AttachmentStats | None) -> Row:
    """Return the tunnel's measures of a process: queues and retransmissions summed over its connections, and times."""
    if stats is None:
        return {"connections": 0}
    found = stats.connections.values()
    return {
        "attached": stats.attached,
        "connections": len(found),
        "send_queue_bytes": sum(one.bytes_written - one.bytes_acknowledged for one in found),
        "unsent_bytes": sum(one.bytes_buffered for one in found),
        "receive_queue_bytes": sum(one.receive_buffer_bytes for one in found),
        "in_flight_packets": sum(one.in_flight_packets for one in found),
        "unreceipted_batches": stats.batches_unreceipted,
        "resent_packets": sum(one.packets_resent for one in found),
        "spurious_packets": sum(one.packets_spurious for one in found),
        "srtt_ms": _median_ms(one.srtt_us for one in found),
        "rto_ms": _median_ms(one.rto_us for one in found),
        "rto_ms_max": max((one.rto_us for one in found), default=0) / 1000,
        "backoff_max": max((one.backoff for one in found), default=0),
    }


def _median_ms(values: Iterable[int]) -> float:
    known = [value for value in values if value]
    return median(known) / 1000 if known else 0.0


def read_rows(directory: Path, name: str) -> list[Row]:
    """Return the rows of all processes with this name, ordered by time. Lines that are not JSON, such as a last line
    that was cut off, are left out."""
    rows = []
    for file in sorted(directory.glob(f"{name}-*.jsonl")):
        for line in file.read_bytes().splitlines():
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return sorted(rows, key=lambda row: float(row["time_s"]))
