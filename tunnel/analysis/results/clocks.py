"""The clocks of the writers, and one common time for the events of all of them.

Each process records times by its machine's own clock, which counts from some moment of its own. The clocks of two
writers are compared in two ways. A packet cannot arrive before it was sent, so packets in both directions set limits to
the difference of the clocks. And each writer now and then records the time of the wall clock.
"""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

__all__ = ["Clock", "are_one", "clocks_of"]

_SAME_US = 50_000  # on a machine whose wall clock NTP sets, the `walls` of two writers differ by less than this
_LATE_US = 10_000_000  # the fastest of all packets between two processes takes less than this

Rows = list[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Clock:
    """By how much a writer's clock is ahead of the common time, and how that is known."""

    ahead_us: int
    known_by: str
    """One of: reference, packets, wall clock, nothing."""


def are_one(walls: dict[str, int | None]) -> bool:
    """Return whether all writers certainly had the same clock.

    `walls` holds, for each writer, the wall-clock time at which its own clock stood at zero (None if not recorded).
    """
    known = [wall for wall in walls.values() if wall is not None]
    return len(walls) <= 1 or (len(known) == len(walls) and max(known) - min(known) < _SAME_US)


def clocks_of(walls: dict[str, int | None], delays: Rows) -> dict[str, Clock]:
    """Return the clock of each writer, from `walls` (as for `are_one`) and the rows of the query `delays`.

    The writer that comes first in the alphabet gives the time. Packets tell more than wall clocks.
    """
    shortest = {(row["begin_writer"], row["end_writer"]): int(row["us"]) for row in delays}
    near: dict[str, set[str]] = defaultdict(set)
    for begin, end in shortest:
        near[begin].add(end)
        near[end].add(begin)
    found: dict[str, Clock] = {}
    for name in sorted(walls):
        if name in found:
            continue
        found[name] = _first_of_group(name, walls, found)
        waiting = [name]
        while waiting:
            known = waiting.pop(0)
            for other in sorted(near[known] & walls.keys() - found.keys()):
                ahead_us = _ahead_us(shortest.get((known, other)), shortest.get((other, known)))
                found[other] = Clock(found[known].ahead_us + ahead_us, "packets")
                waiting.append(other)
    return found


def _first_of_group(name: str, walls: dict[str, int | None], found: dict[str, Clock]) -> Clock:
    """Return the clock of a writer that exchanged no packets with those that are known."""
    wall_us = walls[name]
    if not found:
        return Clock(0, "reference")
    for other, clock in found.items():
        other_us = walls[other]
        if wall_us is not None and other_us is not None:
            ahead_us = clock.ahead_us + other_us - wall_us
            return Clock(0 if abs(ahead_us) < _SAME_US else ahead_us, "wall clock")
    return Clock(0, "nothing")


def _ahead_us(there_us: int | None, back_us: int | None) -> int:
    """Return by how much the other clock is ahead of the known one.

    `there_us` is the shortest time of a packet to the other process, `back_us` that of a packet back (None: there was
    none): the time of arrival by the receiver's clock minus the time of sending by the sender's. With packets in both
    directions, the clocks are taken for one if none arrived before it was sent; otherwise the path is taken to be as
    long in both directions. With packets in one direction only, the clocks are taken for one if the shortest time is
    neither negative nor implausibly long; otherwise the path is taken to be infinitely short.
    """
    if there_us is not None and back_us is not None:
        return 0 if there_us >= 0 and back_us >= 0 else (there_us - back_us) // 2
    if there_us is not None:
        return 0 if 0 <= there_us < _LATE_US else there_us
    return 0 if back_us is None or 0 <= back_us < _LATE_US else -back_us
