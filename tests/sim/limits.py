"""The limits of one path while a window of the fault plan is in force: bans, told or silent, a queue, few connections.

All of them count the requests that come meanwhile, whatever becomes of them: repeats can keep them from ever ending.
"""

from __future__ import annotations

from collections import deque

from tests.sim.clock import MILLISECOND, SECOND
from tests.sim.faults import FaultKind, FaultPlan

__all__ = ["PathLimits"]

K = FaultKind
_BAN_US = 10 * SECOND  # each request renews it
_QUEUE_US = 300 * MILLISECOND  # one request passes in this time; the others keep their places, even if given up
_CONNECTIONS = 5  # in this time; those that are cut count, too
_CONNECTIONS_US = 10 * SECOND


class PathLimits:
    """Decides about each request of one endpoint."""

    def __init__(self, plan: FaultPlan, node: int) -> None:
        self._plan = plan
        self._node = node
        self._asked_us: dict[int, int] = {}  # by the start of a ban's window: when the newest refused request came
        self._free_us = 0
        self._opened_us: deque[int] = deque(maxlen=_CONNECTIONS)

    def strike(self, now_us: int, *, new_connection: bool) -> tuple[FaultKind | None, int]:
        """Return the limit that a request meets, if any, and how long it waits in a queue."""
        is_quick = new_connection and len(self._opened_us) == _CONNECTIONS
        is_quick = is_quick and now_us - self._opened_us[0] < _CONNECTIONS_US
        if new_connection:
            self._opened_us.append(now_us)
        for window in self._plan.windows:
            if not window.covers(self._node, now_us):
                continue
            if window.kind in (K.BANNED, K.SWALLOWED):
                asked_us = self._asked_us.get(window.start_us, now_us)
                if now_us - asked_us < _BAN_US:
                    self._asked_us[window.start_us] = now_us
                    return window.kind, 0
            elif window.kind is K.QUEUED:
                self._free_us = max(now_us, self._free_us + _QUEUE_US)
                return (K.QUEUED if self._free_us > now_us else None), self._free_us - now_us
            elif window.kind is K.FEW_CONNECTIONS and is_quick:
                return K.FEW_CONNECTIONS, 0
        return None, 0
