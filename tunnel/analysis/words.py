"""Numbers as people read them."""

__all__ = ["CAUSES", "PROBLEMS", "STALLS", "bits", "count", "duration", "percent", "size"]


def count(value: float | None) -> str:
    """1234567 as 1,234,567."""
    return "–" if value is None else f"{round(value):,}"


def duration(us: float | None) -> str:
    """Microseconds in the unit that fits."""
    if us is None:
        return "–"
    for limit, divisor, unit in ((1_000, 1, "µs"), (1_000_000, 1_000, "ms"), (120_000_000, 1_000_000, "s")):
        if abs(us) < limit:
            return f"{us / divisor:.3g} {unit}"
    return f"{us / 60_000_000:.3g} min" if us < 7_200_000_000 else f"{us / 3_600_000_000:.3g} h"


def size(value: float | None) -> str:
    """Bytes in the unit that fits."""
    if value is None:
        return "–"
    for unit in ("B", "KB", "MB", "GB"):
        if abs(value) < 1000:
            return f"{value:.3g} {unit}" if unit != "B" else f"{value:.0f} B"
        value /= 1000
    return f"{value:.3g} TB"


def bits(bytes_per_second: float | None) -> str:
    """A rate in bits per second."""
    if bytes_per_second is None:
        return "–"
    value = bytes_per_second * 8
    for unit in ("bit/s", "kbit/s", "Mbit/s"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} Gbit/s"


def percent(share: float | None, digits: int = 1) -> str:
    """A share of one."""
    if share is None:
        return "–"
    if 0 < share < 10**-digits / 200:
        return f"< {10**-digits:g} %"
    return f"{100 * share:.{digits}f} %"


CAUSES = {
    "retransmit_timeout": ("timeout (RTO)", "no acknowledgement came within the retransmission timeout"),
    "retransmit_reordered": ("overtaken", "later packets were acknowledged, and this one was not for a round trip"),
    "pto_probe": ("tail probe", "the last packet of a burst was sent once more, to provoke an acknowledgement"),
    "batch_given_up": ("carrier gave up", "the carrier could not bring the batch to the relay"),
    "dropped_by_relay": ("dropped by relay", "the relay said that it had dropped the packet"),
    "route_resumed": ("resumed", "the relay had lost the route: everything unacknowledged is sent again"),
    "window_probe": ("window probe", "the peer's window was shut"),
    "unknown": ("unknown", "the trace does not say"),
}

STALLS = {
    "loop_lag": ("event loop late", "this process was busy with something else for more than half of the silence"),
    "carrier_http": ("HTTP path", "an exchange failed, was repeated or refused, or the relay was away meanwhile"),
    "carrier_tcp": ("TCP under the carrier", "the carrier's own connection retransmitted meanwhile"),
    "no_poll_outstanding": ("no poll open", "nothing could come back: no request was open at the relay"),
    "flow_control_peer": ("peer's window", "the reader at the other end was behind: there was no room"),
    "flow_control_relay": ("relay's edge", "the relay had no room for this route"),
    "ack_delay_or_loss": ("acknowledgement late", "the packet had arrived; its acknowledgement was late or lost"),
    "double_retransmission": ("retransmission lost", "a retransmission was lost in its turn, and cost another timeout"),
    "tail_retransmission": ("tail loss", "the last packet of a burst was lost: nothing after it could show that"),
    "loss": ("loss", "a packet was lost, and a timer had to find out"),
    "carrier_busy": ("carrier busy", "bytes waited, windows were open, and the carrier took none"),
    "packet_delay": ("network delay", "everything arrived; the path was slower than it had been"),
    "application": ("application", "the sender had nothing more to send"),
}

PROBLEMS = {
    "empty": "is empty",
    "truncated": "ends in the middle of a record: what came before is counted",
    "corrupt": "has damaged parts: what is whole before and after them is counted",
    "duplicate": "is a copy of another file: it is counted once",
    "open": "is still being written, or was left behind by a process that died: it is not counted",
    "version": "has records of another version of this program: they are not counted",
    "lines": "has lines that are no records: they are not counted",
}
