"""The pump behind a TunnelSocket: what comes from the loopback socket goes into the tunnel, and back.

A full buffer on one side stops the reading on the other one. An end of file is passed on alone. What ends one side
otherwise ends the other as a reset: a cut must not look like an end.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import socket
import struct
import termios
from collections.abc import Callable
from contextlib import suppress
from typing import cast

from tunnel_client.borrowed.pair import name_of

__all__ = ["Far", "Near"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
_OUTGOING_CHECK_S = 0.02  # between two looks whether the kernel has handed everything over
# The application may have closed its socket for good, which looks like half-close until something is sent to it.
_KEEPALIVE = (("TCP_KEEPIDLE", 30), ("TCP_KEEPINTVL", 15), ("TCP_KEEPCNT", 4))


class Far(asyncio.Protocol):
    """The connection through the tunnel. Nothing is read from it until a Near has joined it."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport
        self.near: Near | None = None
        self.is_eof = False
        self.is_over = False
        self.error: Exception | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.pause_reading()

    def data_received(self, data: bytes) -> None:
        if self.near is not None:
            self.near.write(data)

    def eof_received(self) -> bool:
        self.is_eof = True
        if self.near is not None:
            self.near.far_ended()
        return True

    def pause_writing(self) -> None:
        if self.near is not None:
            self.near.pause_reading()

    def resume_writing(self) -> None:
        if self.near is not None:
            self.near.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self.error = exc
        if self.near is not None:
            self.near.far_lost()

    def resume_reading(self) -> None:
        """Read on, if there is anything to read."""
        if not self.is_over and not self.transport.is_closing():
            self.transport.resume_reading()

    def pause_reading(self) -> None:
        if not self.is_over and not self.transport.is_closing():
            self.transport.pause_reading()

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def abort(self) -> None:
        """End it at once; the peer gets an error."""
        if not self.is_over:
            self.transport.abort()


class Near(asyncio.Protocol):
    """Our side of the loopback pair. `skip`: so many bytes come first that only kept the other side from writing."""

    def __init__(self, far: Far, sock: socket.socket, skip: int, ended: Callable[[Near], None]) -> None:
        self.far = far
        self.is_eof = False
        self.is_over = False
        self.ended_reading = asyncio.get_running_loop().create_future()  # everything the application wrote is here
        self._sock = sock
        self._skip = skip
        self._ended = ended
        self._transport: asyncio.Transport
        self._reset_due = self._look_due = False
        far.near = self

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

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.far.is_over:
            self.far_lost()
            return
        if self.far.is_eof:
            self.far_ended()
        self.far.resume_reading()

    def data_received(self, data: bytes) -> None:
        if self._skip:
            skipped = min(self._skip, len(data))
            self._skip -= skipped
            data = data[skipped:]
        far = self.far
        if not data or far.is_over:
            return
        far.write(data)
        if getattr(far.transport, "write_error", None) is not None:
            # Nobody will read it: the application learns it as from TCP.
            far.abort()
            self._reset()

    def eof_received(self) -> bool:
        self.is_eof = True
        self._settle()
        far = self.far
        if far.is_over:
            return False
        if far.is_eof:
            self._end_both()
        else:
            far.transport.write_eof()
            self._watch()
        return True

    def pause_writing(self) -> None:
        self.far.pause_reading()

    def resume_writing(self) -> None:
        if self._reset_due:
            self._reset()
        else:
            self.far.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_over = True
        self._settle()
        if not (self.is_eof and self.far.is_eof):
            self.far.abort()
        self._ended(self)

    # for the far side

    def write(self, data: bytes) -> None:
        if self.is_over or self._transport.is_closing():
            return  # a transport that has failed would complain of each write until it tells
        self._transport.write(data)
        if self.is_eof and not self._look_due:
            self._look_due = True
            asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._look)

    def pause_reading(self) -> None:
        if not self.is_over and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        if not self.is_over and not self._transport.is_closing():
            self._transport.resume_reading()

    def far_ended(self) -> None:
        """The peer has written everything."""
        if self.is_over or self._transport.is_closing():
            return
        if self.is_eof:
            self._end_both()
        else:
            with suppress(OSError):  # it was reset; that is told in a moment
                self._transport.write_eof()

    def far_lost(self) -> None:
        """Unless both directions had ended, the application gets what came, and then a reset."""
        if self.is_over:
            return
        if self.is_eof and self.far.is_eof:
            self._transport.close()
            return
        self._reset_due = True
        self._transport.set_write_buffer_limits(high=0)
        if not self._transport.get_write_buffer_size():
            self._reset()

    def abort_both(self) -> None:
        """Both sides at once, with errors."""
        self.far.abort()
        self._reset()

    # inside

    def _end_both(self) -> None:
        self.far.transport.close()
        self._transport.close()

    def _settle(self) -> None:
        if not self.ended_reading.done():
            self.ended_reading.set_result(None)

    def _watch(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in _KEEPALIVE:
            if hasattr(socket, name):
                self._sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)

    def _look(self) -> None:
        """After the end of what it reads a loop is not told that the application has closed: ask the kernel, or the far
        side would never learn that nobody hears it."""
        self._look_due = False
        if not self.is_over and self.names() is None:
            self.abort_both()

    def _reset(self) -> None:
        if self.is_over or self.descriptor < 0:
            return
        waiting = fcntl.ioctl(self.descriptor, termios.TIOCOUTQ, b"\0\0\0\0")
        if self._reset_due and any(waiting) and self.names() is not None:
            # A reset throws away what the kernel has not handed over; once the other side is gone, it never will.
            asyncio.get_running_loop().call_later(_OUTGOING_CHECK_S, self._reset)
            return
        self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self._transport.abort()
