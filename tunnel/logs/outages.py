"""Logs the outages of a command's relay, and connections that have no answer."""

from typing import Protocol

from tunnel.ground.printable import no_answer

__all__ = ["OutageLog"]


class _Logger(Protocol):
    def warning(self, event: str, /, **fields: str) -> object: ...


class OutageLog:
    """A connection listener that logs when the relay stops answering (`disconnected`) and when it answers again
    (`reconnected`). In between, the attachment keeps trying, and connections live on until the user timeout.

    It is also a wait listener, which logs connections that have no answer (`connecting`).
    """

    def __init__(self, log: _Logger) -> None:
        self._log = log

    def disconnected(self, reason: str) -> None:
        self._log.warning("disconnected", text=f"{reason}; trying again, open connections wait")

    def reconnected(self) -> None:
        self._log.warning("reconnected")

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        who = "" if why else " from the target, or from an exit"
        self._log.warning("connecting", target=target, text=f"{no_answer(seconds, why)}{who}: still trying")
