"""Two connections become one: a socket and a connection through the tunnel. What exits, forwards and services do.

    near = SocketSide(made)                                       # the protocol of a TCP connection
    _, far = await attachment.create_connection(TunnelSide, ...)  # the one of a connection through the tunnel
    splice(near, far)

Neither side is read from before `splice`. What comes from one is written to the other, as it comes; a full buffer stops
the reading on the other side; an end of file is passed on alone; anything else that ends one side ends the other as
well, as a reset unless it was clean: a cut never looks like an end.
"""

import asyncio
import socket
import struct
from collections.abc import Callable
from contextlib import suppress
from typing import TypeAlias, cast

from tunnel.core import Connection, ConnectionStats

__all__ = ["Ended", "Side", "SocketSide", "TunnelSide", "splice"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset

Made: TypeAlias = Callable[["Side"], None]
Ended: TypeAlias = Callable[["Side", Exception | None], None]


class Side(asyncio.Protocol):
    """One end of a pair. `made` is told when its connection is there, `ended` when it has ended, with the error or
    None."""

    def __init__(self, made: Made | None = None, ended: Ended | None = None) -> None:
        self._transport: asyncio.Transport
        self._other: Side | None = None
        self._made = made
        self._ended = ended
        self._early: list[bytes] = []  # uvloop reads once before it heeds a pause that was asked for at the beginning
        self.is_eof = False
        self._is_cut = False
        self._is_lost = False

    # the pair

    def meet(self, other: "Side") -> None:
        """From now on what happens here happens there. `splice` calls it for both."""
        self._other = other

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or is about to."""
        return self._is_lost or self._transport.is_closing()

    def catch_up(self) -> None:
        """What came before there was another side."""
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        if self.is_eof and self._other is not None:
            self._pass_end_on(self._other)

    def abort(self) -> None:
        """End this side at once, with a reset. The other one follows."""
        if not self._is_lost and not self._is_cut:
            self._is_cut = True
            self._transport.abort()

    def abort_both(self) -> None:
        """End both sides at once, with a reset."""
        self.abort()
        if self._other is not None:
            self._other.abort()

    # what the other side asks for

    def write(self, data: bytes) -> bool:
        """False: nobody will read it any more."""
        if not self.is_over:
            self._transport.write(data)
        return not self._is_junked()

    def end_writing(self) -> None:
        """Nothing more will be written."""
        if not self.is_over:
            with suppress(OSError):  # it was reset a moment ago: that is told next
                self._transport.write_eof()

    def close(self) -> None:
        """Let what was written arrive; nothing more comes."""
        if not self.is_over:
            self._transport.close()

    def other_ended(self, other: "Side", *, clean: bool) -> None:
        """The connection of the other side is no more. A peer that has closed reads no more either, so a clean end is
        that of the pair."""
        if clean:
            self.close()
        else:
            self.abort()

    def pause_reading(self) -> None:
        """Let it wait."""
        if not self.is_over:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Read on, if there is anything to read."""
        if not self.is_over:
            self._transport.resume_reading()

    # what the transport tells

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()  # until there is somebody to write to
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
            self.pause_reading()
        elif not self._other.write(data):
            self.abort_both()  # whoever writes learns it as from TCP

    def eof_received(self) -> bool:
        self.is_eof = True
        if self._is_junked():
            self.abort_both()
        elif self._other is not None:
            self._pass_end_on(self._other)
        return True

    def _pass_end_on(self, other: "Side") -> None:
        if other.is_eof:
            other.close()
            self.close()
        else:
            other.end_writing()

    def pause_writing(self) -> None:
        if self._other is not None:
            self._other.pause_reading()

    def resume_writing(self) -> None:
        if self._other is not None:
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        other, self._other = self._other, None
        if other is not None:
            other.other_ended(self, clean=exc is None and self.is_eof and not self._is_cut)
        if self._ended is not None:
            self._ended(self, exc)

    def _is_junked(self) -> bool:
        """Whether bytes were written here that the peer has not read and never will."""
        return False


class SocketSide(Side):
    """A TCP connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        super().connection_made(transport)

    def abort(self) -> None:
        if not self._is_lost and not self._is_cut:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        super().abort()


class TunnelSide(Side):
    """A connection through the tunnel."""

    def stats(self) -> ConnectionStats:
        """How it fares, or fared."""
        connection: Connection = self._transport.get_extra_info("tunnel_connection")
        return connection.snapshot()

    def _is_junked(self) -> bool:
        return getattr(self._transport, "write_error", None) is not None


def splice(first: Side, second: Side) -> None:
    """Make one of two, both of which have their connections. Harmless when one has ended: the other is reset."""
    first.meet(second)
    second.meet(first)
    if first.is_over or second.is_over:
        first.abort_both()
        return
    for side in (first, second):
        side.catch_up()
    for side in (first, second):
        side.resume_reading()
