"""The part of an answer that its client does not read."""

import asyncio
from collections.abc import Callable

from tunnel_servlet.access.connections import CountedConnection

__all__ = ["UnreadAnswer"]


class UnreadAnswer:
    """Charges a connection for the part of an answer that waits in this process for its client to read. Cuts the
    connection if that part waits too long, or if the payer has too much; `cut` does it.

    The SwitchHost numbers the requests, and names the answer that leaves now.
    """

    def __init__(self, counted: CountedConnection, seconds: float, cut: Callable[[], None]) -> None:
        self._counted = counted
        self._seconds = seconds
        self._cut: Callable[[], None] | None = cut
        self._timer: asyncio.Handle | None = None  # set while a part of an answer waits
        self._bytes = 0  # charged for this part
        self._number = 0  # of the request whose answer leaves now, or left last

    def answer_begins(self, number: int) -> int:
        """Note that the answer to this request leaves from now on. Return the request whose answer left before."""
        before, self._number = self._number, number
        return before

    def cut_answer(self, number: int) -> None:
        """Cut the connection if the answer to this request waits in this process for its client to read."""
        if self._timer is not None and number == self._number:
            self._cut_connection()

    def on_waiting(self, size: int) -> None:
        """Note that this many bytes wait from now on."""
        loop = asyncio.get_running_loop()
        self._bytes = size
        if self._counted.hold(size):
            self._timer = loop.call_later(self._seconds, self._cut_connection)
        else:
            self._bytes = 0
            self._timer = loop.call_soon(self._cut_connection)

    def forget(self) -> None:
        """Note that no part of an answer waits any more: the client has read it, or the connection is lost."""
        self._counted.free(self._bytes)
        self._bytes = 0
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def end(self) -> None:
        """Stop, and let go of the connection, which is lost."""
        self.forget()
        self._cut = None

    def _cut_connection(self) -> None:
        """Cut the connection, because its client does not read the answer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        if self._cut is not None:
            self._cut()
