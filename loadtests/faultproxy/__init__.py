"""A real HTTP/1.1 proxy that damages exchanges on purpose, by a seeded plan: `python -m loadtests.faultproxy --help`.

`faults` makes the plan; `mangle` damages bodies, `frames` damages websockets, and `gate` blocks all traffic; `exchange`
and its helpers forward messages; `proxy` ties them together. The end of a message is found by HTTP's framing rules. A
client that ends its direction of the connection before it gets an answer is treated as having left.
"""

from loadtests.faultproxy.options import (
    Blackhole,
    Delay,
    Drop,
    FaultProxyOptions,
    Flip,
    FrameBuffer,
    FrameClose,
    FrameCut,
    FrameFaults,
    FrameFlip,
    FrameStall,
    Html,
    IdleCut,
    LateDuplicate,
    Status,
    Truncate,
)
from loadtests.faultproxy.proxy import FaultProxy
from loadtests.faultproxy.recorder import Counts

__all__ = [
    "Blackhole",
    "Counts",
    "Delay",
    "Drop",
    "FaultProxy",
    "FaultProxyOptions",
    "Flip",
    "FrameBuffer",
    "FrameClose",
    "FrameCut",
    "FrameFaults",
    "FrameFlip",
    "FrameStall",
    "Html",
    "IdleCut",
    "LateDuplicate",
    "Status",
    "Truncate",
]
