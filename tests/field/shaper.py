"""What happens to the bytes of a TCP connection, whatever they are: they pass at a fixed rate, or large packets are
lost."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable

__all__ = ["lose", "shape"]

_PIECE_S = 0.05  # so much of a rate passes at once


_Pass = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


async def shape(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: int, bytes_per_s: int) -> None:
    """Serve one connection of a client, until either side ends it. Its bytes pass at a rate, each way."""

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _pass_on(reader, writer, bytes_per_s)

    await _serve(reader, writer, upstream, pass_on, pass_on)


async def lose(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: int, most: int) -> None:
    """Serve one connection of a client, until either side ends it. What comes at once towards the client and is larger
    than `most` is lost, and everything after it, as where packets of full size are lost."""

    async def pass_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()

    async def pass_small(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        is_lost = False
        while data := await reader.read(1 << 16):
            is_lost = is_lost or len(data) > most
            if not is_lost:
                writer.write(data)
                await writer.drain()

    await _serve(reader, writer, upstream, pass_all, pass_small)


async def _serve(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: int, up: _Pass, down: _Pass
) -> None:
    with contextlib.suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", upstream, limit=1 << 16)
        with contextlib.closing(far_writer):
            ways = [asyncio.ensure_future(up(reader, far_writer)), asyncio.ensure_future(down(far_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, bytes_per_s: int) -> None:
    loop = asyncio.get_running_loop()
    free_s = 0.0  # when the next bytes may pass
    while data := await reader.read(max(1, int(bytes_per_s * _PIECE_S))):
        now_s = loop.time()
        free_s = max(free_s, now_s) + len(data) / bytes_per_s
        await asyncio.sleep(free_s - now_s)
        writer.write(data)
        await writer.drain()
