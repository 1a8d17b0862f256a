"""The deadline for the headers of a request."""

import asyncio
from collections.abc import Callable

__all__ = ["HeadDeadline"]


class HeadDeadline:
    """Closes a connection on which the headers of a request do not arrive in time. `close` does it."""

    def __init__(self, seconds: float, close: Callable[[], None]) -> None:
        self.is_idle = True  # no request is being handled
        self.timer: asyncio.TimerHandle | None = None  # set while headers are expected
        self._seconds = seconds
        self._close: Callable[[], None] | None = close

    def begin(self) -> None:
        """Expect headers from now on."""
        self.timer = asyncio.get_running_loop().call_later(self._seconds, self._expire)

    def on_arrived(self) -> None:
        """Note that all headers of a request have arrived."""
        self.is_idle = False
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def end(self) -> None:
        """Stop, and let go of the connection, which is lost."""
        self._close = None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _expire(self) -> None:
        self.timer = None
        if self.is_idle and self._close is not None:
            self._close()
