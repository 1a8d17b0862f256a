"""The side of a splice that is a TCP connection to a target, dialled for a user who may read nothing.

What such a user does not read waits in the kernel, beyond what the tunnel's connection holds. So the kernel's receive
buffer of a target keeps its first size, 128 KiB by default, until the target has sent twice as much. Then it may grow,
for as many connections as `LargeBuffers` allows. A distant target needs this: it sends one buffer per round trip.
"""

import asyncio

from tunnel.streams.splice import SocketSide
from tunnel.system.receive_buffers import keep_receive_buffer, let_receive_buffer_grow

__all__ = ["LargeBuffers", "TargetSide"]

_LARGE_MAX = 64  # times 6 MiB, Linux's default limit: as much as it lets all sockets of a machine with 4 GB have
_SMALL_BYTES = 256 * 1024  # a new connection has received so much by the time that its sender knows the path


class LargeBuffers:
    """Counts the connections whose receive buffers may grow. One user alone may have half of them."""

    def __init__(self, large_max: int = _LARGE_MAX) -> None:
        self._large_max = large_max
        self._of_user: dict[str, int] = {}

    def take(self, user: str) -> bool:
        """Return whether the buffer of another connection of this user may grow; if so, `give_back` must follow."""
        held = self._of_user.get(user, 0)
        if held >= self._large_max - sum(self._of_user.values()):
            return False
        self._of_user[user] = held + 1
        return True

    def give_back(self, user: str) -> None:
        """Note the end of a connection whose buffer could grow."""
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]


class TargetSide(SocketSide):
    """The side that is a TCP connection to a target, dialled for this user."""

    def __init__(self, user: str, buffers: LargeBuffers) -> None:
        super().__init__()
        self._user = user
        self._buffers = buffers
        self._small_bytes = _SMALL_BYTES  # still to come before it asks for a large buffer
        self._is_large = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        keep_receive_buffer(transport.get_extra_info("socket"))
        super().connection_made(transport)

    def data_received(self, data: bytes) -> None:
        if not self._is_large:
            self._small_bytes -= len(data)
            if self._small_bytes <= 0:
                self._ask_for_large_buffer()
        super().data_received(data)

    def _ask_for_large_buffer(self) -> None:
        """Let the buffer grow, or ask again after as many bytes as before: another connection may have ended."""
        if self._buffers.take(self._user):
            self._is_large = True
            let_receive_buffer_grow(self._transport.get_extra_info("socket"))
        else:
            self._small_bytes = _SMALL_BYTES

    def connection_lost(self, exc: Exception | None) -> None:
        if self._is_large:
            self._buffers.give_back(self._user)
        super().connection_lost(exc)
