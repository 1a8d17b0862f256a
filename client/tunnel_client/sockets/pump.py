"""The two sides of a TunnelSocket: our end of a loopback pair, and the connection through the tunnel.

They differ from other spliced sides, because the application must see what TCP would show it:

- The first bytes from the application's side may be filler, which kept the socket from being writable. It is discarded.
- A reset waits until the kernel has handed the earlier bytes over to the application.
- After the application has ended its direction, the event loop does not notice when the application closes the socket.
  So the kernel is asked.
- If the peer closes early, its answer still arrives, although the bytes that were written to it are lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import termios

from tunnel.streams.splice import Ended, Side, TunnelSide
from tunnel.system.linger import reset_when_closed
from tunnel_client.borrowed.pair import name_of

__all__ = ["FarSide", "NearSide"]

_OUTGOING_CHECK_S = 0.02  # interval at which the kernel is asked
# A socket that the application has closed looks half-closed until something is sent to it: here, a keepalive.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class FarSide(TunnelSide):
    """The connection through the tunnel that a TunnelSocket stands for."""

    def eof_received(self) -> bool:
        """Pass the peer's end of file on, even if the peer has closed with bytes of ours unread.

        So the application can read the answer first, and learns of the loss when it writes.
        """
        self.is_eof = True
        if self._other is not None:
            self._pass_end_on(self._other)
        return True

    def other_ended(self, other: Side, *, clean: bool) -> None:
        """Abort, unless both directions had ended. If they had, this side is closing, and may still be delivering."""
        if not (self.is_eof and other.is_eof):
            self.abort()


class NearSide(Side):
    """Our end of the loopback pair. `skip` is the number of filler bytes at the start, which are discarded."""

    def __init__(self, sock: socket.socket, skip: int, ended: Ended) -> None:
        super().__init__(ended=ended)
        self.ended_reading = asyncio.get_running_loop().create_future()  # done when the application sends no more
        self._sock = sock
        self._skip = skip
        self._reset_due = self._look_due = False

    @property
    def descriptor(self) -> int:
        """The file descriptor of the loopback socket."""
        return self._sock.fileno()

    def names(self) -> tuple[str, str] | None:
        """Return the names of the application's socket: its own and its peer's.

        Return None once that socket is closed, which the loop may not know yet.
        """
        try:
            return name_of(self._sock.getpeername()), name_of(self._sock.getsockname())
        except OSError:
            return None

    def leave(self) -> None:
        """In a forked child, close the descriptor without touching the loop, which belongs to the parent."""
        descriptor = self._sock.detach()
        if descriptor >= 0:
            os.close(descriptor)

    # called by the transport

    def data_received(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if data and not self._reset_due:  # if a reset is due, the far side is lost, which the reset will report
            super().data_received(data)

    def eof_received(self) -> bool:
        self._settle()
        super().eof_received()
        if not self.is_over:
            self._watch()
        return True

    def resume_writing(self) -> None:
        if self._reset_due:
            # An end of file that waits behind the last bytes leaves only after this call: no reset may overtake it.
            asyncio.get_running_loop().call_soon(self._reset)
        else:
            super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    # called by the other side

    def write(self, data: bytes) -> bool:
        if not self.is_over:  # a failed transport logs a warning for each write until it reports its failure
            self._transport.write(data)
            if self.is_eof and not self._look_due:
                self._look_due = True
                asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._look)
        return True

    def abort(self) -> None:
        """Reset the application's socket at once. Bytes that the kernel still holds for it are discarded."""
        if self._is_lost or self._is_cut or self.descriptor < 0:
            return
        self._is_cut = True
        reset_when_closed(self._sock)
        self._transport.abort()

    def other_ended(self, other: Side, *, clean: bool) -> None:
        """Close if both directions had ended. Otherwise deliver what has arrived, then reset."""
        if self.is_over:
            return
        if self.is_eof and other.is_eof:
            self.close()
            return
        self._reset_due = True
        self._transport.set_write_buffer_limits(high=0)
        if not self._transport.get_write_buffer_size():
            self._reset()

    # inside

    def _on_unread(self) -> None:
        """Discard what the application wrote. Its answer arrives first; then the end of the far side is a reset."""

    def _settle(self) -> None:
        if not self.ended_reading.done():
            self.ended_reading.set_result(None)

    def _watch(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _look(self) -> None:
        """Abort both sides if the application has closed its socket, so that the far side does not go on sending.

        The kernel is asked, because the event loop does not report this after the end of file.
        """
        self._look_due = False
        if not self._is_lost and self.names() is None:
            self.abort_both()

    def _reset(self) -> None:
        """Reset as soon as the kernel has handed over the earlier bytes, or at once if the application has closed."""
        if self._is_lost or self._is_cut or self.descriptor < 0:
            return
        waiting = fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, b"\0\0\0\0")
        if any(waiting) and self.names() is not None:
            asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._reset)
            return
        self.abort()
