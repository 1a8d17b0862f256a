"""A shaper: it passes the bytes of each TCP connection on at a fixed rate, each way, whatever they are."""

import asyncio
import contextlib

__all__ = ["shape"]

_PIECE_S = 0.05  # so much of a rate passes at once


async def shape(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, upstream: int, bytes_per_s: int) -> None:
    """Serve one connection of a client, until either side ends it."""
    with contextlib.suppress(OSError):
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", upstream, limit=1 << 16)
        with contextlib.closing(far_writer):
            ways = [
                asyncio.create_task(_pass_on(reader, far_writer, bytes_per_s)),
                asyncio.create_task(_pass_on(far_reader, writer, bytes_per_s)),
            ]
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
