"""Settings of the endpoint's lanes. A field's name includes its unit; the text below it explains its value."""

from dataclasses import dataclass

from tunnel.wire import EXCHANGE_BYTES, HEADER_SIZE, PACKET_SIZE_MAX

__all__ = ["KIB", "MIB", "MILLISECOND_US", "OR_WAIT", "SECOND_US", "TROUBLE_US", "LaneConfig"]

KIB = 1024
MIB = 1024 * 1024
MILLISECOND_US = 1_000
SECOND_US = 1_000_000
TROUBLE_US = 750 * MILLISECOND_US
OR_WAIT = ", or pass wait=True to try for longer"
"""The end of an error that `LaneConfig.wait` prevents. Commands put the option that they have in its place."""

_LANES_LIMIT = 0xFFFF  # 7.2: a lane is named in 16 bits
_MILLISECONDS_LIMIT_US = (2**32 - 1) * 1000  # 7.2, 7.11: times travel as 32 bits of milliseconds


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneConfig:
    """Limits and times of one attachment's lanes. They are checked on creation and constant afterwards."""

    lanes_start: int = 2
    """Number of lanes at first: one for a held pull, one for a push."""
    lanes_max: int = 8
    """Largest number of lanes. Browsers and proxies treat 6 to 8 connections of one client as normal."""
    adapt_lanes: bool = True
    """Add lanes while full bodies may not grow any more, and give idle lanes back. If false, only probes (7.16) and
    streams (7.20) add any."""
    one_connection: bool = False
    """The path carries one HTTP connection at a time: use one lane, hold no pull, keep at most one attempt open."""
    body_bytes_start: int = 64 * KIB
    """First limit of a request or response body. A slow path (1 MB/s) carries that much in less than 100 ms."""
    body_bytes_min: int = 16 * KIB
    """A slow path never lowers body limits below this; only refusals of large bodies do."""
    body_bytes_max: int = MIB
    """Largest request body: the default limit of nginx and of aiohttp servers."""
    answer_bytes_max: int = MIB
    """Largest response body that the endpoint asks for."""
    hold_us: int = 55 * SECOND_US
    """Longest hold of a pull. Proxies were seen to cut an idle exchange after 20, 30, 60 and 100 s."""
    hold_us_start: int = 15 * SECOND_US
    """Longest hold at first. Longer ones are tried while the path endures these."""
    hold_us_min: int = 2 * SECOND_US
    """The longest hold never shrinks below this, however early the path cuts pulls."""
    stream_us: int = 55 * SECOND_US
    """Longest age of a streamed answer, also of the first one: empty envelopes keep proxies from cutting it as idle."""
    stream_after_us: int = 2 * SECOND_US
    """Age of an attachment at which it tries streamed answers. An attachment that has moved 256 KiB tries at once; one
    that ends sooner never pays for the try."""
    pull_interval_us: int = 0
    """Send a pull at this interval, without a hold. With 0, pulls are sent continuously."""
    wait: bool | None = None
    """The meaning of an intermediary's definite answer before the first attach (7.9). If true, login pages are failures
    like any other, too. If false, each definite answer is final, and so is a relay or a proxy where nothing listens. If
    None, only refusals and redirects are final."""
    trouble_us: int = TROUBLE_US
    """Failures are reported as trouble when they have lasted for this time: shorter ones are not worth a report."""
    away_us: int = 5 * SECOND_US
    """Where `wait` is false: how long a host may be unreachable before this is final. A relay that is being started
    listens by then."""
    packet_bytes_max: int = PACKET_SIZE_MAX
    """Largest packet that is assembled from pieces."""

    def __post_init__(self) -> None:
        if not 1 <= self.lanes_start <= self.lanes_max <= _LANES_LIMIT:
            raise ValueError(
                f"lanes must satisfy 1 <= lanes_start <= lanes_max <= {_LANES_LIMIT}, but they are "
                f"{self.lanes_start} and {self.lanes_max}"
            )
        if not EXCHANGE_BYTES + 2 * HEADER_SIZE <= self.body_bytes_min <= self.body_bytes_start <= self.body_bytes_max:
            raise ValueError(
                "bodies must satisfy 116 <= body_bytes_min <= body_bytes_start <= body_bytes_max, but they are "
                f"{self.body_bytes_min}, {self.body_bytes_start} and {self.body_bytes_max}"
            )
        if not self.body_bytes_min <= self.answer_bytes_max < 2**32 or self.body_bytes_max >= 2**32:
            raise ValueError(
                "answer_bytes_max must be at least body_bytes_min, and both largest bodies below 2**32: they are "
                f"{self.answer_bytes_max}, {self.body_bytes_min} and {self.body_bytes_max}"
            )
        if not 0 < self.hold_us_min <= self.hold_us <= _MILLISECONDS_LIMIT_US:
            raise ValueError(
                f"holds must satisfy 0 < hold_us_min <= hold_us <= {_MILLISECONDS_LIMIT_US}, but they are "
                f"{self.hold_us_min} and {self.hold_us}"
            )
        if self.hold_us_start < 1:
            raise ValueError(f"hold_us_start must be at least 1, not {self.hold_us_start}")
        if not self.hold_us_min <= self.stream_us <= _MILLISECONDS_LIMIT_US or self.stream_after_us < 0:
            raise ValueError(
                f"streams must satisfy hold_us_min <= stream_us <= {_MILLISECONDS_LIMIT_US} and 0 <= stream_after_us, "
                f"but the times are {self.hold_us_min}, {self.stream_us} and {self.stream_after_us}"
            )
        if not 0 <= self.pull_interval_us <= _MILLISECONDS_LIMIT_US:
            raise ValueError(f"pull_interval_us must be 0 to {_MILLISECONDS_LIMIT_US}, not {self.pull_interval_us}")
        if not HEADER_SIZE <= self.packet_bytes_max <= PACKET_SIZE_MAX:
            raise ValueError(
                f"packet_bytes_max must be {HEADER_SIZE} to {PACKET_SIZE_MAX}, not {self.packet_bytes_max}"
            )
