"""Splicing: joins a TCP connection and a connection through the tunnel. Exits, forwards and services use it.

    near = SocketSide(made)                                       # the protocol of a TCP connection
    _, far = await attachment.create_connection(TunnelSide, ...)  # the protocol of a tunnel connection
    splice(near, far)

Reading starts with `splice`. Data that comes earlier is kept and passed on then (uvloop may deliver one read although
reading is paused). Data from one side is written to the other as it arrives. A full buffer of one side pauses reading
on the other. An end of file is passed on and leaves the other direction open. Anything else that ends one side also
ends the other: cleanly after a clean end, otherwise with a reset, so that a cut never looks like an end.
"""

import asyncio
import socket
from collections.abc import Callable
from typing import TypeAlias, cast

from tunnel.core import ConnectionStats
from tunnel.streams.rate_limit import RateLimit
from tunnel.streams.transport import Transport
from tunnel.streams.transport_state import ByteStream
from tunnel.system.linger import deliver_when_closed, reset_when_closed
from tunnel.wire import AbortReason

__all__ = ["Ended", "Side", "SocketSide", "TunnelSide", "splice"]


Made: TypeAlias = Callable[["Side"], None]
Ended: TypeAlias = Callable[["Side", Exception | None], None]


class Side(asyncio.Protocol):
    """One side of a pair of spliced connections.

    `made` is called when the connection exists, `ended` when it has ended, with the error or None.
    """

    def __init__(self, made: Made | None = None, ended: Ended | None = None) -> None:
        self._transport: asyncio.Transport
        self._other: Side | None = None
        self._made = made
        self._ended = ended
        self._early: list[bytes] = []  # uvloop reads once although connection_made pauses reading
        self.is_eof = False
        self.is_full = False  # the transport takes no more bytes at present
        self._is_cut = False
        self._is_lost = False

    # the pair

    def meet(self, other: "Side") -> None:
        """Pass everything on to `other` from now on. `splice` calls this on both sides."""
        self._other = other

    @property
    def is_over(self) -> bool:
        """Whether the connection has ended or is closing."""
        return self._is_lost or self._transport.is_closing()

    def catch_up(self) -> None:
        """Pass on the data and the end of file that arrived before there was another side."""
        early, self._early = self._early, []
        for data in early:
            self.data_received(data)
        if self.is_eof and self._other is not None:
            self._pass_end_on(self._other)

    def abort(self) -> None:
        """End this side at once with a reset. The other side follows."""
        if not self._is_lost and not self._is_cut:
            self._is_cut = True
            self._transport.abort()

    def abort_both(self) -> None:
        """End both sides at once with a reset."""
        self.abort()
        if self._other is not None:
            self._other.abort()

    # called by the other side

    def write(self, data: bytes) -> bool:
        """Write data. Return False when the peer will never read it."""
        if not (self._is_lost or self._transport.is_closing()):  # `is_over`, without a call
            self._transport.write(data)
        return not self._is_junked()

    def end_writing(self) -> None:
        """Pass an end of file on; reading continues."""
        if not self.is_over:
            try:
                self._transport.write_eof()
            except OSError:  # a reset came just before
                return  # connection_lost follows

    def close(self) -> None:
        """Read nothing more; end this side when the written bytes have been sent."""
        if not self.is_over:
            self._transport.close()

    def other_ended(self, other: "Side", *, clean: bool) -> None:
        """End this side, because the other side has ended. After a clean end, close this side too: the peer of the
        other side has closed, so it reads nothing more."""
        if clean:
            self.close()
        else:
            self.abort()

    def pause_reading(self) -> None:
        """Stop reading until `resume_reading`."""
        if not self.is_over:
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading, unless this side is over."""
        if not self.is_over:
            self._transport.resume_reading()

    # called by the transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.pause_reading()  # stays paused until there is another side to write to
        if self._made is not None:
            self._made(self)

    def data_received(self, data: bytes) -> None:
        if self._other is None:
            self._early.append(data)
            self.pause_reading()
        elif not self._other.write(data):
            self._on_unread()

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
        self.is_full = True
        if self._other is not None:
            self._other.pause_reading()

    def resume_writing(self) -> None:
        self.is_full = False
        if self._other is not None:
            self._other.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_lost = True
        other, self._other = self._other, None
        if other is not None:
            other.other_ended(self, clean=exc is None and self.is_eof and not self._is_cut)
        if self._ended is not None:
            self._ended(self, exc)

    def _on_unread(self) -> None:
        """The peer of the other side will never read what this side wrote. The writer gets a reset, as from TCP."""
        self.abort_both()

    def _is_junked(self) -> bool:
        """Whether bytes were written to this side that the peer will never read."""
        return False


class SocketSide(Side):
    """The side that is a TCP connection, or a connection to or from a Unix socket.

    Unless it is closed cleanly, its peer sees a reset. This also holds when the process is killed: the kernel then
    closes the socket, and without SO_LINGER the peer would see an end of stream. The peer of a Unix socket sees an end
    of stream in any case, because these sockets have no reset. Event loops set TCP_NODELAY themselves.
    """

    _is_tcp = True

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sock = transport.get_extra_info("socket")
        self._is_tcp = sock.family != socket.AF_UNIX
        if not self._is_tcp:
            super().connection_made(transport)
            return
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        reset_when_closed(sock)
        super().connection_made(transport)

    @property
    def source(self) -> str:
        """The address of the peer, without its port; empty if the peer came through a Unix socket."""
        return str(self._transport.get_extra_info("peername")[0]) if self._is_tcp else ""

    def close(self) -> None:
        if not self.is_over and self._is_tcp:
            deliver_when_closed(self._transport.get_extra_info("socket"))
        super().close()

    def abort(self) -> None:
        if not self._is_lost and not self._is_cut and self._is_tcp:
            reset_when_closed(self._transport.get_extra_info("socket"))
        super().abort()


class TunnelSide(Side):
    """The side that is a connection through the tunnel."""

    @property
    def user(self) -> str:
        """The user who opened the connection to us, as the relay named it; empty if we opened it."""
        return str(self._transport.get_extra_info("tunnel_user"))

    def stats(self) -> ConnectionStats:
        """Return the statistics of the connection, also after its end."""
        connection: ByteStream = self._transport.get_extra_info("tunnel_connection")
        return connection.snapshot()

    def limit_rate(self, limit: RateLimit | None) -> None:
        """Let the connection share this limit, in place of the previous one; None: no limit."""
        cast(Transport, self._transport).limit_rate(limit)

    def deny(self, text: str) -> None:
        """End both sides at once; the peer gets an error that says that the rules no longer allow the connection."""
        if not self.is_over:
            cast(Transport, self._transport).abort(AbortReason.DENIED, text)
        self.abort_both()

    def _is_junked(self) -> bool:
        return getattr(self._transport, "write_error", None) is not None


def splice(first: Side, second: Side) -> None:
    """Join two sides, both of which have their connections. If one has already ended, reset the other."""
    first.meet(second)
    second.meet(first)
    if first.is_over or second.is_over:
        first.abort_both()
        return
    for side in (first, second):
        side.catch_up()
    for side, other in ((first, second), (second, first)):
        if not other.is_full:  # early data may have filled it; it resumes reading when it takes more
            side.resume_reading()
