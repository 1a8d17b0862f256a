"""Logs the outages of a command's relay."""

from typing import Protocol

__all__ = ["OutageLog"]


class _Logger(Protocol):
    def warning(self, event: str, /, **fields: str) -> object: ...


class OutageLog:
    """A connection listener that logs when the relay stops answering (`disconnected`) and when it answers again
    (`reconnected`). In between, the attachment keeps trying, and connections live on until the user timeout."""

    def __init__(self, log: _Logger) -> None:
        self._log = log

    def disconnected(self, reason: str) -> None:
        self._log.warning("disconnected", text=f"{reason}; trying again, open connections wait")

    def reconnected(self) -> None:
        self._log.warning("reconnected")
