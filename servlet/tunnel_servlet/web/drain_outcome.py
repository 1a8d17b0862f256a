"""What a drain did: how many connections moved to another relay, ended by themselves, or were cut."""

import asyncio

import msgspec

from tunnel_servlet.switch.stats import SwitchStats

__all__ = ["DrainOutcome", "DrainWatch"]


class DrainOutcome(msgspec.Struct, frozen=True):
    """Of the connections that were open when the drain began, how many went which way."""

    moved: int
    ended: int
    cut: int


class DrainWatch:
    """Counts the connections while a relay drains. `begin` and `end` are called once each."""

    def __init__(self) -> None:
        self._outcome: asyncio.Future[DrainOutcome] | None = None
        self._routes = 0  # open at the beginning
        self._moved = 0  # had moved by then

    def begin(self, stats: SwitchStats) -> None:
        """Note the connections that are open now."""
        self._routes, self._moved = stats.routes_open, stats.counters.routes_moved
        self._outcome = asyncio.get_running_loop().create_future()

    def end(self, stats: SwitchStats) -> DrainOutcome:
        """Count what has happened since; what is open now is cut."""
        moved = stats.counters.routes_moved - self._moved
        found = DrainOutcome(moved, max(0, self._routes - moved - stats.routes_open), stats.routes_open)
        if self._outcome is not None:
            self._outcome.set_result(found)
        return found

    async def outcome(self) -> DrainOutcome:
        """Wait for the end of the drain, which must have begun."""
        assert self._outcome is not None
        return await asyncio.shield(self._outcome)
