"""What the dialing half of the lanes may be told. Every field has a unit in its name and a reason beside it."""

from dataclasses import dataclass

from tunnel.wire import EXCHANGE_BYTES, HEADER_SIZE, PACKET_SIZE_MAX

__all__ = ["KIB", "MIB", "MILLISECOND_US", "SECOND_US", "LaneConfig"]

KIB = 1024
MIB = 1024 * 1024
MILLISECOND_US = 1_000
SECOND_US = 1_000_000

_LANES_LIMIT = 0xFFFF  # 7.2: a lane is named in 16 bits
_MILLISECONDS_LIMIT_US = (2**32 - 1) * 1000  # 7.2, 7.11: times travel as 32 bits of milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """Limits and times of one attachment's lanes; checked when made, constant afterwards."""

    lanes_start: int = 2
    """Exchanges at once in the beginning: one pull that is held, one push."""
    lanes_max: int = 8
    """Exchanges at once at most; browsers and proxies take 6 to 8 connections of one client for granted."""
    adapt_lanes: bool = True
    """Add lanes while bodies are the limit, give them back when idle; else `lanes_start` stay."""
    one_connection: bool = False
    """The path carries one HTTP connection at a time: one lane, nothing is held, and no attempt beside another."""
    body_bytes_start: int = 64 * KIB
    """First limit of a request or response body: what a slow path (1 MB/s) carries in less than 100 ms."""
    body_bytes_min: int = 16 * KIB
    """Limits never shrink below it (7.9)."""
    body_bytes_max: int = MIB
    """Largest request body; the default limit of nginx, and of aiohttp servers."""
    answer_bytes_max: int = MIB
    """Largest response body that is asked for."""
    hold_us: int = 15 * SECOND_US
    """Longest hold of a pull: below the 20, 30, 60 and 100 s after which proxies were seen to cut."""
    hold_us_min: int = 2 * SECOND_US
    """Holds never shrink below it, however early the path cuts."""
    pull_interval_us: int = 0
    """Pull every so often, without a hold; 0: always."""
    packet_bytes_max: int = PACKET_SIZE_MAX
    """Largest packet that is put together from pieces."""

    def __post_init__(self) -> None:
        if not 1 <= self.lanes_start <= self.lanes_max <= _LANES_LIMIT:
            raise ValueError(f"lanes must satisfy 1 <= lanes_start <= lanes_max <= {_LANES_LIMIT}")
        if not EXCHANGE_BYTES + 2 * HEADER_SIZE <= self.body_bytes_min <= self.body_bytes_start <= self.body_bytes_max:
            raise ValueError("bodies must satisfy 116 <= body_bytes_min <= body_bytes_start <= body_bytes_max")
        if not self.body_bytes_min <= self.answer_bytes_max < 2**32 or self.body_bytes_max >= 2**32:
            raise ValueError("answer_bytes_max must be at least body_bytes_min, and both largest bodies below 2**32")
        if not 0 < self.hold_us_min <= self.hold_us <= _MILLISECONDS_LIMIT_US:
            raise ValueError("holds must satisfy 0 < hold_us_min <= hold_us, within 32 bits of milliseconds")
        if not 0 <= self.pull_interval_us <= _MILLISECONDS_LIMIT_US:
            raise ValueError("pull_interval_us must not be negative, and fit 32 bits of milliseconds")
        if not HEADER_SIZE <= self.packet_bytes_max <= PACKET_SIZE_MAX:
            raise ValueError(f"packet_bytes_max must lie between {HEADER_SIZE} and {PACKET_SIZE_MAX}")
