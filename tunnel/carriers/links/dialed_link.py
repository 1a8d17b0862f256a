"""The endpoint's half of a link: it sends the attachment's identity, then passes all input to its owner."""

import asyncio
import socket
from collections.abc import Callable, Iterable
from typing import Protocol

from tunnel.carriers.halves.link_protocol import LINK_LANE, SHARES, LinkProtocol
from tunnel.exchange import LinkInput
from tunnel.wire import PACKET_SIZE_MAX, Answer, Buffer, Exchange, Status, encode_envelope

__all__ = ["DialedLink", "LinkOwner", "hello"]

_HELLO_BYTES_MAX = 64 * 1024
_DEAD_PATH = {"TCP_USER_TIMEOUT": 15_000}  # ms; TCP gives the path up after this long without an acknowledgement


class LinkOwner(Protocol):
    """The object that uses a link and handles its events. `link_lost` is the last call."""

    def link_open(self, link: "DialedLink") -> None: ...

    def link_input(self, link: "DialedLink", found: LinkInput) -> None: ...

    def link_writable(self, link: "DialedLink") -> None: ...

    def link_lost(self, link: "DialedLink", reason: str) -> None: ...


def hello(attachment_id: bytes, epoch: int, generation: int, *, shares: bool = False) -> bytes:
    """Return the first bytes of a link, which name its attachment. `shares`: the link is to share the load (8.7)."""
    exchange = Exchange(attachment_id, epoch, generation, LINK_LANE, 0, SHARES if shares else 0, 0, 0)
    return b"".join(encode_envelope(exchange))


class DialedLink(LinkProtocol):
    """The endpoint's half of a link. `closed` is called once, with the error that ended the connection, or None."""

    def __init__(
        self,
        owner: LinkOwner,
        now: Callable[[], int],
        closed: Callable[[Exception | None], None],
    ) -> None:
        super().__init__(now, PACKET_SIZE_MAX, _HELLO_BYTES_MAX)
        self.owner = owner
        self.shares = False  # the relay lets this link share the load with others (8.7)
        self._closed = closed

    def sockets(self) -> Iterable[socket.socket]:
        """Return the socket of the connection, if it is known. Call this only after `begin`."""
        found: socket.socket | None = self._transport.get_extra_info("socket")
        return () if found is None else (found,)

    def begin(self, transport: asyncio.Transport, greeting: bytes, early: bytes) -> None:
        """Take the connection over and send `greeting`, the first message. `early`: bytes already read from it."""
        self.take_over(transport, _DEAD_PATH)
        transport.write(greeting)
        if early:
            self.take(early)

    @property
    def is_writable(self) -> bool:
        """Whether a batch may be sent now."""
        return self.is_open and not self.is_paused

    def send(self, packets: list[Buffer], token: int) -> None:
        """Send a batch; its receipt will name the token."""
        self.write(self.state.send(packets, token))

    def handle_timeout(self, now: int) -> None:
        """Write a receipt without a batch, if one is due."""
        if self.is_open:
            self.write(self.state.handle_timeout(now))

    def leave(self) -> None:
        """Ask the relay for no further batches, because this link is replaced (8.7)."""
        if self.is_open:
            self.write(self.state.leave())

    def abort(self) -> None:
        """Close the connection at once, unless it is lost; `link_lost` follows."""
        if not self.is_over:  # asyncio's transport cannot be aborted once it is lost while closing with bytes to write
            self._transport.abort()

    # LinkProtocol

    def opened_by(self, message: object) -> bool:
        if isinstance(message, Answer) and message.lane == LINK_LANE:
            self.is_open = True
            self.shares = message.serial == SHARES
            self.state.on_opened(self._now())
            self.owner.link_open(self)
            return True
        if isinstance(message, Status):
            self._refuse(message.text or f"the relay refused the link with code {message.code}, and gave no reason")
        else:
            self._refuse("not a relay's answer to a link")
        return False

    def on_input(self, found: LinkInput) -> None:
        self.owner.link_input(self, found)
        if self.state.closed:
            self._refuse(self.state.closed)

    def writable(self) -> None:
        self.owner.link_writable(self)

    def on_refused(self) -> None:
        self._refuse("not a relay's answer to a link")

    def connection_lost(self, exc: Exception | None) -> None:
        self.state.connection_lost()
        self._closed(exc)
        self._end(self.state.closed or (str(exc) if exc is not None else "the connection was closed"))

    def _refuse(self, reason: str) -> None:
        self.abort()
        self._end(reason)

    def _end(self, reason: str) -> None:
        if not self.is_over:
            self.is_over = True
            self.is_open = False
            self.owner.link_lost(self, reason)
