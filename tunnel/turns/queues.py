"""Stops the input of users who have spent more processor time than they may, until it is their turn again."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Protocol

from tunnel.system.clock import now_us
from tunnel.turns.meter import ProcessorMeter, Start
from tunnel.turns.shares import ProcessorShares

__all__ = ["FIRST", "Turns", "UserInput"]

_SMALL_US = 200  # a user's charges take effect when their sum has reached this: most inputs cost less
_RESUMED = 8  # the most requests, and the most inputs, of one user that go on in one turn of the event loop


FIRST = "first"
"""The group of inputs that go on before all others of their user."""


class UserInput(Protocol):
    """A connection from which one user's packets come."""

    def pause_input(self) -> None:
        """Read and handle nothing until `resume_input` is called."""

    def resume_input(self) -> None:
        """Go on where the input stopped."""


class _Queue:
    """The inputs of one user, which run or are held, and the user's waiting requests."""

    __slots__ = ("held", "is_stopped", "running", "timer", "waiting")

    def __init__(self) -> None:
        self.is_stopped = False
        self.running: dict[UserInput, str] = {}  # with their groups
        self.held: dict[str, dict[UserInput, None]] = {}  # by group; both groups and inputs go on in this order
        self.waiting: deque[asyncio.Future[None]] = deque()
        self.timer: asyncio.Handle | None = None

    def hold(self, source: UserInput, group: str) -> None:
        """Pause an input until it is its turn."""
        if group == FIRST and FIRST not in self.held:
            self.held = {FIRST: {}, **self.held}
        self.held.setdefault(group, {})[source] = None
        source.pause_input()

    def release(self) -> UserInput | None:
        """Return the held input that goes on next, which runs from now on; None if none is held."""
        if not self.held:
            return None
        group = next(iter(self.held))
        inputs = self.held.pop(group)
        source = next(iter(inputs))
        del inputs[source]
        if inputs and group == FIRST:
            self.held = {FIRST: inputs, **self.held}
        elif inputs:
            self.held[group] = inputs  # after the other groups
        self.running[source] = group
        return source


class Turns:
    """Knows which users must wait. Users for whom `is_exempt` holds never do: they carry the packets of others."""

    def __init__(
        self,
        is_exempt: Callable[[str], bool] = lambda user: False,
        meter: ProcessorMeter | None = None,
    ) -> None:
        self.meter = meter or ProcessorMeter()
        self._is_exempt = is_exempt
        self._shares = ProcessorShares()
        self._queues: dict[str, _Queue] = {}
        self._small: dict[str, float] = {}  # microseconds that have no effect yet
        self._in_turn: dict[str, int] = {}  # microseconds charged in this turn of the event loop
        self._moved: dict[str, int] = {}  # the part of `_in_turn` that another payer was charged before
        self._is_closed = False
        self.stops = 0  # how often the input of a user had to wait, since the start
        self.peak_us = 0  # the most that one user has spent in one turn; load tests reset it

    @property
    def users(self) -> int:
        """The number of users whose input runs or waits."""
        return len(self._queues)

    @property
    def inputs(self) -> int:
        """The number of inputs that have joined and not left."""
        return sum(len(each.running) + sum(map(len, each.held.values())) for each in self._queues.values())

    def join(self, user: str, source: UserInput, group: str = "") -> None:
        """Stop and resume this input together with the user's others, until `leave`. Groups take turns."""
        queue = self._queues.setdefault(user, _Queue())
        if queue.is_stopped:
            queue.hold(source, group)
        else:
            queue.running[source] = group

    def leave(self, user: str, source: UserInput, group: str = "") -> None:
        """Forget an input that has ended."""
        queue = self._queues.get(user)
        if queue is None:
            return
        queue.running.pop(source, None)
        inputs = queue.held.get(group, {})
        inputs.pop(source, None)
        if not inputs:
            queue.held.pop(group, None)
        self._forget(user, queue)

    def is_stopped(self, user: str) -> bool:
        """Whether the user's input must wait."""
        queue = self._queues.get(user)
        return queue is not None and queue.is_stopped

    def has_to_wait(self, user: str) -> bool:
        """Whether `wait_for_turn` would wait."""
        queue = self._queues.get(user)
        return queue is not None and (queue.is_stopped or bool(queue.waiting))

    async def wait_for_turn(self, user: str, cost_us: int = 0) -> None:
        """Wait until the user's input may be handled. Then charge `cost_us`, the part of its cost that is not measured.

        The caller must pass the input on without another await. To await more of the input, it must call this again.
        """
        has_waited = False
        while (queue := self._queues.get(user)) is not None and (
            queue.is_stopped or (queue.waiting and not has_waited)
        ):
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            if has_waited:
                queue.waiting.appendleft(future)
            else:
                queue.waiting.append(future)
            has_waited = True
            await future
        if cost_us:
            self.spend(user, cost_us)

    def spent_since(self, user: str, began: Start) -> float:
        """Charge the user for the processor time since `began`, and stop the user's input if the user must wait. Return
        the time in microseconds."""
        spent_us = self.meter.since(began) * 1e6
        self.spend(user, spent_us)
        return spent_us

    def move(self, payer: str, user: str, spent_us: float) -> None:
        """Charge the user for time that was charged to another payer, perhaps in earlier turns."""
        whole_us = int(spent_us)
        self._shares.refund(payer, whole_us)
        self._moved[user] = self._moved.get(user, 0) + whole_us
        self.spend(user, whole_us)

    def spend(self, user: str, spent_us: float) -> None:
        """Charge the user for this time, and stop the user's input if the user must wait."""
        spent_us += self._small.get(user, 0.0)
        if spent_us < _SMALL_US:
            self._small[user] = spent_us
            return
        self._small.pop(user, None)
        self._charge(user, int(spent_us))  # whole numbers only now: many inputs cost less than a microsecond

    def _charge(self, user: str, spent_us: int) -> None:
        if self._is_closed or self._is_exempt(user):
            return
        if not self._in_turn:
            asyncio.get_running_loop().call_soon(self._end_turn)
        in_turn = self._in_turn[user] = self._in_turn.get(user, 0) + spent_us
        peak_us = in_turn - self._moved.get(user, 0)
        if peak_us > self.peak_us:
            self.peak_us = peak_us
        wait_us = self._shares.charge(user, spent_us, now_us())
        if (not wait_us and in_turn <= self._shares.turn_us) or self.is_stopped(user):
            return
        loop = asyncio.get_running_loop()
        queue = self._queues.setdefault(user, _Queue())
        queue.is_stopped = True
        self.stops += 1
        running, queue.running = queue.running, {}
        for source, group in running.items():
            queue.hold(source, group)
        if queue.timer is not None:
            queue.timer.cancel()
        queue.timer = (
            loop.call_later(wait_us / 1e6, self._resume, user) if wait_us else loop.call_soon(self._resume, user)
        )

    def _end_turn(self) -> None:
        self._in_turn.clear()
        self._moved.clear()

    def close(self) -> None:
        """Let all users go on, because the server stops."""
        self._is_closed = True
        for user, queue in list(self._queues.items()):
            if queue.timer is not None:
                queue.timer.cancel()
            queue.is_stopped = False
            while queue.held or queue.waiting:
                self._resume(user)

    def _resume(self, user: str) -> None:
        """Let some of the requests and inputs that wait go on, and the rest in the next turns."""
        queue = self._queues[user]
        queue.timer = None
        queue.is_stopped = False
        for _ in range(_RESUMED):
            if queue.waiting:
                future = queue.waiting.popleft()
                if not future.done():
                    future.set_result(None)
            source = queue.release()
            if source is not None:
                try:
                    source.resume_input()
                except Exception as error:  # the other inputs must go on
                    what = {"message": "an input failed when it went on", "exception": error}
                    asyncio.get_running_loop().call_exception_handler(what)
            if queue.is_stopped:
                return  # that input has used the turn up
        if (queue.held or queue.waiting) and not self._is_closed:
            queue.timer = asyncio.get_running_loop().call_soon(self._resume, user)
        self._forget(user, queue)

    def _forget(self, user: str, queue: _Queue) -> None:
        if not (queue.is_stopped or queue.running or queue.held or queue.waiting or queue.timer):
            self._queues.pop(user, None)
