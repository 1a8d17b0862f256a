"""Rates as text, and the pace: its limit, its fairness and its delays, on virtual time."""

from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.ground.rates import RATE_LEAST, Flow, Pace, parse_rate, show_rate

MIB = 1 << 20
SECOND = 1_000_000
BURST_S = 0.06  # 30 ms of bytes that were not sent before, and 30 ms that a small stream takes early


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("20 MiB/s", 20 * MIB),
        ("20MiB/s", 20 * MIB),
        ("1.5 MB/s", 1_500_000),
        ("64 KiB/s", 65536),
        ("100 Mbit/s", 12_500_000),
        ("800 kbit/s", 100_000),
        ("1 Gbit/s", 125_000_000),
        ("20000 B/s", 20_000),
        (" 1 GiB/s ", 1 << 30),
    ],
)
def test_a_rate_is_a_number_with_a_unit(text: str, rate: int) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize("text", ["", "20", "20 MiB", "20 mib/s", "-1 MiB/s", "fast", "1 Mbit", "1e3 MB/s", "1 xbit/s"])
def test_other_text_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="write it as in 20 MiB/s or 100 Mbit/s"):
        parse_rate(text)


@pytest.mark.parametrize("text", ["0 MiB/s", "1 KiB/s", "2000000 GiB/s"])
def test_a_rate_out_of_range_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="at least 16 KiB/s and at most 1024 GiB/s"):
        parse_rate(text)


def test_a_rate_is_shown_as_it_is_written() -> None:
    for text in ("20 MiB/s", "1.5 GiB/s", "16 KiB/s", "100 B/s"):
        assert show_rate(parse_rate(text) if text != "100 B/s" else 100) == text


@dataclass
class Line:
    """Streams at one pace, with the virtual time and what has passed."""

    rate: int
    now: int = 5 * SECOND
    passed: list[tuple[int, str, int]] = field(default_factory=list)  # time, stream, bytes

    def __post_init__(self) -> None:
        self.pace: Pace[str] = Pace(self.rate)
        self.flows: dict[str, Flow[str]] = {}
        self.waiting: dict[str, list[int]] = {}  # packets of each stream

    def put(self, name: str, *sizes: int) -> None:
        self.waiting.setdefault(name, []).extend(sizes)
        self.pace.join(self.flows.setdefault(name, Flow(name)), self.now)
        self.serve()

    def serve(self) -> None:
        while (flow := self.pace.poll(self.now)) is not None:
            size = self.waiting[flow.owner].pop(0)
            self.pace.pay(flow, size, self.now)
            self.passed.append((self.now, flow.owner, size))
            if self.waiting[flow.owner]:
                self.pace.join(flow, self.now)

    def run_until(self, end: int, late_us: int = 0) -> None:
        """Let the time pass. The event loop is late by `late_us` at each timer."""
        while (due := self.pace.next_timeout()) is not None and due + late_us <= end:
            self.now = max(self.now, due + late_us)
            self.serve()
        self.now = end

    def bytes_of(self, name: str, since: int = 0) -> int:
        return sum(size for at, owner, size in self.passed if owner == name and at >= since)


def assert_smooth(line: Line, rate: int) -> None:
    """Assert that in no interval more passes than the rate, a burst of 60 ms and one packet."""
    largest = max(size for _, _, size in line.passed)
    for first in range(len(line.passed)):
        total = 0
        for at, _, size in line.passed[first:]:
            total += size
            seconds = (at - line.passed[first][0]) / SECOND
            assert total <= rate * (seconds + BURST_S) + largest + 1, (seconds, total)


sizes = st.lists(st.integers(24, 64 << 10), min_size=1, max_size=12)


@given(
    st.integers(RATE_LEAST, 200 * MIB),
    st.lists(st.tuples(st.sampled_from("abc"), sizes, st.integers(0, 300_000)), min_size=1, max_size=8),
)
def test_bursts_are_limited_and_nothing_is_lost(rate: int, steps: list[tuple[str, list[int], int]]) -> None:
    line = Line(rate)
    for name, packets, pause_us in steps:
        line.put(name, *packets)
        line.run_until(line.now + pause_us)
    line.run_until(line.now + 10**12)
    assert_smooth(line, rate)
    assert sum(size for _, _, size in line.passed) == sum(sum(packets) for _, packets, _ in steps)
    assert line.pace.next_timeout() is None


@pytest.mark.parametrize("late_us", [0, 900, 10_000])
def test_the_rate_is_reached_within_one_per_cent_although_timers_are_late(late_us: int) -> None:
    line = Line(20 * MIB)
    line.put("bulk", *[32 << 10] * 8000)
    line.run_until(line.now + 10 * SECOND, late_us)
    assert abs(line.bytes_of("bulk") / (10 * 20 * MIB) - 1) < 0.01


def test_streams_share_the_rate_by_bytes_whatever_their_packets() -> None:
    line = Line(MIB)
    line.put("large", *[32 << 10] * 400)
    line.put("small", *[1 << 10] * 12_000)
    line.put("middle", *[10_000] * 1200)
    line.run_until(line.now + 10 * SECOND)
    shares = [line.bytes_of(name) for name in ("large", "small", "middle")]
    assert max(shares) - min(shares) <= 64 << 10


def test_a_small_stream_does_not_wait_for_a_large_one() -> None:
    line = Line(20 * MIB)
    line.put("bulk", *[32 << 10] * 4000)
    waits = []
    for _ in range(50):
        line.run_until(line.now + 20_000)
        began = line.now
        line.put("echo", 100)
        line.run_until(began + 19_000)
        waits.append(next(at for at, name, _ in reversed(line.passed) if name == "echo") - began)
    assert max(waits) == 0
    assert line.bytes_of("bulk") > 0.95 * 20 * MIB * 50 * 0.039


def test_a_stream_that_takes_small_bytes_early_cannot_exceed_the_rate() -> None:
    line = Line(MIB)
    for _ in range(1000):
        line.put("greedy", *[100] * 20)
        line.run_until(line.now + 1000)
    assert_smooth_total = line.bytes_of("greedy")
    assert assert_smooth_total <= MIB * (1 + BURST_S) + 100


def test_after_a_change_the_new_rate_applies_to_waiting_bytes_too() -> None:
    line = Line(MIB)
    line.put("bulk", *[32 << 10] * 2000)
    line.run_until(line.now + SECOND)
    changed = line.now
    line.pace.set_rate(10 * MIB, line.now)
    line.serve()
    line.run_until(line.now + SECOND)
    assert abs(line.bytes_of("bulk", changed) / (10 * MIB) - 1) < 0.05
    changed = line.now
    line.pace.set_rate(MIB // 2, line.now)
    line.run_until(line.now + 4 * SECOND)
    assert abs(line.bytes_of("bulk", changed) / (2 * MIB) - 1) < 0.05


def test_each_moment_of_waiting_counts_once() -> None:
    line = Line(RATE_LEAST)
    assert line.pace.waited_us(line.now) == 0
    line.put("a", RATE_LEAST, RATE_LEAST, RATE_LEAST)
    line.put("b", RATE_LEAST)
    began = line.now
    line.run_until(began + SECOND // 2)
    assert line.pace.waited_us(line.now) == SECOND // 2
    line.run_until(began + 20 * SECOND)
    waited_us = line.pace.waited_us(line.now)
    assert 2.9 * SECOND < waited_us <= 3 * SECOND
    assert line.pace.waited_us(line.now + SECOND) == waited_us


def test_a_turn_lasts_five_milliseconds_or_has_256_kib() -> None:
    assert Pace[str](20 * MIB).turn_bytes == 20 * MIB // 200
    assert Pace[str](1 << 40).turn_bytes == 256 << 10


def test_joining_twice_has_no_effect_and_an_empty_line_has_no_timeout() -> None:
    pace: Pace[str] = Pace(MIB)
    flow = Flow("a")
    assert pace.poll(0) is None
    pace.join(flow, SECOND)
    pace.join(flow, SECOND)
    assert pace.poll(SECOND) is flow
    assert pace.poll(SECOND) is None
    assert pace.next_timeout() is None


def test_streams_that_join_at_once_take_turns() -> None:
    line = Line(MIB)
    for name in "abc":
        line.put(name, *[40 << 10] * 10)
    line.run_until(line.now + 2 * SECOND)
    names = "".join(name for _, name, _ in line.passed)
    assert all(one != other for one, other in pairwise(names[3:]))
