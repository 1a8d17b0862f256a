"""Whole HTTP/1 messages for the scripted proxy: it collects each before it forwards it."""

import asyncio
from typing import NamedTuple

__all__ = ["Head", "MalformedError", "encode", "read_body", "read_head"]

_HOP_BY_HOP = frozenset("connection keep-alive proxy-connection te trailer transfer-encoding upgrade expect".split())
_BODYLESS = frozenset({"204", "304"})


class MalformedError(Exception):
    """The bytes are not HTTP/1, or end within a head. Bytes that end within a body raise IncompleteReadError."""


class Head(NamedTuple):
    """A start line in three words, and the fields by their names in lower case."""

    words: tuple[str, str, str]
    fields: dict[str, str]


async def read_head(reader: asyncio.StreamReader) -> Head | None:
    """Read up to the empty line; return None if the peer ended the connection before the first byte."""
    try:
        text = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.IncompleteReadError as error:
        if error.partial:
            raise MalformedError("the connection ended within a head") from None
        return None
    except asyncio.LimitOverrunError:
        raise MalformedError("the head is too long") from None
    start, *lines = text[:-4].split("\r\n")
    words = [*start.split(" ", 2), "", ""][:3]
    pairs = (line.partition(":") for line in lines)
    return Head((words[0], words[1], words[2]), {name.strip().lower(): value.strip() for name, _, value in pairs})


async def read_body(reader: asyncio.StreamReader, head: Head, *, is_answer: bool) -> bytes:
    """Read the body that the head announces (RFC 9112, 6.3); an answer without a length ends with its connection."""
    if is_answer and head.words[1] in _BODYLESS:
        return b""
    if "chunked" in head.fields.get("transfer-encoding", "").lower():
        return await _read_chunks(reader)
    if "content-length" in head.fields:
        try:
            return await reader.readexactly(int(head.fields["content-length"]))
        except ValueError:
            raise MalformedError("Content-Length is not a number") from None
    return await reader.read() if is_answer else b""


async def _read_chunks(reader: asyncio.StreamReader) -> bytes:
    parts: list[bytes] = []
    while True:
        try:
            size = int((await reader.readline()).split(b";")[0], 16)
        except ValueError:
            raise MalformedError("a chunk's size is not a number") from None
        if not size:
            break
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    while (await reader.readline()).strip():
        pass  # trailers
    return b"".join(parts)


def encode(start: str, fields: dict[str, str], body: bytes, more: dict[str, str]) -> bytes:
    """Return a message with this body: without the hop-by-hop fields, and with `more` fields."""
    kept = {name: value for name, value in fields.items() if name not in _HOP_BY_HOP}
    kept |= {"content-length": str(len(body)), **more}
    lines = [start, *(f"{name}: {value}" for name, value in kept.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body
