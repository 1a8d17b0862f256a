"""Packets to parts and back: between the connection, which knows packets, and the session, which knows a stream.

This is option 1 of the document: a body is encoded once; when it must be split it is cut from that side buffer, and the
other side puts it together again before any handler sees it, on disk when it is large.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, Protocol, TypeAlias

from tunnel.messages.bodies import FileSource, MemorySource, Source, SpooledBody, SpoolWriter
from tunnel.messages.errors import MalformedFrameError
from tunnel.messages.parts import APPLICATION_TYPE_MIN, SINGLE, Part, encode_part_header

__all__ = ["SPOOL_AHEAD_BYTES", "AssemblerConfig", "AssemblerHost", "Body", "Disassembly", "Packet", "PacketAssembler"]

SPOOL_BYTES = 1024 * 1024  # a larger body goes to disk
SPOOL_AHEAD_BYTES = 2 * 1024 * 1024  # taken before they are written: what a disk pauses for a moment stops nobody
INCOMING_MAX = 32  # split messages at once: times SPOOL_BYTES is what they may hold in memory
BODY_BYTES_MAX = 64 * 1024**3  # of one message
_IGNORED_MAX = 1024  # refused messages whose rest is still on its way

Body: TypeAlias = bytes | SpooledBody


@dataclass(slots=True)
class Packet:
    """What handlers get, and what is sent: a body, whom it is for and where an answer should go.

    To send, `body` may also be a binary file: it is read from its start, whatever its position, without being held.
    """

    body: bytes | bytearray | memoryview | SpooledBody | BinaryIO = b""
    target: int = 0
    type: int = APPLICATION_TYPE_MIN
    response_target: int = 0
    executor_id: int = 0
    message_id: int = 0

    @property
    def data(self) -> bytes:
        """The body in memory; of a large one that is on disk, all of it."""
        if isinstance(self.body, bytes):
            return self.body
        if isinstance(self.body, bytearray | memoryview):
            return bytes(self.body)
        file = self.body.file if isinstance(self.body, SpooledBody) else self.body
        file.seek(0)
        return file.read()


@dataclass(frozen=True, slots=True, kw_only=True)
class AssemblerConfig:
    """Bounds of what a peer may make us hold."""

    spool_bytes: int = SPOOL_BYTES
    incoming_max: int = INCOMING_MAX
    body_bytes_max: int = BODY_BYTES_MAX
    directory: Path | None = None
    """Of bodies on disk; None for the system's temporary one."""


class AssemblerHost(Protocol):
    """Whom the assembler tells."""

    def deliver(self, packet: Packet) -> None:
        """A packet is whole. Its body, if on disk, is yours to close."""

    def refuse(self, message_id: int, reason: str) -> None:
        """No more of this message is wanted: tell its sender."""

    def taken(self, size: int) -> None:
        """So many bytes more of split messages need no room here, in the order in which they came. The last part of a
        message counts when the message was delivered or refused."""


@dataclass(slots=True)
class _Incoming:
    """A message of which parts are missing."""

    first: Part
    is_whole: bool = False  # its last part has come, and is being written
    next_index: int = 0
    pieces: list[memoryview] = field(default_factory=list)
    size: int = 0
    spool: SpooledBody | None = None


class Disassembly:
    """One packet on its way out, part by part."""

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
        """Header and body of the next part, None if it is not there yet. Raises what reading the body raised."""
        piece = self._source.take(part_bytes) if self._left else memoryview(b"")
        if piece is None:
            return None
        self._left -= len(piece)
        header = self._header
        header.last = not self._left
        if self.started or self._left:
            # The same packet each time, with the next correlation id, as the document has it.
            header.correlation_id = self._index
            self._index += 1
        self.started = True
        return encode_part_header(header, len(piece)), piece

    @property
    def is_split(self) -> bool:
        """Whether it takes more than one part."""
        return self._index > 0

    @property
    def is_done(self) -> bool:
        return self.started and not self._left

    def close(self) -> None:
        """Nothing more of it is sent."""
        self._source.close()


@dataclass(slots=True)
class _Account:
    """A part of a split message that was not told as taken yet."""

    size: int
    taken: bool = False


class PacketAssembler:
    """Both directions of one session. Message ids are counted per direction, by the sender."""

    def __init__(self, host: AssemblerHost, spool: SpoolWriter, config: AssemblerConfig | None = None) -> None:
        self._host = host
        self._spool = spool
        self._config = config or AssemblerConfig()
        self._sent = 0
        self._incoming: dict[int, _Incoming] = {}
        self._ignored: dict[int, None] = {}
        self._writing_bytes = 0  # handed to the spool and not written
        self._accounts: deque[_Account] = deque()  # of parts, as they came

    @property
    def incoming_count(self) -> int:
        """Messages of which parts are missing."""
        return len(self._incoming)

    def disassemble(self, packet: Packet, ready: Callable[[], None]) -> Disassembly:
        """Begin to send a packet. `ready` is called when a part of a file can be taken that could not before."""
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
        """Take a part; the host hears when it completes a packet. MalformedFrameError when it fits nothing."""
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
                raise MalformedFrameError(f"part {part.correlation_id} of message {message_id} without those before")
            if len(self._incoming) >= self._config.incoming_max:
                self._refuse(part, account, f"more than {self._config.incoming_max} split messages at once")
                return
            incoming = self._incoming[message_id] = _Incoming(part)
        elif part.correlation_id != incoming.next_index:
            raise MalformedFrameError(
                f"part {part.correlation_id} of message {message_id} instead of {incoming.next_index}"
            )
        incoming.next_index += 1
        incoming.size += part.size
        if incoming.size > self._config.body_bytes_max:
            self._refuse(part, account, f"a body over {self._config.body_bytes_max} bytes")
            return
        self._keep(incoming, part, account)

    def cancel(self, message_id: int) -> None:
        """Its sender gives it up: what came of it is forgotten."""
        self._ignored.pop(message_id, None)
        self._forget(message_id)

    def close(self) -> None:
        """Nothing of what is not whole is left behind."""
        for message_id in list(self._incoming):
            self._forget(message_id)

    def _keep(self, incoming: _Incoming, part: Part, account: _Account) -> None:
        incoming.pieces += part.payload
        if incoming.spool is None:
            if incoming.size <= self._config.spool_bytes:
                if part.last:
                    del self._incoming[part.message_id]
                    # Told in this order: if nobody wants it, the sender hears that before it hears that all was taken.
                    self._host.deliver(_packet(incoming.first, b"".join(incoming.pieces)))
                self._take(account)
                return
            try:
                incoming.spool = SpooledBody(self._config.directory)
            except OSError as error:
                self._refuse(part, account, f"no room for the body: {error}")
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
        """A part is on disk, or will never be."""
        known = self._incoming.get(part.message_id) is incoming
        if error is not None and known:
            self._refuse(part, account, f"no room for the body: {error}", is_whole=incoming.is_whole)
            return
        spool = incoming.spool
        if part.last and known and spool is not None:
            del self._incoming[part.message_id]
            spool.file.seek(0)
            self._host.deliver(_packet(incoming.first, spool))
        self._take(account)

    def _take(self, account: _Account) -> None:
        """It needs no more room: told when those before it do not either, since the sender adds up."""
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
                raise MalformedFrameError("a sender that goes on with messages that are refused")
            self._ignored[part.message_id] = None
        self._host.refuse(part.message_id, reason)
        self._take(account)

    def _forget(self, message_id: int) -> None:
        incoming = self._incoming.pop(message_id, None)
        if incoming is not None and incoming.spool is not None:
            self._spool.discard(incoming.spool)


def _packet(first: Part, body: Body) -> Packet:
    return Packet(body, first.target, first.type, first.response_target, first.executor_id, first.message_id)
