"""One connection that moves bytes as fast as the path takes them, another that waits for echoes, and their target."""

import asyncio
import contextlib

__all__ = ["FlowTarget", "echo_on", "move"]

_PIECE = bytes(16 * 1024)


class FlowTarget:
    """Does what the first byte of a connection asks for, and counts the bytes that it takes."""

    def __init__(self) -> None:
        self.taken = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.CancelledError):  # at the end of the server
            word = await reader.read(1)
            while word == b"d":
                writer.write(_PIECE)
                await writer.drain()
            while piece := await reader.read(len(_PIECE)):
                self.taken += len(piece) * (word == b"u")
                if word == b"e":
                    writer.write(piece)
        writer.transport.abort()


async def move(port: int, way: str, taken: list[int]) -> None:
    """Send bytes up, or take them down and count them in `taken`, until the connection ends or this is cancelled."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(way[:1].encode())
        while way == "up":
            writer.write(_PIECE)
            await writer.drain()
        while piece := await reader.read(len(_PIECE)):
            taken[0] += len(piece)
    finally:
        writer.transport.abort()


async def echo_on(port: int, echoes_s: list[float], pause_s: float) -> None:
    """Send a byte and wait for its echo, again and again; append the time of each."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    loop = asyncio.get_running_loop()
    try:
        writer.write(b"e")
        while True:
            began_s = loop.time()
            writer.write(b"?")
            await reader.readexactly(1)
            echoes_s.append(loop.time() - began_s)
            await asyncio.sleep(pause_s)
    finally:
        writer.transport.abort()
