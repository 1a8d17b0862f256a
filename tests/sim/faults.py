"""The faults of the simulator, as data: their kinds, and the plan that one seed draws from them."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.randomness import between, chance, log_between, pick
from tunnel.traces import TraceFault

__all__ = [
    "EXCHANGE_KINDS",
    "LIMIT_KINDS",
    "LINK_KINDS",
    "MOMENT_KINDS",
    "STREAM_KINDS",
    "TRACE_FAULTS",
    "WINDOW_KINDS",
    "FaultKind",
    "FaultPlan",
    "Moment",
    "Window",
    "draw_limit",
    "draw_plan",
    "draw_rate",
    "plan_of",
]


class FaultKind(enum.Enum):
    """One way to hurt a tunnel; the value is its name in tables, and in the text of a trace's records."""

    REQUEST_LOST = "request lost"
    REQUEST_RESET = "request reset"
    RESPONSE_LOST = "response lost"
    RESPONSE_RESET = "response reset"
    DUPLICATED = "request twice"
    REPLAYED = "request again, late"
    DELAYED = "exchange delayed"
    REQUEST_CUT = "request cut"
    RESPONSE_CUT = "response cut"
    REQUEST_FLIPPED = "request bits flipped"
    RESPONSE_FLIPPED = "response bits flipped"
    HTML_ANSWER = "HTML answer"
    ERROR_ANSWER = "error answer"
    TOO_LARGE = "413"

    STREAM_CUT = "stream cut"
    STREAM_STALLED = "stream stalled"
    STREAM_FLIPPED = "stream bits flipped"
    STREAM_HELD = "stream held back"
    STREAM_LIED = "stream falsified"

    BLACKHOLE = "blackhole"
    BLACKHOLE_UP = "blackhole up"
    BLACKHOLE_DOWN = "blackhole down"
    FLAPPING = "flapping"

    BANNED = "ban"
    SWALLOWED = "silent ban"
    QUEUED = "queue of requests"
    FEW_CONNECTIONS = "few new connections"

    LINK_CUT = "link cut"
    LINK_STALLED = "link stalled"
    LINK_FLIPPED = "link bits flipped"
    ROAD_CHANGED = "road behaves otherwise"

    PACKET_LOST = "packet lost at relay"
    RELAY_RESTART = "relay restart"
    PAUSED = "endpoint paused"
    DIED = "endpoint died"
    CLOCK_JUMP = "clock jump"
    SLOW_READER = "slow reader"
    STOPPED_READER = "stopped reader"


K = FaultKind

# the cause that a trace's records name for each kind; several kinds share one
TRACE_FAULTS: dict[FaultKind, TraceFault] = {
    K.REQUEST_LOST: TraceFault.REQUEST_LOST,
    K.REQUEST_RESET: TraceFault.CONNECTION_REFUSED,
    K.RESPONSE_LOST: TraceFault.RESPONSE_LOST,
    K.RESPONSE_RESET: TraceFault.CONNECTION_RESET,
    K.DUPLICATED: TraceFault.REQUEST_DUPLICATED,
    K.REPLAYED: TraceFault.REQUEST_DUPLICATED,
    K.DELAYED: TraceFault.REQUEST_DELAYED,
    K.REQUEST_CUT: TraceFault.REQUEST_TRUNCATED,
    K.RESPONSE_CUT: TraceFault.RESPONSE_TRUNCATED,
    K.REQUEST_FLIPPED: TraceFault.REQUEST_CORRUPTED,
    K.RESPONSE_FLIPPED: TraceFault.RESPONSE_CORRUPTED,
    K.HTML_ANSWER: TraceFault.ANSWER_REPLACED,
    K.ERROR_ANSWER: TraceFault.ANSWER_REPLACED,
    K.TOO_LARGE: TraceFault.ANSWER_REPLACED,
    K.STREAM_CUT: TraceFault.RESPONSE_TRUNCATED,
    K.STREAM_STALLED: TraceFault.BLACKHOLE,
    K.STREAM_FLIPPED: TraceFault.RESPONSE_CORRUPTED,
    K.STREAM_HELD: TraceFault.REQUEST_DELAYED,
    K.STREAM_LIED: TraceFault.RESPONSE_CORRUPTED,
    K.BLACKHOLE: TraceFault.BLACKHOLE,
    K.BLACKHOLE_UP: TraceFault.BLACKHOLE,
    K.BLACKHOLE_DOWN: TraceFault.BLACKHOLE,
    K.FLAPPING: TraceFault.BLACKHOLE,
    K.BANNED: TraceFault.ANSWER_REPLACED,
    K.SWALLOWED: TraceFault.REQUEST_LOST,
    K.QUEUED: TraceFault.REQUEST_DELAYED,
    K.FEW_CONNECTIONS: TraceFault.CONNECTION_REFUSED,
    K.LINK_CUT: TraceFault.CONNECTION_RESET,
    K.LINK_STALLED: TraceFault.BLACKHOLE,
    K.LINK_FLIPPED: TraceFault.RESPONSE_CORRUPTED,
    K.ROAD_CHANGED: TraceFault.ANSWER_REPLACED,
    K.PACKET_LOST: TraceFault.PACKET_DROPPED,
    K.RELAY_RESTART: TraceFault.NODE_KILLED,
    K.PAUSED: TraceFault.NODE_FROZEN,
    K.DIED: TraceFault.NODE_KILLED,
    K.CLOCK_JUMP: TraceFault.NODE_FROZEN,
    K.SLOW_READER: TraceFault.READER_STOPPED,
    K.STOPPED_READER: TraceFault.READER_STOPPED,
}

# highest probability per exchange that a seed may draw
EXCHANGE_KINDS: dict[FaultKind, float] = {
    K.REQUEST_LOST: 0.5,
    K.REQUEST_RESET: 0.5,
    K.RESPONSE_LOST: 0.5,
    K.RESPONSE_RESET: 0.5,
    K.DUPLICATED: 0.5,
    K.REPLAYED: 0.3,
    K.DELAYED: 0.3,
    K.REQUEST_CUT: 0.3,
    K.RESPONSE_CUT: 0.3,
    K.REQUEST_FLIPPED: 0.3,
    K.RESPONSE_FLIPPED: 0.3,
    K.HTML_ANSWER: 0.3,
    K.ERROR_ANSWER: 0.3,
}
# the same, per streamed answer
STREAM_KINDS: dict[FaultKind, float] = {
    K.STREAM_CUT: 1.0,
    K.STREAM_STALLED: 0.8,
    K.STREAM_FLIPPED: 1.0,
    K.STREAM_HELD: 1.0,
    K.STREAM_LIED: 1.0,
}
_PACKET_LOSS_MAX = 0.2  # per packet that reaches the relay
WINDOW_KINDS = (K.BLACKHOLE, K.BLACKHOLE_UP, K.BLACKHOLE_DOWN, K.FLAPPING)
LIMIT_KINDS = (K.BANNED, K.SWALLOWED, K.QUEUED, K.FEW_CONNECTIONS)  # in force in a window, too
LINK_KINDS = (K.LINK_CUT, K.LINK_STALLED, K.LINK_FLIPPED)
MOMENT_KINDS = (K.PAUSED, K.CLOCK_JUMP)

FLAP_UP_US = 5 * SECOND  # docs/RELIABILITY.md, scenario 20
FLAP_DOWN_US = 2 * SECOND
PHASE_US_MAX = 200 * SECOND  # faults and healing must fit into the user timeout of 300 s
JUMP_US_MAX = 40 * SECOND  # of all jumps of one clock together, for the same reason
LIMIT_US_MAX = 60 * SECOND  # after it, an endpoint may pause for up to 84 s
PAUSE_US = 30 * SECOND
REPLAY_US_MAX = 60 * SECOND
DELAY_US_MAX = 5 * SECOND


@dataclass(frozen=True, slots=True)
class Window:
    """A kind of fault that is in force between two times on the path of one node, or of all nodes (-1)."""

    kind: FaultKind
    start_us: int
    end_us: int
    node: int = -1

    def covers(self, node: int, now_us: int) -> bool:
        if not self.start_us <= now_us < self.end_us or self.node not in (-1, node):
            return False
        if self.kind is K.FLAPPING:
            return (now_us - self.start_us) % (FLAP_UP_US + FLAP_DOWN_US) >= FLAP_UP_US
        return True

    def gap_end_us(self, now_us: int) -> int:
        """The time at which the silence that covers `now_us` ends."""
        if self.kind is K.FLAPPING:
            period_us = FLAP_UP_US + FLAP_DOWN_US
            return min(self.end_us, now_us + period_us - (now_us - self.start_us) % period_us)
        return self.end_us


@dataclass(frozen=True, slots=True)
class Moment:
    """A kind that strikes one node (or the relay: -1) once; the amount is a pause, a jump or an absence."""

    kind: FaultKind
    time_us: int
    node: int
    amount_us: int


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """All faults of one run. None begins at or after `end_us`, but one of a streamed answer may strike later."""

    end_us: int = 0
    rates: dict[FaultKind, float] = field(default_factory=dict)
    nodes: tuple[int, ...] = ()
    """The nodes whose exchanges the rates concern; empty: all nodes."""
    windows: tuple[Window, ...] = ()
    moments: tuple[Moment, ...] = ()
    body_limits: tuple[tuple[int, int], ...] = ()
    """(from when, bytes): larger request bodies are answered with 413; 0 bytes: no limit."""
    restart_exchanges_mean: int = 0
    restarts_max: int = 0
    restart_absence_us: int = 500 * MILLISECOND
    link_mean_us: int = 0
    """Mean time between two strikes of the kinds in `link_kinds` on one link."""
    link_kinds: tuple[FaultKind, ...] = ()

    @property
    def healed_us(self) -> int:
        """The time from which every node is running and no new fault begins."""
        restarted_us = self.end_us + (self.restart_absence_us if self.restarts_max else 0)  # the relay's last return
        return max([restarted_us, *(moment.time_us + moment.amount_us for moment in self.moments)])

    def describe(self) -> list[str]:
        """The plan in a few words, for a reader of a failure."""
        words = [f"{kind.value} {rate:.0%}" for kind, rate in self.rates.items()]
        words += [f"{w.kind.value} {w.start_us / 1e6:.1f}-{w.end_us / 1e6:.1f} s node {w.node}" for w in self.windows]
        words += [
            f"{m.kind.value} at {m.time_us / 1e6:.1f} s node {m.node}, {m.amount_us / 1e6:.1f} s" for m in self.moments
        ]
        if self.body_limits:
            words.append(
                "413 above " + ", ".join(f"{size or 'no limit'} from {at / 1e6:.1f} s" for at, size in self.body_limits)
            )
        if self.restarts_max:
            words.append(f"relay restarts each ~{self.restart_exchanges_mean} exchanges, at most {self.restarts_max}")
        words += [f"{kind.value} each ~{self.link_mean_us / 1e6:.1f} s" for kind in self.link_kinds]
        return words


def draw_plan(random: Random, nodes: int, named: Iterable[int], links: bool) -> FaultPlan:
    """A plan of one or more kinds; only `named` nodes may die, because the relay can recognise their successors."""
    end_us = log_between(random, 2 * SECOND, PHASE_US_MAX)
    kinds: list[FaultKind] = []
    families: list[tuple[FaultKind, ...]] = [
        tuple(EXCHANGE_KINDS), tuple(EXCHANGE_KINDS), tuple(EXCHANGE_KINDS), WINDOW_KINDS, MOMENT_KINDS,
        (K.TOO_LARGE,), (K.RELAY_RESTART,),
    ]  # fmt: skip
    for family in families:
        if chance(random, 0.4):
            kinds.append(pick(random, family))
    if links and chance(random, 0.7):
        kinds += [kind for kind in LINK_KINDS if chance(random, 0.5)]
    mortal = list(named)
    if mortal and chance(random, 0.12):
        kinds.append(K.DIED)
    if not kinds:
        kinds.append(pick(random, tuple(EXCHANGE_KINDS)))
    return plan_of(random, kinds, end_us, nodes, mortal)


def draw_limit(random: Random, plan: FaultPlan, nodes: int) -> FaultPlan:
    """The plan with a limit of requests or connections on one path, or on all."""
    return replace(plan, windows=(*plan.windows, _draw_window(random, pick(random, LIMIT_KINDS), plan.end_us, nodes)))


def draw_rate(random: Random, kind: FaultKind) -> float:
    """The probability of this kind, per exchange, per streamed answer or per packet."""
    most = _PACKET_LOSS_MAX if kind is K.PACKET_LOST else {**EXCHANGE_KINDS, **STREAM_KINDS}[kind]
    return round(random.uniform(0.01, most), 3)


def plan_of(random: Random, kinds: list[FaultKind], end_us: int, nodes: int, mortal: list[int]) -> FaultPlan:
    """A plan with exactly these kinds, their strengths drawn."""
    rated = {*EXCHANGE_KINDS, *STREAM_KINDS, K.PACKET_LOST}
    rates = {kind: draw_rate(random, kind) for kind in kinds if kind in rated}
    restarts = K.RELAY_RESTART in kinds
    link_kinds = tuple(kind for kind in kinds if kind in LINK_KINDS)
    return FaultPlan(
        end_us=end_us,
        rates=rates,
        windows=tuple(
            _draw_window(random, kind, end_us, nodes) for kind in kinds if kind in (*WINDOW_KINDS, *LIMIT_KINDS)
        ),
        moments=_draw_moments(random, kinds, end_us, nodes, mortal),
        body_limits=_draw_limits(random, end_us) if K.TOO_LARGE in kinds else (),
        restart_exchanges_mean=log_between(random, 20, 1000) if restarts else 0,
        restarts_max=between(random, 1, 12) if restarts else 0,
        restart_absence_us=log_between(random, 10 * MILLISECOND, 5 * SECOND),
        link_mean_us=log_between(random, SECOND, 20 * SECOND) if link_kinds else 0,
        link_kinds=link_kinds,
    )


def _draw_window(random: Random, kind: FaultKind, end_us: int, nodes: int) -> Window:
    """A window that starts early, while bytes still move."""
    start_us = between(random, 0, end_us // 4)
    length_us = log_between(random, SECOND, LIMIT_US_MAX if kind in LIMIT_KINDS else PHASE_US_MAX)
    if kind is K.FLAPPING:
        length_us = max(length_us, FLAP_UP_US + FLAP_DOWN_US)
    return Window(
        kind, start_us, min(start_us + length_us, max(end_us, start_us + SECOND)), between(random, -1, nodes - 1)
    )


def _draw_moments(
    random: Random, kinds: list[FaultKind], end_us: int, nodes: int, mortal: list[int]
) -> tuple[Moment, ...]:
    moments = []
    early_us = max(1, end_us // 2)
    if K.PAUSED in kinds:
        moments.append(Moment(K.PAUSED, between(random, 0, early_us), between(random, 0, nodes - 1), PAUSE_US))
    if K.CLOCK_JUMP in kinds:
        count = between(random, 1, 3)
        for _ in range(count):
            amount_us = log_between(random, MILLISECOND, JUMP_US_MAX // count)
            moments.append(
                Moment(K.CLOCK_JUMP, between(random, 0, early_us), between(random, -1, nodes - 1), amount_us)
            )
    if K.DIED in kinds:
        absence_us = log_between(random, 10 * MILLISECOND, 20 * SECOND)
        moments.append(Moment(K.DIED, between(random, 0, early_us), pick(random, mortal), absence_us))
    return tuple(sorted(moments, key=lambda moment: (moment.time_us, moment.node)))


def _draw_limits(random: Random, end_us: int) -> tuple[tuple[int, int], ...]:
    """Some limits after each other, all above the 4 KiB to which endpoints can shrink their bodies (7.16)."""
    times = sorted(between(random, 0, end_us // 2) for _ in range(between(random, 0, 2)))
    return tuple((time_us, log_between(random, 17 * 1024, 128 * 1024)) for time_us in (0, *times))
