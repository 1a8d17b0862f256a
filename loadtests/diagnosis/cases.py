"""The cases: what is wrong with a transfer, and the cause that the verdict must name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from loadtests.faultproxy import Delay, Drop, Status

__all__ = ["CASES", "EVERY", "INVENTED", "LATER", "Act", "Case"]

KIB, MIB = 1 << 10, 1 << 20
_DAY_US = 24 * 3_600_000_000


@dataclass(frozen=True, slots=True)
class Act:
    """An event that strikes a process in the middle of the transfer."""

    who: str
    """relay, client, service or path; for `kill` also "all". After a client was killed, nothing more happens."""
    what: str
    """freeze (SIGSTOP), kill (SIGKILL; a relay is started again) or, of the path, block (nothing passes)."""
    for_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Case:
    """A transfer from a client to a service, each in a process of its own, over a relay in a third one."""

    name: str
    cause: str
    """The expected cause, one of tunnel.analysis.verdicts.families.FAMILIES."""
    size_bytes: int = 2 * MIB
    writing_s: float = 10.0
    """The writer ends after this time at the latest, so that a case takes no longer on a slow machine."""
    chunk_bytes: int = 16 * KIB
    write_pause_s: float = 0.0
    flush_every: int = 0
    """The writer waits until everything is acknowledged each time it has written this number of chunks."""
    acts_after: int = 1 * MIB
    """When the reader has read this number of bytes, it stops reading for `stop_s`, and `act` happens."""
    read_bytes: int = 64 * KIB
    read_pause_s: float = 0.0
    stop_s: float = 0.0
    """The reader reads nothing for this time, once."""
    accept_s: float = 0.0
    """The service appears this long after the client."""
    carrier: str = "poll"
    pull_interval_us: int = 0
    window_bytes: int = 0
    """The service's receive window; 0: as usual."""
    faults: dict[str, Any] = field(default_factory=dict)
    """Options of a fault proxy between the client and the relay."""
    has_path: bool = False
    """There is a fault proxy, even without options."""
    bytes_per_s: int = 0
    """The rate of the path between the client and the relay; 0: no limit."""
    loss: str = ""
    """The relay loses single packets by this model."""
    clock_us: int = 0
    """The relay's clock is ahead by this."""
    inline: bool = False
    """The service is a TCP server, which the relay itself dials."""
    untraced: tuple[str, ...] = ()
    connections: int = 1
    """The client opens this number in turn, and each writes everything."""
    has_second: bool = False
    """A second client, whose way to the relay is sound, writes the same at the same time."""
    act: Act | None = None


_LOSSY: dict[str, Any] = {"size_bytes": 64 * MIB, "chunk_bytes": 8 * KIB, "flush_every": 8, "writing_s": 4.0}
_TRYING: dict[str, Any] = {"size_bytes": 256 * MIB, "chunk_bytes": 64 * KIB, "flush_every": 4, "writing_s": 4.0}

CASES = (
    Case("slow reader", "reader", size_bytes=6 * MIB, read_bytes=64 * KIB, read_pause_s=0.04),
    Case("stalled reader", "reader", size_bytes=4 * MIB, window_bytes=256 * KIB, stop_s=5.0),
    Case("slow writer", "writer", size_bytes=160 * KIB, chunk_bytes=2 * KIB, write_pause_s=0.05),
    Case("300 ms", "delay", size_bytes=4 * MIB, faults={"delay": Delay(150_000)}),
    Case("60 KB/s", "rate", size_bytes=300 * KIB, bytes_per_s=60_000),
    Case("413 above 8 KiB", "http", size_bytes=2 * MIB, faults={"limit_bytes": 8 * KIB}),
    Case("503 at 15 %", "http", faults={"statuses": (Status(503, 0.15),)}, **_TRYING),
    Case("10 % Bernoulli at the relay", "loss", loss="0.1", **_LOSSY),
    Case("Gilbert, short bursts", "loss", loss="gilbert:0.05:0.5", **_LOSSY),
    Case("Gilbert-Elliott, long bursts", "loss", loss="gilbert:0.02:0.3:0.01:0.9", **_LOSSY),
    Case("10 % of requests lost", "http", faults={"drop_request": Drop(0.1, silent=True)}, **_TRYING),
    Case("blackhole of 6 s", "http", size_bytes=2 * MIB, write_pause_s=0.002, has_path=True,
         act=Act("path", "block", 6.0)),
    Case("relay killed", "http", size_bytes=2 * MIB, write_pause_s=0.02, act=Act("relay", "kill", 3.0)),
    Case("relay frozen", "relay_loop", size_bytes=2 * MIB, write_pause_s=0.002, act=Act("relay", "freeze", 4.0)),
    Case("client frozen", "loop", size_bytes=2 * MIB, write_pause_s=0.002, act=Act("client", "freeze", 4.0)),
    Case("window of 16 KiB", "window", size_bytes=1 * MIB, window_bytes=16 * KIB, faults={"delay": Delay(20_000)}),
    Case("one end traced", "loss", loss="0.1", untraced=("service",), **_LOSSY),
    Case("relay's clock 3 days off", "relay_loop", size_bytes=2 * MIB, write_pause_s=0.002, clock_us=3 * _DAY_US,
         inline=True, act=Act("relay", "freeze", 4.0)),
    Case("killed at the end", "reader", size_bytes=4 * MIB, window_bytes=256 * KIB, stop_s=60.0,
         act=Act("all", "kill", 5.0)),
)  # fmt: skip

INVENTED = (
    Case("service frozen", "peer_loop", size_bytes=2 * MIB, write_pause_s=0.002, window_bytes=64 * KIB,
         act=Act("service", "freeze", 4.0)),
    Case(
        "429 at 25 %, Retry-After of 1 s", "http", size_bytes=2 * MIB,
        faults={"statuses": (Status(429, 0.25, retry_after_s=1),)},
    ),
    Case("service appears after 4 s", "connecting", size_bytes=1 * MIB, accept_s=4.0),
    Case("answers cut off", "http", faults={"drop_response": Drop(0.15)}, **_TRYING),
    Case("nothing wrong", "rate", size_bytes=64 * MIB, chunk_bytes=256 * KIB, carrier="link"),
)  # fmt: skip

LATER = (
    Case("slow reader behind 16 MiB", "reader", size_bytes=3 * MIB, window_bytes=16 * MIB, read_pause_s=0.1),
    Case("late reader behind 16 MiB", "reader", size_bytes=4 * MIB, window_bytes=16 * MIB, acts_after=64 * KIB,
         stop_s=4.0),
    Case("413 above 8 KiB, 120 ms", "bodies", size_bytes=512 * KIB,
         faults={"limit_bytes": 8 * KIB, "delay": Delay(60_000)}),
    Case("short connections, 50 ms", "delay", size_bytes=1 * KIB, chunk_bytes=1 * KIB, connections=30,
         faults={"delay": Delay(25_000)}),
    Case("client killed", "writer", size_bytes=4 * MIB, write_pause_s=0.02, act=Act("client", "kill")),
    Case("502 at 12 % on one of two ways", "http", faults={"statuses": (Status(502, 0.12),)}, has_second=True,
         **_TRYING),
)  # fmt: skip

EVERY = (*CASES, *INVENTED, *LATER)
