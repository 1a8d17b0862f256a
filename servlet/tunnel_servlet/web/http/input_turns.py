"""The turns of a connection's payer."""

import asyncio
from collections.abc import Callable

from tunnel.turns.meter import Start
from tunnel.turns.queues import Turns
from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.web.http.payers import UNAUTHENTICATED

__all__ = ["InputTurns"]


class InputTurns:
    """Charges a connection's payer for the processor time of its input. While the payer must wait, nothing is read.

    `pause` stops reading, `go_on` handles what waits and reads again unless something else forbids it. When the first
    token comes, its user takes over what the connection has cost before. Without `turns`, nothing is charged, and
    nothing waits.
    """

    def __init__(
        self,
        turns: Turns | None,
        counted: CountedConnection,
        pause: Callable[[], None],
        go_on: Callable[[], None],
    ) -> None:
        self.turns = turns
        self.is_held = False  # nothing is read until it is the payer's turn
        self._counted = counted
        self._pause: Callable[[], None] | None = pause
        self._go_on: Callable[[], None] | None = go_on
        self._spent_us = counted.spent_us  # charged for this connection since its payer last changed
        self._resuming: asyncio.Handle | None = None  # goes on after a change of the payer

    @property
    def payer(self) -> str:
        return self._counted.user or UNAUTHENTICATED

    def join(self) -> None:
        """Take turns from now on, when a server begins to read from the connection."""
        if self.turns is not None:
            self.turns.join(self.payer, self, self._counted.source)
            # Pause later if `join` holds this connection: the transport begins to read after this method, and uvloop
            # ignores a pause that comes before.
            asyncio.get_running_loop().call_soon(self._hold)

    def start(self) -> Start:
        """Begin to measure processor time, for `charge`."""
        return self.turns.meter.start() if self.turns is not None else (0.0, 0.0)

    def charge(self, began: Start, cost_us: int = 0) -> None:
        """Charge the payer for the processor time since `began`, and `cost_us` more."""
        if self.turns is not None:
            spent_us = self.turns.meter.since(began) * 1e6 + cost_us
            self._spent_us += spent_us
            self.turns.spend(self.payer, spent_us)

    def charge_to(self, user: str) -> bool:
        """Charge the connection to this user from now on. Return False if the user has too many connections."""
        payer = self.payer
        if not self._counted.charge_to(user):
            return False
        if self.turns is not None and payer != user:
            self.turns.leave(payer, self, self._counted.source)
            if self.is_held:
                self.is_held = False
                self.go_on_soon()  # but `join`, below, may hold this connection again
            self.turns.join(user, self, self._counted.source)
            spent_us, self._spent_us = self._spent_us, 0.0
            if payer == UNAUTHENTICATED:
                self.turns.move(payer, user, spent_us)
        return True

    def go_on_soon(self) -> None:
        """Go on in the next round of the event loop."""
        if self._go_on is not None:
            self._resuming = asyncio.get_running_loop().call_soon(self._go_on)

    def leave(self) -> None:
        """Take no more turns: another protocol decides from now on whether the connection is read."""
        if self._resuming is not None:
            self._resuming.cancel()
        if self.turns is not None:
            self.turns.leave(self.payer, self, self._counted.source)
            self.is_held = False

    def end(self) -> None:
        """Stop, and let go of the connection, which is lost."""
        self.leave()
        self._pause = self._go_on = None

    def pause_input(self) -> None:
        """Read nothing until `resume_input` is called."""
        self.is_held = True
        self._hold()

    def resume_input(self) -> None:
        """Resume reading, unless a body or a request waits for its handler."""
        self.is_held = False
        if self._go_on is not None:
            self._go_on()

    def _hold(self) -> None:
        if self.is_held and self._pause is not None:
            self._pause()
