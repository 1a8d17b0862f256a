"""The three signs of a broken connection, noted separately; the sender leaves phase 1 at the first of them."""

import asyncio
import enum
import time
from collections.abc import Callable

__all__ = ["ConnectionSign", "ErrorSign", "Sign", "Signs"]


class Sign(enum.Enum):
    """The signs, with their names in the reference document."""

    STATUS = "status is not CONNECTED"
    DISCONNECTED = "disconnected"
    READ_CLOSED = "readClosed"


class ConnectionSign:
    """A connection listener: it notes a lost connection, and that the connection is back."""

    def __init__(self, note: Callable[[Sign], None]) -> None:
        self._note = note
        self.back = asyncio.Event()

    def disconnected(self, reason: str) -> None:
        self.back.clear()
        self._note(Sign.DISCONNECTED)

    def reconnected(self) -> None:
        self.back.set()


class ErrorSign:
    """An error listener: it notes that reading from the connection has failed."""

    def __init__(self, note: Callable[[Sign], None]) -> None:
        self._note = note

    def read_closed(self, text: str) -> None:
        self._note(Sign.READ_CLOSED)


class Signs:
    """When each sign was first seen, on the clock `time.monotonic`. `is_connected` asks for the status.

    No sign is derived from another: the status is asked for, and each listener is called for an event of its own.
    """

    def __init__(self, is_connected: Callable[[], bool]) -> None:
        self.seen: dict[Sign, float] = {}
        self.connection = ConnectionSign(self._noted)
        self.error = ErrorSign(self._noted)
        self._is_connected = is_connected

    def _noted(self, sign: Sign) -> None:
        self.seen.setdefault(sign, time.monotonic())

    def ask(self) -> None:
        """Ask for the status, and note it if it is not CONNECTED."""
        if not self._is_connected():
            self._noted(Sign.STATUS)

    def is_broken(self) -> bool:
        """Ask for the status, and return whether any of the three signs says that the connection is broken."""
        self.ask()
        return bool(self.seen)

    def after_ms(self, start: float) -> dict[str, int]:
        """Return, for the name of each sign that was seen, how many milliseconds after `start` it was seen first."""
        return {sign.value: round((self.seen[sign] - start) * 1000) for sign in Sign if sign in self.seen}
