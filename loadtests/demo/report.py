"""The report of the demo: figures, verdict, and their text."""

import msgspec

__all__ = ["Kill", "Report", "Way", "pretty_bytes"]

_MIB = 1024 * 1024


class Kill(msgspec.Struct, frozen=True):
    """One `kill -9` of the relay.

    `recovery_s` is the time from the kill to the first byte delivered that was written after it.
    """

    way: str
    share: float  # part of the bytes of this direction that had arrived
    in_flight_bytes: int
    startup_s: float
    recovery_s: float


class Way(msgspec.Struct):
    """The figures of one direction."""

    name: str
    size_bytes: int
    received_bytes: int = 0
    seconds: float = 0.0
    written_digest: str = ""
    received_digest: str = ""

    @property
    def is_right(self) -> bool:
        """Whether exactly the bytes written have arrived."""
        return self.received_bytes == self.size_bytes and self.written_digest == self.received_digest

    @property
    def bytes_per_second(self) -> float:
        """The rate from the first byte written to the last one that arrived, with the outage of the relay."""
        return self.received_bytes / max(self.seconds, 1e-9)


class Report(msgspec.Struct):
    """All figures of the demo. `failure` is the reason of a bad verdict, or empty if it is good."""

    ways: list[Way] = []
    kills: list[Kill] = []
    seconds: float = 0.0
    exchanges: int = 0
    faults: dict[str, int] = {}
    repeats: dict[str, int] = {}
    resent: dict[str, int] = {}
    packets_sent: int = 0
    round_trip_us: int = 0
    rto_us: int = 0
    failure: str = ""

    def judge(self) -> None:
        """Set `failure` if bytes were wrong, or if the run was too easy to prove anything."""
        if self.failure:
            return
        wrong = [way.name for way in self.ways if not way.is_right]
        if wrong:
            self.failure = f"{' and '.join(wrong)}: the bytes that arrived are not those that were written"
        elif not any(way.received_bytes for way in self.ways):
            self.failure = "no byte was moved, so the run proves nothing; use a larger --size"
        elif not self.faults:
            self.failure = "the proxy injected no fault, so the run proves nothing; use a larger --size"
        elif not self.repeats and not self.resent:
            self.failure = "nothing had to be repeated, so the run proves nothing; use a larger --size"
        elif {kill.way for kill in self.kills} != {way.name for way in self.ways} or not all(
            kill.in_flight_bytes > 0 and 0.3 <= kill.share <= 0.7 for kill in self.kills
        ):
            self.failure = "the relay was not killed in the middle of each transfer, so the run proves nothing"

    @property
    def verdict(self) -> str:
        """The verdict in one line."""
        if self.failure:
            return f"FAILED: {self.failure}"
        moved = pretty_bytes(sum(way.received_bytes for way in self.ways))
        return (
            f"OK: every byte of {moved} arrived once and in order, through {sum(self.faults.values())} faults and "
            f"{len(self.kills)} dead relays, in {self.seconds:.1f} s"
        )

    def rows(self) -> list[tuple[str, str]]:
        """Return the table: rows of name and figures."""
        rows = []
        for way in self.ways:
            moved, rate = pretty_bytes(way.received_bytes), way.bytes_per_second / _MIB
            rows.append((way.name, f"{moved} in {way.seconds:.1f} s, {rate:.1f} MiB/s, the kill included"))
            digests = f"{way.written_digest}, written = arrived"
            if not way.is_right:
                digests = f"written {way.written_digest} ≠ arrived {way.received_digest}"
            rows.append(("  XXH3-128", digests))
        for kill in self.kills:
            where = f"at {kill.share:.0%} of the {kill.way}, {pretty_bytes(kill.in_flight_bytes)} in flight"
            after = f"new relay after {kill.startup_s:.2f} s, first new byte after {kill.recovery_s:.2f} s"
            rows.append(("kill -9 relay", f"{where}: {after}"))
        rows.append(("faults injected", f"{_counts(self.faults)}, in {self.exchanges} exchanges"))
        rows.append(("repeated", f"exchanges that failed: {_counts(self.repeats)}"))
        rows.append(("retransmitted", f"packets of the upload: {_counts(self.resent)}, of {self.packets_sent} sent"))
        rows.append(
            ("round trip", f"{self.round_trip_us / 1000:.1f} ms, retransmission timeout {self.rto_us / 1000:.1f} ms")
        )
        return rows


def _counts(counts: dict[str, int]) -> str:
    """Format counts: the total, then each kind, the most frequent first."""
    if not counts:
        return "none"
    parts = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return f"{sum(counts.values())} ({', '.join(f'{name} {count}' for name, count in parts)})"


def pretty_bytes(count: float) -> str:
    """Format a number of bytes in MiB, or in KiB if there are fewer than 10 MiB."""
    return f"{count / _MIB:.0f} MiB" if count >= 10 * _MIB else f"{count / 1024:.0f} KiB"
