"""Intermediaries that limit or filter requests, as rules without I/O: hops in real time and fake probers ask them.

Each rule judges a request from its time, size and the like; the rules of real products have the same form.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from dataclasses import dataclass, field

__all__ = [
    "PASS",
    "RESET",
    "SILENCE",
    "Chance",
    "Filter",
    "Judged",
    "Late",
    "Queue",
    "Quota",
    "Rule",
    "Seen",
    "Weighted",
    "Window",
    "bits",
]

RESET, SILENCE = -1, -2
"""In the place of a status: the connection is reset, or nothing is ever answered."""


@dataclass(frozen=True)
class Seen:
    """A request, as an intermediary sees it. `opens`: the request is the first one of its connection."""

    at_s: float
    opens: bool = False
    method: str = "POST"
    kind: str = "application/octet-stream"
    size: int = 0
    bits: float = 0.0  # entropy of a byte


@dataclass(frozen=True)
class Judged:
    """The outcome of a request: it passes after `delay_s`, or is answered with `status` in place of the relay."""

    status: int = 0
    delay_s: float = 0.0
    retry_after_s: int = 0


PASS = Judged()


class Rule:
    """Lets every request pass."""

    def judge(self, seen: Seen) -> Judged:
        """Judge a request, and remember it."""
        return PASS


@dataclass
class Window(Rule):
    """Refuses requests above `most` in a window, or because of new connections; or everything for `ban_s` after that.

    `renews`: each request during the ban begins it again. `counts_refused`: refused requests count as well, as in
    haproxy's stick tables; in nginx they do not.
    """

    most: int
    window_s: float
    status: int = 429
    ban_s: float = 0.0
    renews: bool = False
    counts: str = "requests"
    retry_after_s: int = 0
    counts_refused: bool = True
    refused: int = 0
    banned_until_s: float = 0.0
    times: deque[float] = field(default_factory=deque)

    def judge(self, seen: Seen) -> Judged:
        while self.times and self.times[0] <= seen.at_s - self.window_s:
            self.times.popleft()
        counts = self.counts == "requests" or seen.opens
        if counts:
            self.times.append(seen.at_s)
        is_banned = seen.at_s < self.banned_until_s
        # A limit of connections that resets them lets older ones alone; one that answers refuses all their requests.
        is_over = len(self.times) > self.most and (counts or self.status > 0)
        if is_over or (is_banned and self.renews):
            self.banned_until_s = max(self.banned_until_s, seen.at_s + self.ban_s)
        if is_over or is_banned:
            self.refused += 1
            if counts and not self.counts_refused:
                self.times.pop()
            return Judged(self.status, 0.0, self.retry_after_s)
        return PASS

    def admits(self, at_s: float, count: int) -> bool:
        """Return whether `count` more requests that came at once would pass."""
        recent = sum(one > at_s - self.window_s for one in self.times)
        return at_s >= self.banned_until_s and recent + count <= self.most


@dataclass
class Weighted(Rule):
    """haproxy's way to count: the count of this period, and a part of the last one's that shrinks to 0 in this one.

    Requests in bursts may count almost double. Above `most`, everything is refused for `ban_s`, and each request renews
    that. `begin_s` shifts the periods.
    """

    most: int
    period_s: float
    status: int = 429
    ban_s: float = 0.0
    counts: str = "requests"
    begin_s: float = 0.0
    refused: int = 0
    banned_until_s: float = 0.0
    now_count: int = 0
    last_count: int = 0
    period: int = 0

    def judge(self, seen: Seen) -> Judged:
        period, part = divmod(seen.at_s + self.begin_s, self.period_s)
        if period > self.period:
            self.last_count = self.now_count if period == self.period + 1 else 0
            self.now_count, self.period = 0, int(period)
        self.now_count += self.counts == "requests" or seen.opens
        is_over = self.now_count + self.last_count * (1 - part / self.period_s) > self.most
        if is_over or seen.at_s < self.banned_until_s:
            self.refused += 1
            self.banned_until_s = seen.at_s + self.ban_s
            return Judged(self.status)
        return PASS


@dataclass
class Queue(Rule):
    """Lets requests pass at a rate, and delays the others: a token bucket with this depth."""

    rate: float
    depth: int = 1
    free_s: float = 0.0

    def judge(self, seen: Seen) -> Judged:
        self.free_s = max(self.free_s, seen.at_s - (self.depth - 1) / self.rate)
        delay_s = max(0.0, self.free_s - seen.at_s)
        self.free_s += 1 / self.rate
        return Judged(delay_s=delay_s)


@dataclass
class Filter(Rule):
    """Refuses bodies that are too large, look too much like noise, or have another type, and other methods."""

    status: int = 403
    size: int = 1 << 30
    bits: float = 8.1
    kinds: tuple[str, ...] = ()
    methods: tuple[str, ...] = ()

    def judge(self, seen: Seen) -> Judged:
        is_body = seen.method == "POST"
        if self.methods and seen.method not in self.methods:
            return Judged(self.status)
        if is_body and (seen.size > self.size or seen.bits > self.bits):
            return Judged(self.status)
        if is_body and self.kinds and seen.kind not in self.kinds:
            return Judged(self.status)
        return PASS


@dataclass
class Quota(Rule):
    """Refuses everything for a while once more than `most` bytes have passed."""

    most: int
    ban_s: float
    status: int = 403
    used: int = 0
    banned_until_s: float = 0.0

    def judge(self, seen: Seen) -> Judged:
        if seen.at_s < self.banned_until_s:
            return Judged(self.status)
        self.used += seen.size
        if self.used > self.most:
            self.used, self.banned_until_s = 0, seen.at_s + self.ban_s
            return Judged(self.status)
        return PASS


@dataclass
class Chance(Rule):
    """Answers one request in `every` itself, whatever it is."""

    every: int
    status: int
    count: int = 0

    def judge(self, seen: Seen) -> Judged:
        self.count += 1
        return Judged(self.status) if self.count % self.every == 0 else PASS


@dataclass
class Late(Rule):
    """Answers one request late, the one with this number."""

    number: int
    by_s: float
    count: int = 0

    def judge(self, seen: Seen) -> Judged:
        self.count += 1
        return Judged(delay_s=self.by_s) if self.count == self.number else PASS


def bits(body: bytes) -> float:
    """Return the entropy of a body, in bits per byte."""
    return -sum(count / len(body) * math.log2(count / len(body)) for count in Counter(body).values())
