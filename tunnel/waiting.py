"""Logs what an attachment waits for while it is being started: a library prints nothing, and is not silent, either."""

import asyncio
import logging
from collections.abc import Callable

from tunnel.defaults import ATTACHING_LOG

__all__ = ["WaitingLog"]

_QUIET_S = 2.0
_log = logging.getLogger(ATTACHING_LOG)


class WaitingLog:
    """Logs after 2 s, and whenever the time has doubled since, that no relay answers at `where`, and the last trouble.

    It begins at once, within the event loop, and ends with `stop`.
    """

    def __init__(self, where: str, trouble: Callable[[], str]) -> None:
        self._where, self._trouble = where, trouble
        self._waited_s = _QUIET_S
        self._timer = asyncio.get_running_loop().call_later(_QUIET_S, self._look)

    def stop(self) -> None:
        """Log no more."""
        self._timer.cancel()

    def _look(self) -> None:
        text = self._trouble() or "no answer"
        _log.warning("no relay has answered at %s for %.0f s (%s): still trying", self._where, self._waited_s, text)
        self._timer = asyncio.get_running_loop().call_later(self._waited_s, self._look)
        self._waited_s *= 2
