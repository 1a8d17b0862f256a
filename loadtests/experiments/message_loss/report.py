"""The report of the experiment, in the form of its reference document; every line is computed from the run.

The sample in the document does not add up: 25,296 received and 25,269 expected differ by 27, not by the 17 that it
states and multiplies. Here the gap is the received id minus the expected one.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from loadtests.experiments.message_loss.signs import Sign
from loadtests.experiments.message_loss.statistics import Count, Phase, PhaseStatistics

__all__ = ["Gap", "Report", "find_gaps", "side_by_side"]


@dataclass(frozen=True, slots=True)
class Gap:
    """A range of ids that no receiver got: from `expected` up to, but not including, `received`."""

    expected: int
    received: int

    @property
    def size(self) -> int:
        """The number of messages in the gap."""
        return self.received - self.expected


def find_gaps(ids: Iterable[int], published: int) -> list[Gap]:
    """Return the gaps among the ids 1 to `published`.

    A gap at the end is found as well, as if the id after the last one had been received.
    """
    gaps = []
    expected = 1
    for number in [*sorted(set(ids)), published + 1]:
        if number > expected:
            gaps.append(Gap(expected, number))
        expected = number + 1
    return gaps


@dataclass
class Report:
    """The results of one run."""

    mode: str
    broker: str
    message_bytes: int
    received: list[int] = field(default_factory=list)  # number of messages that each receiver got
    twice: int = 0
    gaps: list[Gap] = field(default_factory=list)
    published: int = 0
    counts: dict[str, dict[str, tuple[int, int]]] = field(default_factory=dict)
    outage_ms: int = 0
    signs: dict[str, int] = field(default_factory=dict)  # milliseconds from the kill of the path to each sign

    @classmethod
    def of(
        cls, mode: str, broker: str, message_bytes: int, received: Sequence[Sequence[int]], found: PhaseStatistics
    ) -> "Report":
        """Build the report from the ids that each receiver got and the sender's counts."""
        ids = [number for one in received for number in one]
        published = sum(count.messages for count in found.published.values())
        return cls(
            mode=mode,
            broker=broker,
            message_bytes=message_bytes,
            received=[len(one) for one in received],
            twice=len(ids) - len(set(ids)),
            gaps=find_gaps(ids, published),
            published=published,
            counts={
                phase.name.lower(): {
                    name: _pair(counts[phase])
                    for name, counts in (
                        ("published", found.published),
                        ("buffered", found.buffered),
                        ("written", found.written),
                    )
                }
                for phase in Phase
            },
        )

    @property
    def lost(self) -> int:
        """The number of messages that no receiver got."""
        return sum(gap.size for gap in self.gaps)

    @property
    def failure(self) -> str:
        """Why a run with the tunnel is not good: what it lost or doubled, or why it proves nothing."""
        if self.mode != "tunnel":
            return ""  # without the tunnel, messages are lost: that is what the run shows
        if self.lost or self.twice:
            return f"the tunnel lost {self.lost:,} messages and delivered {self.twice:,} twice"
        if not self.counts.get("before", {}).get("published", (0, 0))[0]:
            return "no message was published before the break, so the run proves nothing"
        if not self.signs:
            return "no sign of the break was seen, so the run proves nothing"
        return ""

    @property
    def total(self) -> int:
        """The number of messages received, those received twice included."""
        return sum(self.received)

    def lines(self) -> list[str]:
        """Return the lines of the report in the form of the document."""
        rows = [f"MODE {self.mode}, BROKER {self.broker}", "", "RECEIVER"]
        rows += [f"  Receiver {i} Received Messages: {count:>8,}" for i, count in enumerate(self.received)]
        rows += ["  ------------------------------ -------", f"  Total Received Messages:      {self.total:>8,}"]
        rows += [
            f"  Published Messages:           {self.published:>8,}",
            f"  Received Twice:               {self.twice:>8,}",
        ]
        for gap in self.gaps:
            rows += [
                "",
                f"  Received Gap Message: {gap.received:,}",
                f"  Expected Gap Message: {gap.expected:,}",
                f"  Gap: {gap.size:,}",
                f"  Gap Bytes (Approximate): {gap.size * self.message_bytes:,}",
            ]
        if not self.gaps:
            rows += ["", "  Gap: 0"]
        rows += ["", "SENDER"]
        for title, phase in (("Before Disconnect...", "before"), ("After Disconnect...", "after")):
            rows += [title, *self._versus(self.counts[phase])]
        buffered = sum(counts["buffered"][0] for counts in self.counts.values())
        rows += [
            "Both Together...",
            f"  Published vs Buffered Messages: {self.published:,} vs {buffered:,} ... {self.published - buffered:,}",
        ]
        if self.outage_ms:
            rows += [f"Disconnected for {self.outage_ms:,} ms", "Signs of the break..."]
            rows += [f"  {sign.value:<24}: {self._sign(sign)}" for sign in Sign]
        return rows

    def _sign(self, sign: Sign) -> str:
        return f"after {self.signs[sign.value]:,} ms" if sign.value in self.signs else "not seen"

    def _versus(self, counts: dict[str, tuple[int, int]]) -> list[str]:
        buffered, written = counts["buffered"], counts["written"]
        return [
            f"  Buffered vs Socket Messages: {buffered[0]:,} vs {written[0]:,} ... {buffered[0] - written[0]:,}",
            f"  Buffered vs Socket Bytes   : {buffered[1]:,} vs {written[1]:,} ... {buffered[1] - written[1]:,}",
        ]


def _pair(count: Count) -> tuple[int, int]:
    return count.messages, count.size_bytes


def side_by_side(left: Sequence[str], right: Sequence[str]) -> list[str]:
    """Return the lines of two reports, side by side."""
    width = max(map(len, left), default=0) + 4
    height = max(len(left), len(right))
    padded = [[*lines, *[""] * (height - len(lines))] for lines in (left, right)]
    return [f"{one:<{width}}{other}".rstrip() for one, other in zip(*padded, strict=True)]
