"""The server that the users of the stress suite connect to. The first byte of a connection selects the service.

`e` echoes until the end. `s` reads until the end, then answers with length (8 bytes) and XXH3-128 digest (16). `d` is
followed by a length of 8 bytes: the server sends that number of bytes of a pattern, then their digest. `r` is followed
by frames, each 4 bytes of length and a body: the server returns each frame with its body reversed.
"""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from functools import lru_cache

import structlog
import xxhash

from tunnel.process.command_line import configure_log
from tunnel.process.event_loops import new_event_loop

__all__ = ["PATTERN", "digest_of_pattern", "main", "serve"]

_log = structlog.get_logger("target")
_READ_BYTES = 64 * 1024
FRAME_BYTES_MAX = 1 << 20
PATTERN = bytes(i * 31 % 251 for i in range(_READ_BYTES))


@lru_cache
def digest_of_pattern(size: int) -> bytes:
    """Return the digest of the first `size` bytes that `d` sends."""
    hashed = xxhash.xxh3_128()
    for start in range(0, size, len(PATTERN)):
        hashed.update(PATTERN[: min(len(PATTERN), size - start)])
    return hashed.digest()


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection."""
    try:
        match await reader.read(1):
            case b"e":
                await _echo(reader, writer)
            case b"s":
                await _swallow(reader, writer)
            case b"d":
                await _send(reader, writer)
            case b"r":
                await _answer(reader, writer)
            case other:
                if other:
                    _log.warning("unknown wish", wish=other.hex())
    except (ConnectionError, asyncio.IncompleteReadError):
        pass  # a user may leave at any time
    finally:
        writer.close()


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(_READ_BYTES):
        writer.write(data)
        await writer.drain()


async def _swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    hashed, size = xxhash.xxh3_128(), 0
    while data := await reader.read(_READ_BYTES):
        hashed.update(data)
        size += len(data)
    writer.write(size.to_bytes(8) + hashed.digest())
    await writer.drain()


async def _send(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    size = int.from_bytes(await reader.readexactly(8))
    for start in range(0, size, len(PATTERN)):
        writer.write(PATTERN[: min(len(PATTERN), size - start)])
        await writer.drain()
    writer.write(digest_of_pattern(size))
    await writer.drain()


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while head := await reader.read(4):
        head += await reader.readexactly(4 - len(head))
        size = int.from_bytes(head)
        if size > FRAME_BYTES_MAX:
            _log.warning("frame too large", size_bytes=size)
            return
        body = await reader.readexactly(size)
        writer.write(head + body[::-1])
        await writer.drain()


async def _run(host: str, port: int) -> None:
    async with await asyncio.start_server(serve, host, port) as server:
        _log.info("listening", port=server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.stress.target",
        description="The server that the users of the stress suite connect to.",
        epilog="example: python -m loadtests.stress.target --port 9000",
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=0, help="port to listen on (default: a free port)")
    arguments = parser.parse_args(argv)
    configure_log("info")
    try:
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(arguments.host, arguments.port))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
