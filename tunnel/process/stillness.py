"""Waits at a graceful shutdown: for connections that still move bytes, but not for idle ones."""

import asyncio
from collections.abc import Callable

__all__ = ["STILL_S", "until_still"]

STILL_S = 3.0  # where the path loses exchanges, a connection can pause for about this long until they are repeated
_LOOK_S = 0.2  # interval of the checks whether anything has moved


async def until_still(open_now: Callable[[], int], moved_now: Callable[[], object], still_s: float = STILL_S) -> int:
    """Wait until no connection is open, or no byte has moved for `still_s`. Return the number of open connections.

    `open_now` counts the open connections; the value of `moved_now` changes whenever one of them moves bytes.
    """
    now = asyncio.get_running_loop().time
    moved, since_s = moved_now(), now()
    while count := open_now():
        if now() - since_s >= still_s:
            return count
        await asyncio.sleep(_LOOK_S)
        if (latest := moved_now()) != moved:
            moved, since_s = latest, now()
    return 0
