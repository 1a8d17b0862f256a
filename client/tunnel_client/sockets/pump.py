"""The two sides behind a TunnelSocket: our end of a loopback pair, and a connection through the tunnel.

They differ from other spliced sides, since an application must see what TCP would show it. The first bytes may have
been put there only to keep the application from writing. A reset waits until the kernel has handed over what came
before it. Once the application has ended its own direction, the kernel is asked whether the application is still there,
for the loop is not told. And the answer of a peer that closed early arrives, although what was written to it is lost.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios

from tunnel.splice import Ended, Side, TunnelSide
from tunnel_client.borrowed.pair import name_of

__all__ = ["FarSide", "NearSide"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
_OUTGOING_CHECK_S = 0.02  # between two looks whether the kernel has handed everything over
# The application may have closed its socket for good, which looks like half-close until something is sent to it.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class FarSide(TunnelSide):
    """The connection through the tunnel, behind a socket."""

    def eof_received(self) -> bool:
        """The peer's end is passed on, also when it has closed with bytes of ours unread: the application reads the
        answer first, and learns of the loss when it writes."""
        self.is_eof = True
        if self._other is not None:
            self._pass_end_on(self._other)
        return True

    def other_ended(self, other: Side, *, clean: bool) -> None:
        """When both directions had ended, this side is closing, and may still be delivering."""
        if not (self.is_eof and other.is_eof):
            self.abort()


class NearSide(Side):
    """`skip`: the number of bytes that come first and are thrown away."""

    def __init__(self, sock: socket.socket, skip: int, ended: Ended) -> None:
        super().__init__(ended=ended)
        self.ended_reading = asyncio.get_running_loop().create_future()  # everything the application wrote is here
        self._sock = sock
        self._skip = skip
        self._reset_due = self._look_due = False

    @property
    def descriptor(self) -> int:
        """Of the loopback socket."""
        return self._sock.fileno()

    def names(self) -> tuple[str, str] | None:
        """Those of the application's side: its own, its peer's. None once it is gone: the loop may not yet know."""
        try:
            return name_of(self._sock.getpeername()), name_of(self._sock.getsockname())
        except OSError:
            return None

    def leave(self) -> None:
        """In a forked child: give the descriptor up, without a word to the loop that is the parent's."""
        descriptor = self._sock.detach()
        if descriptor >= 0:
            os.close(descriptor)

    # what the transport tells

    def data_received(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        if data and not self._reset_due:  # else the far side is lost: the reset that is due will tell
            super().data_received(data)

    def eof_received(self) -> bool:
        self._settle()
        super().eof_received()
        if not self.is_over:
            self._watch()
        return True

    def resume_writing(self) -> None:
        if self._reset_due:
            self._reset()
        else:
            super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        self._settle()
        super().connection_lost(exc)

    # what the other side asks for

    def write(self, data: bytes) -> bool:
        if not self.is_over:  # a transport that has failed would complain of each write until it tells
            self._transport.write(data)
            if self.is_eof and not self._look_due:
                self._look_due = True
                asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._look)
        return True

    def abort(self) -> None:
        """A reset at once: what the kernel still has for the application is thrown away."""
        if self._is_lost or self._is_cut or self.descriptor < 0:
            return
        self._is_cut = True
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()

    def other_ended(self, other: Side, *, clean: bool) -> None:
        """Unless both directions had ended, the application gets what came, and then a reset."""
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

    def _settle(self) -> None:
        if not self.ended_reading.done():
            self.ended_reading.set_result(None)

    def _watch(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _look(self) -> None:
        """After the end of file the event loop does not report that the application has closed: ask the kernel, or the
        far side would go on sending."""
        self._look_due = False
        if not self._is_lost and self.names() is None:
            self.abort_both()

    def _reset(self) -> None:
        """A reset, as soon as the kernel has handed over what came before it; once the application is gone, it never
        will."""
        if self._is_lost or self._is_cut or self.descriptor < 0:
            return
        waiting = fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, b"\0\0\0\0")
        if any(waiting) and self.names() is not None:
            asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._reset)
            return
        self.abort()
