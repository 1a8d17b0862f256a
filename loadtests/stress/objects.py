"""Which objects a run has left: more of a type than before, although every connection has ended."""

from collections.abc import Mapping

__all__ = ["TOLERANCE", "left_over"]

TOLERANCE = 24
"""How many more objects of one type may be there after the load than before it, for each process with users.

Before the load a process has not used all of its parts: the relay does not know the users' attachments, each of which
has up to eight lanes, and remembers them for 300 s after their end; and pools and caches are empty.
"""


def left_over(before: Mapping[str, int], after: Mapping[str, int], processes: int = 1) -> dict[str, tuple[int, int]]:
    """Return the types with more objects than the tolerance allows, the most first, with both counts."""
    found = {kind: (before.get(kind, 0), count) for kind, count in after.items()}
    grown = {kind: pair for kind, pair in found.items() if pair[1] - pair[0] > TOLERANCE * processes}
    return dict(sorted(grown.items(), key=lambda item: item[1][0] - item[1][1]))
