"""What can go wrong with messages, and whose fault it is.

MessageError
├── MessageTooLargeError        the caller's message is over a limit; nothing was written
├── CorruptMessageError         bytes that are no messages of ours; `offset` says where
│   ├── MessageSizeError          a length that cannot be
│   ├── UnknownVersionError       a magic byte of another version
│   ├── UnknownCodecError         a codec that nobody here knows, or whose library is missing
│   ├── ChecksumError             the payload is not the one that was written
│   └── DecompressError           it does not decompress, or to more than allowed
├── MalformedFrameError         a peer that does not speak this protocol: its connection is of no more use
├── MessageCancelledError       the other side wants no more of this message; the text says why
├── ChannelClosedError          the connection under it is gone
├── ProducerClosedError         `close` was called before
├── RemoteCallError             the far handler failed, or there is none; `code` says which
├── LogError                    a log that cannot go on: what failed, and where
│   └── OffsetOutOfRangeError     no longer, or not yet, in the log
└── OutboxError                 an outbox or inbox that cannot go on without a person
    └── FencedError               a newer process sends from the same outbox
"""

from tunnel.errors import TunnelError
from tunnel.exit_codes import INTEGRITY, LOST

__all__ = [
    "ChannelClosedError",
    "ChecksumError",
    "CorruptMessageError",
    "DecompressError",
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
    """Over a limit of this side: nothing of it was written."""


class CorruptMessageError(MessageError):
    """What was read is not what anybody wrote. `offset` is the position of the message in its set."""

    exit_code = INTEGRITY

    def __init__(self, text: str, offset: int = 0) -> None:
        super().__init__(f"{text} (at {offset})")
        self.offset = offset


class MessageSizeError(CorruptMessageError):
    """A length below the fixed fields, or above the maximum."""


class UnknownVersionError(CorruptMessageError):
    """Written by a version that this one does not read."""


class UnknownCodecError(CorruptMessageError):
    """Compressed with something that is not available here."""


class ChecksumError(CorruptMessageError):
    """The CRC-32 of the payload does not match."""


class DecompressError(CorruptMessageError):
    """Compressed data that is damaged, too large when unpacked, or nested too deeply."""


class MalformedFrameError(MessageError, ConnectionError):
    """The peer broke the framing. Nothing that follows on the connection can be trusted."""

    exit_code = INTEGRITY


class MessageCancelledError(MessageError):
    """The receiver gave a message up, and said why; the connection goes on."""


class ChannelClosedError(MessageError, ConnectionError):
    """The connection is gone; what was asked may or may not have happened."""

    exit_code = LOST


class ProducerClosedError(MessageError):
    """A producer takes nothing after `close`."""


class RemoteCallError(MessageError):
    """The far side answered with an error; `code` is its code."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text or f"the far side answered with code {code}")
        self.code = code


class LogError(MessageError):
    """A log that cannot be used; the text says which file and what to do."""


class OffsetOutOfRangeError(LogError):
    """`first` and `end` are what the log has."""

    def __init__(self, offset: int, first: int, end: int) -> None:
        super().__init__(f"offset {offset} is not in the log, which has {first} to {end}")
        self.offset = offset
        self.first = first
        self.end = end


class OutboxError(MessageError):
    """Delivery cannot go on: the two sides do not agree on what was delivered."""


class FencedError(OutboxError):
    """A newer process sends from this outbox: this one must stop."""
