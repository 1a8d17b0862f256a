"""The packet assembler: it splits packets into parts, and joins received parts into packets.

It stands between handlers and senders, which know only packets, and the session, which knows only a stream. It
implements option 1 of the packet-assembler document: the application encodes a body once, into a buffer; a large body
is sent as slices of that buffer. The receiver joins them, on disk if the body is large, before any handler sees it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from tunnel.messages.errors import MalformedFrameError
from tunnel.messages.packets.bodies import FileSource, MemorySource, Source, SpooledBody, SpoolWriter
from tunnel.messages.packets.parts import APPLICATION_TYPE_MIN, SINGLE, Part, encode_part_header

__all__ = ["SPOOL_AHEAD_BYTES", "AssemblerConfig", "AssemblerHost", "Body", "Disassembly", "Packet", "PacketAssembler"]

SPOOL_BYTES = 1024 * 1024  # a larger body goes to disk
SPOOL_AHEAD_BYTES = (
    2 * 1024 * 1024
)  # bytes that may be reported as taken before they are on disk, so that a short pause of the disk stops no sender
INCOMING_MAX = 32  # split messages received at once; each keeps at most SPOOL_BYTES in memory, and parts to be written
BODY_BYTES_MAX = 64 * 1024**3  # of one message
_IGNORED_MAX = 1024  # refused messages whose remaining parts may still arrive

Body: TypeAlias = bytes | SpooledBody


@dataclass(slots=True)
class Packet:
    """A message to send, or one that a handler receives: a body, its target, and where an answer should go.

    The body stays the application's, which must not change it until `send` has returned.
    A packet to send may have a binary file as its `body`. The file is read piece by piece from its start, whatever its
    position.
    """

    body: bytes | bytearray | memoryview | SpooledBody | BinaryIO = b""
    target: int = 0
    type: int = APPLICATION_TYPE_MIN
    response_target: int = 0
    executor_id: int = 0
    message_id: int = 0

    @property
    def data(self) -> bytes:
        """The whole body in memory, read from disk if it is there."""
        if isinstance(self.body, bytes):
            return self.body
        if isinstance(self.body, bytearray | memoryview):
            return bytes(self.body)
        file = self.body.file if isinstance(self.body, SpooledBody) else self.body
        file.seek(0)
        return file.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblerConfig:
    """Limits on the memory and disk space that a peer can make us use."""

    spool_bytes: int = SPOOL_BYTES
    incoming_max: int = INCOMING_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    directory: Path | None = None
    """Where bodies on disk are kept; None for the system's temporary directory."""


class AssemblerHost(Protocol):
    """The owner of an assembler. The assembler calls these methods."""

    def deliver(self, packet: Packet) -> None:
        """Take a complete packet. If its body is on disk, the host must close it."""

    def refuse(self, message_id: int, reason: str) -> None:
        """Tell the sender of this message to send no more of it."""

    def taken(self, size: int) -> None:
        """Note that `size` more bytes of split messages have been taken, in the order of their arrival.

        The last part of a message counts once the message has been delivered or refused.
        """


@dataclass(slots=True)
class _Incoming:
    """A split message that is being received."""

    first: Part
    is_whole: bool = False  # its last part has arrived, and is being written to disk
    next_index: int = 0
    pieces: list[memoryview] = field(default_factory=list)
    size: int = 0
    spool: SpooledBody | None = None


class Disassembly:
    """A packet that is being sent, part by part."""

    def __init__(self, packet: Packet, message_id: int, source: Source) -> None:
        self.message_id = message_id
        self.size = source.size
        self.started = False
        self._source = source
        self._left = source.size
        self._index = 0
        self._header = Part(
            packet.type, packet.response_target, packet.target, packet.executor_id, message_id, SINGLE, True
        )

    def next_part(self, part_bytes: int) -> tuple[bytes, memoryview] | None:
        """Return header and body of the next part; None if its body has not been read from the file yet.

        Raises the error if reading the file failed.
        """
        piece = self._source.take(part_bytes) if self._left else memoryview(b"")
        if piece is None:
            return None
        self._left -= len(piece)
        header = self._header
        header.last = not self._left
        if self.started or self._left:
            # As in the document, every part repeats the packet's header with the next correlation id.
            header.correlation_id = self._index
            self._index += 1
        self.started = True
        return encode_part_header(header, len(piece)), piece

    @property
    def is_split(self) -> bool:
        """Whether the packet takes more than one part; known once the first part has been made."""
        return self._index > 0

    @property
    def is_done(self) -> bool:
        return self.started and not self._left

    def close(self) -> None:
        """Release the body: no further part is sent."""
        self._source.close()


@dataclass(slots=True)
class _Account:
    """A received part of a split message that has not been reported as taken."""

    size: int
    taken: bool = False


class PacketAssembler:
    """Splits and joins the packets of one session, in both directions. Each sender numbers its own messages."""

    def __init__(self, host: AssemblerHost, spool: SpoolWriter, config: AssemblerConfig | None = None) -> None:
        self._host = host
        self._spool = spool
        self._config = config or AssemblerConfig()
        self._sent = 0
        self._incoming: dict[int, _Incoming] = {}
        self._ignored: dict[int, None] = {}
        self._writing_bytes = 0  # handed to the spool, not written yet
        self._accounts: deque[_Account] = deque()  # in the order in which the parts arrived

    @property
    def incoming_count(self) -> int:
        """The number of split messages that are being received."""
        return len(self._incoming)

    def disassemble(self, packet: Packet, ready: Callable[[], None]) -> Disassembly:
        """Begin to send a packet.

        If its body is a file, `ready` is called whenever more of it has been read, so that `next_part` may succeed.
        """
        self._sent += 1
        packet.message_id = self._sent
        body = packet.body
        source: Source
        if isinstance(body, bytes | bytearray | memoryview):
            source = MemorySource(body)
        else:
            source = FileSource(body.file if isinstance(body, SpooledBody) else body, ready)
        return Disassembly(packet, self._sent, source)

    def assemble(self, part: Part) -> None:
        """Take a received part, and deliver the packet if the part completes it.

        Raises MalformedFrameError if the part is not the next one of its message.
        """
        if part.correlation_id == SINGLE:
            self._host.deliver(_packet(part, part.body()))
            return
        account = _Account(part.size)
        self._accounts.append(account)
        message_id = part.message_id
        if message_id in self._ignored:
            if part.last:
                del self._ignored[message_id]
            self._take(account)
            return
        incoming = self._incoming.get(message_id)
        if incoming is None:
            if part.correlation_id:
                raise MalformedFrameError(
                    f"part {part.correlation_id} of message {message_id} came without the parts before it"
                )
            if len(self._incoming) >= self._config.incoming_max:
                self._refuse(part, account, f"more than {self._config.incoming_max} split messages at once: send fewer")
                return
            incoming = self._incoming[message_id] = _Incoming(part)
        elif part.correlation_id != incoming.next_index:
            raise MalformedFrameError(
                f"part {part.correlation_id} of message {message_id} came, but part {incoming.next_index} is next"
            )
        incoming.next_index += 1
        incoming.size += part.size
        if incoming.size > self._config.body_bytes_max:
            self._refuse(part, account, f"the body is over {self._config.body_bytes_max} bytes, the receiver's limit")
            return
        self._keep(incoming, part, account)

    def cancel(self, message_id: int) -> None:
        """Forget what has arrived of a message that its sender has given up."""
        self._ignored.pop(message_id, None)
        self._forget(message_id)

    def close(self) -> None:
        """Discard every incomplete message."""
        for message_id in list(self._incoming):
            self._forget(message_id)

    def _keep(self, incoming: _Incoming, part: Part, account: _Account) -> None:
        incoming.pieces += part.payload
        if incoming.spool is None:
            if incoming.size <= self._config.spool_bytes:
                if part.last:
                    del self._incoming[part.message_id]
                    # Deliver first: if there is no handler, the sender must learn of the refusal before it learns that
                    # the receiver has taken everything.
                    self._host.deliver(_packet(incoming.first, b"".join(incoming.pieces)))
                self._take(account)
                return
            try:
                incoming.spool = SpooledBody(self._config.directory)
            except OSError as error:
                self._refuse(part, account, f"the receiver cannot store the body: {error}")
                return
        pieces, incoming.pieces = incoming.pieces, []
        incoming.is_whole = part.last
        size = sum(map(len, pieces))
        self._writing_bytes += size
        if not part.last and self._writing_bytes <= SPOOL_AHEAD_BYTES:
            self._take(account)

        def written(error: BaseException | None) -> None:
            self._writing_bytes -= size
            self._written(incoming, part, account, error)

        self._spool.write(incoming.spool, pieces, written)

    def _written(self, incoming: _Incoming, part: Part, account: _Account, error: BaseException | None) -> None:
        """Go on after a part was written to disk, or could not be."""
        known = self._incoming.get(part.message_id) is incoming
        if error is not None and known:
            self._refuse(part, account, f"the receiver cannot store the body: {error}", is_whole=incoming.is_whole)
            return
        spool = incoming.spool
        if part.last and known and spool is not None:
            del self._incoming[part.message_id]
            spool.file.seek(0)
            self._host.deliver(_packet(incoming.first, spool))
        self._take(account)

    def _take(self, account: _Account) -> None:
        """Mark a part as taken, and report it once all parts before it are taken.

        The order matters because the sender receives only a running total.
        """
        account.taken = True
        accounts = self._accounts
        size = 0
        while accounts and accounts[0].taken:
            size += accounts.popleft().size
        if size:
            self._host.taken(size)

    def _refuse(self, part: Part, account: _Account, reason: str, *, is_whole: bool = False) -> None:
        self._forget(part.message_id)
        if not (part.last or is_whole):
            if len(self._ignored) >= _IGNORED_MAX:
                raise MalformedFrameError(
                    f"{_IGNORED_MAX} refused messages have neither ended nor been cancelled by the peer"
                )
            self._ignored[part.message_id] = None
        self._host.refuse(part.message_id, reason)
        self._take(account)

    def _forget(self, message_id: int) -> None:
        incoming = self._incoming.pop(message_id, None)
        if incoming is not None and incoming.spool is not None:
            self._spool.discard(incoming.spool)


def _packet(first: Part, body: Body) -> Packet:
    return Packet(body, first.target, first.type, first.response_target, first.executor_id, first.message_id)
