"""Chooses the road of an attachment: which to try and when, which carries, and when to doubt it. Without I/O.

The roads form a ladder: the first one is the best. Poll is below all of them: it needs no upgrade, and carries whatever
no road carries. The caller tries roads, moves the batches, and reports what happens; `poll_decision` says what to do.
A connection here is the HTTP connection of a road.
"""

import enum
from collections import deque
from collections.abc import Sequence
from random import Random

import msgspec

from tunnel.exchange.backoff import Backoff
from tunnel.exchange.config import KIB, MILLISECOND_US
from tunnel.exchange.roads.roads import TRANSITIONS, Road, RoadEvent, RoadReport, RoadState
from tunnel.exchange.roads.slow_road import Carried, SlowRoad

__all__ = ["POLL", "Decision", "Ladder", "Step"]

POLL = "poll"  # remembered for a path where no road works

_SECOND_US = 1_000 * MILLISECOND_US
_AGE_US = 2 * _SECOND_US  # an attachment that is younger, and has moved less than _MOVED_BYTES, tries one road at most
_MOVED_BYTES = 256 * KIB
_PROOF_US = 3 * _SECOND_US  # the relay has at least this time to answer the first message
_DOUBT_US = _SECOND_US  # a road is doubted after at least this time without a receipt; doubles if one comes after all
_DOUBT_US_MAX = 8 * _SECOND_US
_DEAD_US = 10 * _SECOND_US  # a doubted road is closed after this time without a receipt
_PROBE_US = 15 * _SECOND_US  # time from a receipt to a probe, if no other receipt is awaited; below the 20 s of 8.4
_PROBE_FIRST_US = _SECOND_US  # time to the first probe of a new connection, which shows if only a first message passes
_PROBATION_BYTES = 64 * KIB
_REST_US = _SECOND_US
_REST_US_WORKED = 100 * MILLISECOND_US  # first rest of a road that has been in use: often only a connection was lost
_REST_US_MAX = 600 * _SECOND_US
_REST_US_EAGER = _SECOND_US  # the longest rest of a road that the user has asked for
_REST_US_REFUSED = 60 * _SECOND_US  # but if the path refuses it, up to this
_GOOD_US = 60 * _SECOND_US  # after a road was in use for this time, its next rest is the shortest again
_SPREAD_US = 2 * _SECOND_US  # when the relay is back, endpoints try their last roads at random times within this time
_AGED_US = 5 * _SECOND_US  # connections that die younger than this tell nothing about a limit of the path


class Step(enum.Enum):
    """A thing that the caller must do."""

    TRY = "try"  # open a connection on the road, then call `proven` or `failed`
    USE = "use"  # move batches on the road that was proven last
    YIELD = "yield"  # give up the batches without a receipt; poll carries everything
    RESUME = "resume"  # move batches on the road in use again
    CLOSE = "close"  # close the road, which is dead
    LEAVE = "leave"  # close every connection of the road in use, which is slow; poll carries everything
    PROBE = "probe"  # send a batch without meaning on the road in use, and report it as any other
    RENEW = "renew"  # open another connection on the road in use, then call `renewed` or `not_renewed`


class Decision(msgspec.Struct):
    """One thing to do. `reason` is for people."""

    step: Step
    road: str
    reason: str = ""


class _Rung:
    """A road, and what was learned about it."""

    def __init__(self, road: Road, rest_us: int) -> None:
        self.road = road
        self.state = RoadState.UNKNOWN
        self.tries = 0
        self.why = ""
        self.has_worked = False
        self.rest_us = rest_us  # the next rest
        self.rests_until_us = 0
        self.opened_us = 0
        self.used_since_us = 0
        self.doubt_us = _DOUBT_US
        self.age_us = 0  # how old the road's last connection was when it ended
        self.renew_after_us = 0  # 0: no limit of the path is known


class Ladder:
    """The roads of one attachment.

    `backoff` is that of all requests to the relay: no road is tried, and no connection renewed, during its pauses.
    `remembered`: the road that carried batches on this path earlier, POLL if none did; empty: unknown. `eager`: try the
    best road at once whatever is remembered, let no road rest for more than a second, unless the path refuses it, and
    leave no road because it is slow. `carried` counts what exchanges carry.

    One thing because at most one road carries and one is tried: each event of one road decides about all of them.
    """

    def __init__(
        self,
        roads: Sequence[Road],
        random: Random,
        *,
        backoff: Backoff | None = None,
        carried: Carried | None = None,
        remembered: str = "",
        eager: bool = False,
    ) -> None:
        if not roads:
            raise ValueError("a ladder needs at least one road")
        self.round_trip_us = 0  # smoothed, of exchanges; set by the caller
        self.connections = 1  # that share the road in use; set by the caller
        self._random = random
        self._backoff = backoff or Backoff(random)
        self._slow = SlowRoad(carried or Carried())
        self._may_leave = not eager
        self._rest_us_max = _REST_US_EAGER if eager else _REST_US_MAX
        self._rungs = [_Rung(road, _REST_US_WORKED if eager else _REST_US) for road in roads]
        names = [road.name for road in roads]
        best = names[0]
        self._first = remembered if remembered in names and not eager else best  # the road that is tried at once
        if remembered == POLL and not eager:
            self._first = ""
        self._first_us = 0
        self._last = ""  # the road that carried last
        self._was_attached = False
        self._attached_us: int | None = None
        self._moved_bytes = 0
        self._used: _Rung | None = None
        self.is_doubted = False  # whether the road in use is silent, so that poll carries for now
        self._trying: _Rung | None = None
        self._unreceipted_bytes = 0
        self._receipted_bytes = 0  # on the connection in use, counted up to _PROBATION_BYTES
        self._progress_us = 0
        self._heard_us = 0  # when bytes came on the road in use
        self._probe_us: int | None = None  # when to probe the road in use if it has been idle
        self._renew_us: int | None = None
        self._renewing: _Rung | None = None
        self.decisions: deque[Decision] = deque()

    # getters

    @property
    def used_road(self) -> str:
        """The road in use, even while it is doubted; empty if there is none, so that poll carries."""
        return self._used.road.name if self._used is not None else ""

    @property
    def has_moved(self) -> bool:
        """Whether so many bytes were moved that other roads are tried, however young the attachment is."""
        return self._moved_bytes >= _MOVED_BYTES

    @property
    def proof_us(self) -> int:
        """The time in which the relay must answer the first message on a road."""
        return max(_PROOF_US, 4 * self.round_trip_us)

    @property
    def road_to_remember(self) -> str:
        """What to remember of this path: the road in use, else the one that was used last, else POLL if every road has
        failed; empty: nothing yet."""
        if self._used is not None and not self.is_doubted:
            return self._used.road.name
        is_hopeless = all(rung.state is RoadState.RESTING for rung in self._rungs)
        return POLL if is_hopeless and not self._last else self._last

    @property
    def keeps_streams(self) -> bool:
        """Whether exchanges may use streamed answers (7.20)."""
        return self._slow.keeps_streams

    def room(self, batch_bytes: int) -> int:
        """Return how many bytes the next batch on the road in use may have, at most `batch_bytes`.

        Until 64 KiB of data were receipted, at most 64 KiB are without a receipt: a path that passes only a first
        message delays no more than that.
        """
        if self._receipted_bytes >= _PROBATION_BYTES:
            return batch_bytes
        return max(0, min(batch_bytes, _PROBATION_BYTES - self._unreceipted_bytes))

    def reports(self) -> list[RoadReport]:
        """Return the state of each road, for people."""
        return [RoadReport(rung.road.name, rung.state.value, rung.tries, rung.why) for rung in self._rungs]

    # events

    def on_attached(self, now: int) -> None:
        """The endpoint has attached. If it has attached again, the road used last is tried first, at a random time."""
        self._attached_us = self._first_us = now
        self._moved_bytes = 0
        if self._was_attached:
            self._first = self._last
            self._first_us = now + self._random.getrandbits(16) * _SPREAD_US // (1 << 16)
        self._was_attached = True

    def on_detached(self) -> None:
        """The attachment is lost, so that no connection of a road counts any more."""
        self._attached_us = None
        self._trying = self._renewing = None
        self._use(None)
        self.decisions.clear()
        self._forget_use()
        for rung in self._rungs:
            self._move(rung, RoadEvent.DETACHED)

    def on_moved(self, size: int) -> None:
        """This many bytes were moved, by whatever carrier."""
        self._moved_bytes += size

    def on_proven(self, name: str, now: int) -> None:
        """The relay has answered the first message on the road that is tried, or on the new connection of a road whose
        old one was lost in the meantime."""
        rung = self._rung(name)
        if rung not in (self._trying, self._renewing):
            return
        self._trying = self._renewing = None
        self._move(rung, RoadEvent.PROVEN)
        rung.opened_us = now
        self._choose(rung, now)

    def on_failed(self, name: str, why: str, now: int, *, is_ban: bool = False) -> None:
        """The road that is tried does not work now. `is_ban`: something on the path asks for fewer requests, so
        that an eager ladder waits, too."""
        rung = self._rung(name)
        if rung is not self._trying:
            return
        self._trying = None
        rung.why = why
        self._move(rung, RoadEvent.FAILED)
        self._rest(rung, now, max(self._rest_us_max, _REST_US_REFUSED if is_ban else 0))

    def on_sent(self, unreceipted_bytes: int, now: int) -> None:
        """A batch left on the road in use; `unreceipted_bytes` are without a receipt now."""
        if not self._unreceipted_bytes:
            self._progress_us = now
        self._unreceipted_bytes = unreceipted_bytes

    def on_given_up(self, unreceipted_bytes: int) -> None:
        """Batches on one of several links were given up; so many bytes are still without a receipt."""
        self._unreceipted_bytes = unreceipted_bytes

    def on_heard(self, now: int) -> None:
        """Something came from the relay on the road in use, perhaps a part of a batch."""
        self._heard_us = now

    def on_received(self, size: int, now: int) -> None:
        """Bytes came from the relay on the road in use."""
        if self._used is not None:
            self._slow.on_received(size)
            if self._may_leave and now >= self._slow.judges_us:
                self._leave_if_slow(self._used, now)

    def on_receipted(self, size: int, unreceipted_bytes: int, now: int, *, took_us: int = 0) -> None:
        """Receipts came on the road in use, for `size` bytes. `unreceipted_bytes` are still without one. The newest
        batch with a receipt was sent `took_us` ago."""
        rung = self._used
        if rung is None:
            return
        self._progress_us = now
        self._probe_us = now + _PROBE_US
        self._unreceipted_bytes = unreceipted_bytes
        self._receipted_bytes = min(_PROBATION_BYTES, self._receipted_bytes + size)
        if rung.state is RoadState.DOUBTED:
            self._move(rung, RoadEvent.HEARD)
            rung.doubt_us = min(2 * self._doubt_us(rung), _DOUBT_US_MAX)
            self._decide(Step.RESUME, rung)
        self._slow.on_receipted(size, took_us)
        if self._may_leave and now >= self._slow.judges_us:
            self._leave_if_slow(rung, now)

    def on_lost(self, name: str, why: str, now: int) -> None:
        """The connection of the road in use has ended."""
        rung = self._rung(name)
        if rung is self._used:
            self._lose(rung, why, now)

    def on_renewed(self, now: int) -> None:
        """Another connection now carries the batches of the road in use."""
        rung = self._used
        self._renewing = None
        if rung is None:
            return
        self._forget_use()
        self._move(rung, RoadEvent.HEARD)
        rung.opened_us = now
        self._probe_us = now + _PROBE_FIRST_US
        self._plan_renewal(rung)

    def renew_soon(self, now: int) -> None:
        """Renew the connection on the road in use as soon as no other one is being opened."""
        if self._used is not None:
            self._renew_us = now

    def not_renewed(self, now: int) -> None:
        """No other connection could be opened on the road in use."""
        if self._renewing is not None:
            if self._renewing is self._used:
                self._renew_us = now + _REST_US
            self._renewing = None

    # time

    def next_timeout(self) -> int | None:
        """Return when to call `handle_timeout`, or None. This is called for each batch, so it must be quick."""
        due_us: int | None = None
        rung = self._used
        if rung is not None:
            if rung.state is RoadState.DOUBTED:
                due_us = self._progress_us + _DEAD_US
            elif self._unreceipted_bytes:
                due_us = self._doubted_us(rung)
            else:
                due_us = self._probe_us
            if self._renew_us is not None and self._may_renew:
                renew_us = max(self._renew_us, self._backoff.next_us)
                due_us = renew_us if due_us is None else min(due_us, renew_us)
            if rung is self._rungs[0]:
                return due_us  # no road is better
        if self._slow.is_left:
            return self._slow.next_timeout()
        candidate = self._candidate()
        if candidate is not None and (due_us is None or candidate[0] < due_us):
            due_us = candidate[0]
        return due_us

    def handle_timeout(self, now: int) -> None:
        """Decide what is due."""
        rung = self._used
        if rung is not None:
            self._look_at(rung, now)
        self._slow.handle_timeout(now)
        candidate = self._candidate()
        if candidate is not None and candidate[0] <= now:
            self._trying = candidate[1]
            self._trying.tries += 1
            self._move(self._trying, RoadEvent.TRY)
            self._backoff.on_sent(now)
            self._decide(Step.TRY, self._trying)

    def poll_decision(self) -> Decision | None:
        """Return the next thing to do, or None."""
        return self.decisions.popleft() if self.decisions else None

    # internal

    def _look_at(self, rung: _Rung, now: int) -> None:
        """Doubt the road in use, close it, renew its connection or probe it, if that is due."""
        if rung.state is RoadState.DOUBTED:
            if now >= self._progress_us + _DEAD_US:
                reason = f"the relay sent no receipt for {_DEAD_US // _SECOND_US} s"
                self._lose(rung, reason, now)
                self._decide(Step.CLOSE, rung, reason)
        elif self._unreceipted_bytes and now >= self._doubted_us(rung):
            self._move(rung, RoadEvent.SILENT)
            self._unreceipted_bytes = 0
            self._decide(Step.YIELD, rung, "the relay sent no receipt in time")
        elif self._may_renew and self._renew_us is not None and now >= max(self._renew_us, self._backoff.next_us):
            self._renewing = rung
            self._backoff.on_sent(now)
            self._decide(Step.RENEW, rung)
        elif not self._unreceipted_bytes and self._probe_us is not None and now >= self._probe_us:
            # If we send nothing, only a probe shows that the path passes nothing, and that the relay's data is lost.
            self._probe_us = now + _PROBE_US
            self._decide(Step.PROBE, rung)

    @property
    def _may_open(self) -> bool:
        """Whether a connection may be opened: only one is opened at a time."""
        return self._trying is None and self._renewing is None

    @property
    def _may_renew(self) -> bool:
        return self._may_open and not self.is_doubted

    def _candidate(self) -> tuple[int, _Rung] | None:
        """Return the road to try next, and when: one at a time, and only roads better than the one in use.

        A road that has carried until just now is tried again before worse ones: most often only a connection was lost.
        """
        if self._attached_us is None or not self._may_open or self._slow.is_left:
            return None
        best: tuple[int, _Rung] | None = None
        for rung in self._rungs:
            if rung is self._used:
                break
            if self._is_resting_briefly(rung):
                return max(rung.rests_until_us, self._backoff.next_us), rung
            if rung.state in (RoadState.UNKNOWN, RoadState.RESTING):
                at_us = self._first_us if rung.road.name == self._first else self._attached_us
                if rung.road.name != self._first and self._moved_bytes < _MOVED_BYTES:
                    at_us += _AGE_US
                if rung.state is RoadState.RESTING:
                    at_us = max(at_us, rung.rests_until_us)
                at_us = max(at_us, self._backoff.next_us)
                if best is None or at_us < best[0]:
                    best = (at_us, rung)
        return best

    def _is_resting_briefly(self, rung: _Rung) -> bool:
        is_last = rung.road.name == self._last
        return is_last and rung.state is RoadState.RESTING and rung.rest_us <= 4 * _REST_US_WORKED

    def _choose(self, rung: _Rung, now: int) -> None:
        """Let this road carry the batches: it was proven just now."""
        before = self._used
        if before is not None and before.state is RoadState.DOUBTED:
            self._lose(before, f"silent, while {rung.road.name} works", now)
            self._decide(Step.CLOSE, before, before.why)
        elif before is not None:
            self._move(before, RoadEvent.REPLACED)
        if not rung.has_worked:
            rung.has_worked = True
            rung.rest_us = _REST_US_WORKED
        self._use(rung)
        self._last = rung.road.name
        self._move(rung, RoadEvent.CHOSEN)
        rung.used_since_us = now
        rung.why = ""
        self._forget_use()
        self._probe_us = now + _PROBE_FIRST_US
        self._plan_renewal(rung)
        self._decide(Step.USE, rung)

    def _lose(self, rung: _Rung, why: str, now: int) -> None:
        age_us = now - rung.opened_us
        younger_us, older_us = sorted((age_us, rung.age_us))
        if younger_us >= _AGED_US and 4 * older_us <= 5 * younger_us:
            rung.renew_after_us = younger_us * 4 // 5
        rung.age_us = age_us
        rung.why = why
        if now - rung.used_since_us >= _GOOD_US:
            rung.rest_us = _REST_US_WORKED
        self._move(rung, RoadEvent.LOST)
        self._rest(rung, now, self._rest_us_max)
        self._use(None)
        self._forget_use()

    def _leave_if_slow(self, rung: _Rung, now: int) -> None:
        """Let exchanges carry everything if they may carry more. If they do not, the road is tried again."""
        if self.connections > 1:  # the user has said how many to use, and a trial closes all of them
            return
        waits = self._unreceipted_bytes > 0 or self.is_doubted
        if not self._slow.is_slow(now, waits=waits) or not self._may_open:
            return
        if now < self._backoff.next_us:  # something asks for fewer requests, and a trial needs more of them
            return
        rung.why = self._slow.on_left(now)
        self._move(rung, RoadEvent.SLOW)
        self._use(None)
        self._decide(Step.LEAVE, rung, rung.why)

    def _forget_use(self) -> None:
        """Begin with another connection: it must prove itself with data."""
        self._slow.on_replaced()
        self._unreceipted_bytes = self._receipted_bytes = self._heard_us = 0
        self._renew_us = self._probe_us = None

    def _plan_renewal(self, rung: _Rung) -> None:
        if rung.renew_after_us:
            self._renew_us = rung.opened_us + rung.renew_after_us

    def _rest(self, rung: _Rung, now: int, most_us: int) -> None:
        wait_us = min(rung.rest_us, most_us)
        rung.rest_us = min(2 * wait_us, most_us)
        rung.rests_until_us = now + wait_us - self._random.getrandbits(16) * wait_us // (4 << 16)

    def _doubt_us(self, rung: _Rung) -> int:
        return min(max(rung.doubt_us, 4 * self.round_trip_us), _DOUBT_US_MAX)

    def _doubted_us(self, rung: _Rung) -> int:
        """Return when to doubt the road in use if no receipt comes until then. While something else comes, the road is
        alive, and the receipt waits behind it."""
        doubt_us = self._doubt_us(rung)
        due_us = self._progress_us + doubt_us
        if self._receipted_bytes and self._heard_us + doubt_us > due_us:
            return min(self._heard_us + doubt_us, self._progress_us + _DOUBT_US_MAX)
        return due_us

    def _rung(self, name: str) -> _Rung:
        return next(rung for rung in self._rungs if rung.road.name == name)

    def _use(self, rung: _Rung | None) -> None:
        self._used = rung
        self.is_doubted = rung is not None and rung.state is RoadState.DOUBTED

    def _move(self, rung: _Rung, event: RoadEvent) -> None:
        rung.state = TRANSITIONS.get((rung.state, event), rung.state)
        if rung is self._used:
            self.is_doubted = rung.state is RoadState.DOUBTED

    def _decide(self, step: Step, rung: _Rung, reason: str = "") -> None:
        self.decisions.append(Decision(step, rung.road.name, reason))
