"""Numbers and causes in a form for people: formatted figures, and names with their explanations."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime

__all__ = [
    "CAUSES",
    "PROBLEMS",
    "STALLS",
    "aligned",
    "bits",
    "count",
    "duration",
    "percent",
    "process_of",
    "size",
    "wall_time",
]

_WRITER = re.compile(r"(.+-\d+)-[0-9a-f]{8}")  # as tunnel.traces.writer names it


def process_of(writer: str) -> str:
    """Return name and PID of the process that wrote a trace, from the writer's name, whose end is random."""
    found = _WRITER.fullmatch(writer)
    return found[1] if found else writer


def aligned(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Return the lines of a table in which columns are as wide as their widest value."""
    texts = [list(columns), *([("" if value is None else str(value)) for value in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    lines = ("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)) for line in texts)
    return [line.rstrip() for line in lines]


def count(value: float | None) -> str:
    """Format a count with separators: 1234567 as 1,234,567."""
    return "–" if value is None else f"{round(value):,}"


def duration(us: float | None) -> str:
    """Format microseconds in the unit that fits."""
    if us is None:
        return "–"
    for limit, divisor, unit in ((1_000, 1, "µs"), (1_000_000, 1_000, "ms"), (120_000_000, 1_000_000, "s")):
        if abs(us) < limit:
            return f"{us / divisor:.3g} {unit}"
    return f"{us / 60_000_000:.3g} min" if us < 7_200_000_000 else f"{us / 3_600_000_000:.3g} h"


def wall_time(us: int) -> str:
    """Format microseconds since 1970 as date and time."""
    return datetime.fromtimestamp(us // 1_000_000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def size(value: float | None) -> str:
    """Format bytes in the unit that fits."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1000
    return f"{value:.3g} TB"


def bits(bytes_per_second: float | None) -> str:
    """Format a rate in bits per second, in the unit that fits."""
    if bytes_per_second is None:
        return "–"
    value = bytes_per_second * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} Gbit/s"


def percent(share: float | None, digits: int = 1) -> str:
    """Format a share, 0 to 1, as a percentage."""
    if share is None:
        return "–"
    if 0 < share < 10**-digits / 200:
        return f"< {10**-digits:g} %"
    return f"{100 * share:.{digits}f} %"


CAUSES = {
    "retransmit_timeout": ("timeout (RTO)", "no acknowledgement came within the retransmission timeout"),
    "retransmit_reordered": (
        "overtaken",
        "packets that reached the relay later were acknowledged, but this one was not within a round trip",
    ),
    "pto_probe": ("tail probe", "the last packet of a burst was sent again, to provoke an acknowledgement"),
    "batch_given_up": ("carrier gave up", "the carrier could not bring the batch to the relay"),
    "dropped_by_relay": ("dropped by relay", "the relay reported that it had dropped the packet"),
    "route_resumed": ("resumed", "the relay had lost the route, so everything unacknowledged was sent again"),
    "unknown": ("unknown", "the trace does not say"),
}

MOVES = {
    "relay_drained": ("relay drained", "its relay was about to stop"),
    "relay_silent": ("relay silent", "its relay did not answer"),
    "peer_moved": ("peer moved", "the end that opened the connection moved it"),
}

STALLS = {
    "loop_lag": ("event loop late", "this process was busy with other work for more than half of the stall"),
    "peer_loop_lag": ("peer's event loop late", "the process at the other end was busy for more than half of it"),
    "relay_loop_lag": ("relay's event loop late", "the process of the relay was busy for more than half of it"),
    "carrier_http": ("HTTP path", "meanwhile an exchange failed, was repeated or refused, or the relay was away"),
    "carrier_tcp": ("TCP under the carrier", "meanwhile the carrier's own connection retransmitted"),
    "no_poll_outstanding": ("no poll open", "no request was open at the relay, so nothing could come back"),
    "connecting": ("connecting", "CONNECT was not answered yet"),
    "flow_control_peer": ("reader", "the application at the other end did not read, and its window was shut"),
    "window_small": ("window full", "the peer's window was full of bytes in flight"),
    "flow_control_relay": ("relay's edge", "the relay had no room for this route"),
    "ack_delay_or_loss": ("acknowledgement late", "the packet had arrived; its acknowledgement was late or lost"),
    "double_retransmission": ("retransmission lost", "a retransmission was lost, too, and cost another timeout"),
    "tail_retransmission": ("tail loss", "the last packet of a burst was lost, so no later packet could reveal that"),
    "loss": ("loss", "a packet was lost, and a timer had to detect it"),
    "carrier_busy": ("carrier busy", "bytes waited and windows were open, but the carrier took none"),
    "packet_delay": ("network delay", "everything arrived, but the path was slower than before"),
    "no_answer": ("no answer", "the trace ended before anything came back"),
    "application": ("application", "the sender had nothing more to send"),
}

PROBLEMS = {
    "empty": "is empty",
    "truncated": "ends in the middle of a record: the whole records before it are counted",
    "corrupt": "has damaged parts: the whole parts before and after them are counted",
    "duplicate": "is a copy of another file: its content is counted once",
    "open": "is still being written: its whole parts are counted",
    "died": "was left unfinished by a process that died: its whole parts are counted",
    "version": "has records of another version of this program: they are not counted",
    "lines": "has lines that are not valid records: they are not counted",
}
