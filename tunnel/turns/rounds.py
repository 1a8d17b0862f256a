"""Turns by rounds of the event loop, for work that costs about the same each time: no clock is read."""

import asyncio
from collections import deque
from collections.abc import Callable

__all__ = ["RoundTurns"]


class RoundTurns:
    """Lets a few pieces of work begin in one round of the event loop. The others wait, and their users take turns.

    So a burst of one user delays other work by one round at a time, and another user's work by the same.
    """

    def __init__(self, per_round: int) -> None:
        self._per_round = per_round
        self._waiting: dict[str, deque[Callable[[], None]]] = {}  # by user; the next user first
        self._begun = 0  # pieces of work in this round of the loop

    def ask(self, user: str, begin: Callable[[], None]) -> None:
        """Call `begin` when it is the user's turn: now, or soon."""
        if self._begun < self._per_round and not self._waiting:
            self._begin(begin)
        else:
            self._waiting.setdefault(user, deque()).append(begin)

    async def wait(self, user: str) -> None:
        """Return when it is the user's turn."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.ask(user, lambda: None if turn.done() else turn.set_result(None))
        await turn

    def _begin(self, begin: Callable[[], None]) -> None:
        if not self._begun:
            asyncio.get_running_loop().call_soon(self._next_round)
        self._begun += 1
        begin()

    def _next_round(self) -> None:
        self._begun = 0
        while self._waiting and self._begun < self._per_round:
            user, queue = next(iter(self._waiting.items()))
            begin = queue.popleft()
            del self._waiting[user]
            if queue:
                self._waiting[user] = queue  # after the other users
            self._begin(begin)
