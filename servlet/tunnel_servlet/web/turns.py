"""Stops the input of users who have spent more processor time than their share, until their debt is paid."""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

from tunnel.clock import now_us
from tunnel_servlet.access.processor import TURN_US, ProcessorShares

__all__ = ["Turns", "UserInput"]


class UserInput(Protocol):
    """A connection from which one user's packets come."""

    def pause_input(self) -> None:
        """Read and handle nothing until `resume_input` is called."""

    def resume_input(self) -> None:
        """Go on where the input stopped."""


class Turns:
    """Knows which users must wait. Users for whom `is_exempt` holds never do: they carry the packets of others."""

    def __init__(
        self,
        is_exempt: Callable[[str], bool] = lambda user: False,
        clock: Callable[[], float] = time.thread_time,
    ) -> None:
        self.clock = clock  # processor time of this thread, in seconds
        self._is_exempt = is_exempt
        self._shares = ProcessorShares()
        self._inputs: dict[str, dict[UserInput, None]] = {}
        self._stopped: dict[str, list[asyncio.Future[None]]] = {}  # by user: those who wait in `admitted`
        self._in_turn: dict[str, int] = {}  # microseconds spent in this turn of the event loop
        self._timers: dict[str, asyncio.Handle] = {}

    def join(self, user: str, source: UserInput) -> None:
        """Stop and resume this input together with the user's others, until `leave`."""
        self._inputs.setdefault(user, {})[source] = None
        if user in self._stopped:
            source.pause_input()

    def leave(self, user: str, source: UserInput) -> None:
        """Forget an input that has ended."""
        inputs = self._inputs.get(user, {})
        inputs.pop(source, None)
        if not inputs:
            self._inputs.pop(user, None)

    def is_stopped(self, user: str) -> bool:
        """Whether the user's input must wait."""
        return user in self._stopped

    async def admitted(self, user: str, cost_us: int = 0) -> None:
        """Return when the user's input may be handled, and charge what that costs besides the time that is measured.

        The caller handles the input without another await.
        """
        while (waiting := self._stopped.get(user)) is not None:
            future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiting.append(future)
            await future
        if cost_us:
            self.spend(user, cost_us)

    def spent_since(self, user: str, began: float) -> None:
        """Charge the user for the time since `began`, a reading of `clock`, and stop its input if it must wait."""
        self.spend(user, int((self.clock() - began) * 1e6))

    def spend(self, user: str, spent_us: int) -> None:
        """Charge the user for this time, and stop its input if it must wait."""
        if self._is_exempt(user):
            return
        loop = asyncio.get_running_loop()
        if not self._in_turn:
            loop.call_soon(self._in_turn.clear)
        in_turn = self._in_turn[user] = self._in_turn.get(user, 0) + spent_us
        wait_us = self._shares.charge(user, spent_us, now_us())
        if user in self._stopped or (not wait_us and in_turn <= TURN_US):
            return
        self._stopped[user] = []
        for source in list(self._inputs.get(user, ())):
            source.pause_input()
        self._timers[user] = (
            loop.call_later(wait_us / 1e6, self._resume, user) if wait_us else loop.call_soon(self._resume, user)
        )

    def close(self) -> None:
        """Let all users go on, because the relay stops."""
        for timer in self._timers.values():
            timer.cancel()
        for user in list(self._stopped):
            self._resume(user)

    def _resume(self, user: str) -> None:
        self._timers.pop(user, None)
        for future in self._stopped.pop(user):
            if not future.done():
                future.set_result(None)
        inputs = self._inputs.get(user, {})
        for source in list(inputs):
            if user in self._stopped:
                return  # the inputs before this one have used the turn up
            if source in inputs:
                del inputs[source]
                inputs[source] = None  # last in the next turn
                source.resume_input()
