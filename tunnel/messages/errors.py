"""The errors of the message layer, and the meaning of each.

MessageError
├── MessageTooLargeError        the caller's message is over a limit; nothing was written
├── CorruptMessageError         the bytes are not valid messages; `offset` says where
│   ├── MessageSizeError          the length is impossible
│   ├── UnknownVersionError       the magic byte is that of another version
│   ├── UnknownCodecError         the codec is unknown here, or its library is missing
│   ├── ChecksumError             the payload is not the one that was written
│   └── DecompressError           the payload does not decompress, or to more than is allowed
├── MalformedFrameError         the peer does not speak this protocol: the connection is unusable
├── MessageCancelledError       the receiver refused the message; the text says why
├── ChannelClosedError          the underlying connection has ended
├── ProducerClosedError         the producer was closed, and accepts no more values
├── RemoteCallError             the peer's handler failed, or there is none; `code` says which
│   └── DiscardedError            the topic is full, and its policy discarded the messages of this send
├── LogError                    the log cannot be used: the text says what failed, and where
│   └── OffsetOutOfRangeError     the offset is no longer, or not yet, in the log
└── OutboxError                 an outbox cannot continue: the operator must decide
    └── FencedError               a newer process sends from the same outbox
"""

import errno

from tunnel.errors import SocketError, TunnelError
from tunnel.ground.exit_codes import INTEGRITY, LOST

__all__ = [
    "ChannelClosedError",
    "ChecksumError",
    "CorruptMessageError",
    "DecompressError",
    "DiscardedError",
    "FencedError",
    "LogError",
    "MalformedFrameError",
    "MessageCancelledError",
    "MessageError",
    "MessageSizeError",
    "MessageTooLargeError",
    "OffsetOutOfRangeError",
    "OutboxError",
    "ProducerClosedError",
    "RemoteCallError",
    "UnknownCodecError",
    "UnknownVersionError",
]


class MessageError(TunnelError):
    """Base of all errors of `tunnel.messages`."""


class MessageTooLargeError(MessageError, ValueError):
    """The message is over a limit of this side. Nothing of it was written."""


class CorruptMessageError(MessageError):
    """The bytes read are not valid messages. `offset` is the position of the bad message in its set."""

    exit_code = INTEGRITY

    def __init__(self, text: str, offset: int = 0) -> None:
        super().__init__(f"{text} (at {offset})")
        self.offset = offset


class MessageSizeError(CorruptMessageError):
    """The length is smaller than the fixed fields, or larger than the maximum."""


class UnknownVersionError(CorruptMessageError):
    """The message was written in a version that this program cannot read."""


class UnknownCodecError(CorruptMessageError):
    """The payload was compressed with a codec that is not available here."""


class ChecksumError(CorruptMessageError):
    """The CRC-32 of the payload does not match."""


class DecompressError(CorruptMessageError):
    """The compressed data is damaged, too large when decompressed, or nested too deeply."""


class MalformedFrameError(MessageError, SocketError, ConnectionError):
    """The peer broke the framing. No later byte of the connection can be trusted."""

    exit_code = INTEGRITY


class MessageCancelledError(MessageError):
    """The receiver refused a message, for the reason in the text. The connection stays usable."""


class ChannelClosedError(MessageError, SocketError, ConnectionError):
    """The connection has ended. A pending request may or may not have taken effect."""

    exit_code = LOST
    number = errno.ECONNRESET


class ProducerClosedError(MessageError):
    """The producer was closed, and accepts no more values."""


class RemoteCallError(MessageError):
    """The peer answered with an error; `code` is its error code, `fields` are those of the answer."""

    def __init__(self, code: int, text: str, fields: dict[str, str] | None = None) -> None:
        super().__init__(text or f"the peer answered with code {code} and no explanation")
        self.code = code
        self.fields = fields or {}


class DiscardedError(RemoteCallError):
    """A topic in memory is full, and by its policy the broker has discarded a set of this send instead of others.

    `offsets` has an entry for each set of the send: the offset of its first message, or None if it was discarded.
    """

    def __init__(self, code: int, text: str, offsets: list[int | None]) -> None:
        super().__init__(code, text)
        self.offsets = offsets


class LogError(MessageError):
    """A log cannot be used. The text says which file is affected and what to do."""


class OffsetOutOfRangeError(LogError):
    """The log does not have the offset; it has the offsets from `first` on, up to but not including `end`."""

    def __init__(self, offset: int, first: int, end: int) -> None:
        super().__init__(f"offset {offset} is not in the log, which has {first} to {end}")
        self.offset = offset
        self.first = first
        self.end = end


class OutboxError(MessageError):
    """Delivery cannot continue: the outbox's log failed, or outbox and receiver disagree about what was delivered."""


class FencedError(OutboxError):
    """A newer process sends from this outbox. This one must stop."""
