"""Which connection of a road is being opened, what for, and which one comes next, as state machines without I/O (8.6).

One connection is opened at a time. The *try* that is under way:

idle      Nothing is being opened.
wanted    The ladder wants a connection on this road.
spare     The connection will be a spare for the one in use.
stale     It was for a generation that has ended, so that nothing can use it.

The road that is tried *next*, and what it waits for:

none      No road waits.
end       The end of the present try, and of a pause of all requests.
pull      No pull must be held: the path carries few requests at once, and the try needs the turn of one.
taken     The present try has taken that turn, so that no pull may be held until its end.
"""

import enum
from random import Random

from tunnel.exchange.backoff import Backoff
from tunnel.exchange.config import SECOND_US
from tunnel.exchange.path.pulls import NEVER_US
from tunnel.exchange.roads.spare_times import SpareTimes

__all__ = ["NEXT_TRANSITIONS", "TRY_TRANSITIONS", "Next", "NextEvent", "RoadTries", "Try", "TryEvent"]

_NARROW_US = 600 * SECOND_US  # how long a path counts as one that carries only a few requests at once


class Try(enum.Enum):
    """The state of the try under way, as the module describes."""

    IDLE = "idle"
    WANTED = "wanted"
    SPARE = "spare"
    STALE = "stale"


class TryEvent(enum.Enum):
    """An event in the life of a try."""

    BEGAN = "began"
    BEGAN_SPARE = "began a spare"
    DETACHED = "detached"
    ENDED = "ended"


class Next(enum.Enum):
    """What the next try waits for, as the module describes."""

    NONE = "none"
    END = "end"
    PULL = "pull"
    TAKEN = "taken"


class NextEvent(enum.Enum):
    """An event that concerns the next try."""

    BUSY = "busy"  # a road is wanted, or has its turn, while a connection is being opened
    NARROW = "narrow"  # a road is wanted on a path that carries few requests at once
    BEGAN = "began"  # the try of the road that waited
    USED = "used"  # a road carries now
    DETACHED = "detached"
    ENDED = "ended"  # the present try


_T, _TE, _N, _NE = Try, TryEvent, Next, NextEvent
TRY_TRANSITIONS: dict[tuple[Try, TryEvent], Try] = {
    (_T.IDLE, _TE.BEGAN): _T.WANTED,
    (_T.IDLE, _TE.BEGAN_SPARE): _T.SPARE,
    (_T.WANTED, _TE.DETACHED): _T.STALE,
    (_T.WANTED, _TE.ENDED): _T.IDLE,
    (_T.SPARE, _TE.DETACHED): _T.STALE,
    (_T.SPARE, _TE.ENDED): _T.IDLE,
    (_T.STALE, _TE.ENDED): _T.IDLE,
}
NEXT_TRANSITIONS: dict[tuple[Next, NextEvent], Next] = {
    (_N.NONE, _NE.BUSY): _N.END,
    (_N.NONE, _NE.NARROW): _N.PULL,
    (_N.END, _NE.NARROW): _N.PULL,
    (_N.END, _NE.BEGAN): _N.NONE,
    (_N.END, _NE.DETACHED): _N.NONE,
    (_N.PULL, _NE.BUSY): _N.END,
    (_N.PULL, _NE.BEGAN): _N.TAKEN,
    (_N.PULL, _NE.USED): _N.NONE,  # a spare has proven the road meanwhile
    (_N.PULL, _NE.DETACHED): _N.NONE,
    (_N.TAKEN, _NE.BUSY): _N.END,
    (_N.TAKEN, _NE.NARROW): _N.PULL,
    (_N.TAKEN, _NE.USED): _N.NONE,
    (_N.TAKEN, _NE.DETACHED): _N.NONE,
    (_N.TAKEN, _NE.ENDED): _N.NONE,
}
"""In both tables, every other pair changes nothing."""


class RoadTries:
    """The try under way and the next one. The caller opens the connections, one at a time.

    `want` is for a connection that the ladder asks for, `begin_spare` for a spare one. If a road waits, `next_due_us`
    says when `begin_next` may be called. After each of these, the caller opens a connection on `road`, and calls `end`
    when that has succeeded or failed. `may_hold` says whether pulls may be held.

    `backoff` is that of all requests to the relay: a road that has waited waits for its pauses, too.
    """

    def __init__(self, random: Random, backoff: Backoff) -> None:
        self.state = Try.IDLE
        self.next = Next.NONE
        self.road = ""  # of the present or latest try
        self.spare_times = SpareTimes(random, backoff)
        self.began_us: int | None = None
        """When the present try began, if exchanges may have to wait for it: nothing else carries meanwhile."""
        self._next_road = ""
        self._backoff = backoff
        self._narrow_until_us = 0  # until then, the path seems to carry few requests at once: an exchange had to wait

    @property
    def may_hold(self) -> bool:
        """Whether pulls may be held."""
        return self.next is not Next.PULL and self.next is not Next.TAKEN

    @property
    def next_due_us(self) -> int:
        """When the road that waits may be tried, at the earliest. If it waits for a pull, that must also have ended."""
        if self.next is Next.PULL or (self.next is Next.END and self.state is Try.IDLE):
            return self._backoff.next_us
        return NEVER_US

    @property
    def spare_due_us(self) -> int:
        """When a spare connection may be opened."""
        return self.spare_times.due_us if self.state is Try.IDLE and self.next is Next.NONE else NEVER_US

    def want(self, road: str, now: int, *, is_narrow: bool, carries: bool) -> bool:
        """Take the ladder's wish for a connection on this road. Return whether to open it now; otherwise it waits.

        `is_narrow`: the path is known to carry only a few requests at once. `carries`: a connection is in use, so that
        no exchange waits for this one.
        """
        if not carries and (is_narrow or now < self._narrow_until_us):
            self._wait(road, NextEvent.NARROW)
        elif self.state is not Try.IDLE:
            self._wait(road, NextEvent.BUSY)
        else:
            self._begin(road, TryEvent.BEGAN, None if carries else now)
            return True
        return False

    def begin_next(self, now: int, *, carries: bool) -> bool:
        """Take the turn of the road that waits. Return whether to try it now; otherwise another try must end first."""
        self._backoff.on_sent(now)
        if self.state is not Try.IDLE:
            self._move_next(NextEvent.BUSY)
            return False
        self._move_next(NextEvent.BEGAN)
        self._begin(self._next_road, TryEvent.BEGAN, None if carries else now)
        return True

    def begin_spare(self, road: str, now: int) -> None:
        """Begin to open a spare connection."""
        self.spare_times.on_tried(now)
        self._begin(road, TryEvent.BEGAN_SPARE, None)

    def make_way(self, now: int) -> None:
        """Record that an exchange had to wait for the present try: perhaps the path carries few requests at once."""
        self.began_us = None
        self._narrow_until_us = now + _NARROW_US

    def end(self) -> Try:
        """Record that the present try has succeeded or failed. Return its state until now."""
        before = self.state
        self.began_us = None
        self._move(TryEvent.ENDED)
        self._move_next(NextEvent.ENDED)
        return before

    def on_used(self) -> None:
        """A road carries now."""
        self._move_next(NextEvent.USED)

    def on_detached(self) -> None:
        """The generation has ended, and with it the use of a connection that is being opened."""
        self._move(TryEvent.DETACHED)
        self._move_next(NextEvent.DETACHED)

    def _begin(self, road: str, event: TryEvent, began_us: int | None) -> None:
        self.road = road
        self.began_us = began_us
        self._move(event)

    def _wait(self, road: str, event: NextEvent) -> None:
        self._next_road = road
        self._move_next(event)

    def _move(self, event: TryEvent) -> None:
        self.state = TRY_TRANSITIONS.get((self.state, event), self.state)

    def _move_next(self, event: NextEvent) -> None:
        self.next = NEXT_TRANSITIONS.get((self.next, event), self.next)
