"""The part of the NATS text protocol that the experiment uses: encodes and decodes frames.

https://docs.nats.io/reference/reference-protocols/nats-protocol (read 2026-11).
"""

import asyncio
import json
from dataclasses import dataclass

__all__ = [
    "CONTROL",
    "GROUP",
    "HELLO",
    "ID_HEADER",
    "MAIN",
    "Frame",
    "ProtocolError",
    "connect_line",
    "deliver",
    "info_line",
    "publish",
    "read_frame",
]

# The subjects of the experiment; the receivers share MAIN as one group, so that each message goes to one of them.
MAIN, CONTROL, HELLO, GROUP = "cml.main", "cml.control", "cml.hello", "cml"
ID_HEADER = "Message-Id"
_HEAD = b"NATS/1.0\r\n"
_MAX_PAYLOAD_BYTES = 1 << 20  # the default of nats-server
_PAYLOAD = frozenset({"PUB", "HPUB", "MSG", "HMSG"})


class ProtocolError(ConnectionError):
    """The peer violated the protocol; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Frame:
    """A line, split into words, and the payload after it. The first `header_size` bytes of the payload are headers."""

    verb: str
    words: tuple[str, ...]
    payload: bytes = b""
    header_size: int = 0


def info_line(server: str) -> bytes:
    """Return the first line that a server sends."""
    info = {
        "server_id": server,
        "server_name": server,
        "version": "2.9.0",
        "proto": 1,
        "headers": True,
        "max_payload": _MAX_PAYLOAD_BYTES,
    }
    return b"INFO " + json.dumps(info).encode() + b"\r\n"


def connect_line() -> bytes:
    """Return the first lines that a client sends, with a PING whose PONG shows that the server has read them."""
    options = {"verbose": False, "pedantic": False, "headers": True, "lang": "python", "name": "sender", "version": "1"}
    return b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n"


def publish(subject: str, number: int, payload: bytes) -> bytes:
    """Return a message to publish, with its number in a header."""
    head = _HEAD + f"{ID_HEADER}: {number}\r\n\r\n".encode()
    return f"HPUB {subject} {len(head)} {len(head) + len(payload)}\r\n".encode() + head + payload + b"\r\n"


def deliver(subject: str, sid: str, frame: Frame) -> bytes:
    """Return a published message in the form in which a server sends it to a subscriber."""
    if frame.header_size:
        line = f"HMSG {subject} {sid} {frame.header_size} {len(frame.payload)}\r\n"
    else:
        line = f"MSG {subject} {sid} {len(frame.payload)}\r\n"
    return line.encode() + frame.payload + b"\r\n"


async def read_frame(reader: asyncio.StreamReader) -> Frame | None:
    """Read and return the next frame, or None at the end. Raise ProtocolError if the bytes are not a frame."""
    try:
        line = await reader.readuntil(b"\r\n")
    except asyncio.IncompleteReadError:
        return None
    except asyncio.LimitOverrunError as error:
        raise ProtocolError("a line is too long") from error
    verb, *words = line.decode("utf-8", "replace").split() or [""]
    verb = verb.upper()
    if verb not in _PAYLOAD:
        return Frame(verb, tuple(words))
    has_headers = verb.startswith("H")
    try:
        size = int(words[-1])
        header_size = int(words[-2]) if has_headers else 0
    except (IndexError, ValueError):
        raise ProtocolError(f"{line[:60]!r} has no size") from None
    if not 0 <= header_size <= size <= _MAX_PAYLOAD_BYTES:
        raise ProtocolError(f"{line[:60]!r} has an impossible size")
    try:
        payload = await reader.readexactly(size + 2)
    except asyncio.IncompleteReadError:
        return None
    if not payload.endswith(b"\r\n"):
        raise ProtocolError(f"{line[:60]!r} has more payload than it declares")
    return Frame(verb, tuple(words), payload[:-2], header_size)
