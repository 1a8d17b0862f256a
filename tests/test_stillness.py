"""The wait of a graceful shutdown: it ends with the last connection, or when nothing moves any more."""

from __future__ import annotations

from tests.support.loops import in_loop
from tunnel.process.stillness import until_still


class Traffic:
    """Connections that move a byte at each look, `moves` times, and then end (`ends`) or stand still."""

    def __init__(self, moves: int, *, ends: bool) -> None:
        self.moves = moves
        self.looks = 0
        self._ends = ends

    def open_now(self) -> int:
        return 0 if self._ends and self.looks > self.moves else 2

    def moved_now(self) -> int:
        self.looks += 1
        return min(self.looks, self.moves)


@in_loop
async def test_without_connections_it_does_not_wait() -> None:
    assert await until_still(lambda: 0, lambda: 0, 1e9) == 0


@in_loop
async def test_connections_that_move_are_waited_for_until_they_end() -> None:
    traffic = Traffic(3, ends=True)
    assert await until_still(traffic.open_now, traffic.moved_now, 1e9) == 0
    assert traffic.looks > 3


@in_loop
async def test_connections_that_stand_still_are_counted() -> None:
    traffic = Traffic(3, ends=False)
    assert await until_still(traffic.open_now, traffic.moved_now, 0.0) == 2
    assert await until_still(traffic.open_now, traffic.moved_now, 0.3) == 2
    assert traffic.looks >= 3
