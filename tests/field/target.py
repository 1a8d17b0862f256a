"""The target of the field's transfers, as a process: `python -m tests.field.target`.

A connection begins with a line: `up N` (N bytes follow; the answer is their digest), `down N` (N bytes are the answer,
then their digest) or `echo` (until the end). The process prints `target PORT` when it listens.
"""

import asyncio
import contextlib
import sys

from loadtests.harness.transfer import CHUNK_BYTES, Flow
from tests.field.flows import DOWN_SEED, UP_SEED
from tunnel.process.event_loops import new_event_loop

__all__ = ["main", "serve"]


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve one connection to its end."""
    with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
        words = (await reader.readline()).decode("ascii", "replace").split()
        match words:
            case ["up", size]:
                await _receive(reader, writer, Flow(int(size), UP_SEED))
            case ["down", size]:
                await _send(writer, Flow(int(size), DOWN_SEED))
            case ["echo"]:
                while data := await reader.read(CHUNK_BYTES):
                    writer.write(data)
                    await writer.drain()


async def _receive(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: Flow) -> None:
    while flow.received_bytes < flow.size_bytes:
        data = await reader.read(CHUNK_BYTES)
        if not data:
            return
        flow.took(data)
    writer.write(f"{flow.digests[1]}\n".encode())
    await writer.drain()


async def _send(writer: asyncio.StreamWriter, flow: Flow) -> None:
    for chunk in flow.chunks():
        writer.write(chunk)
        await writer.drain()
    writer.write(f"{flow.digests[0]}\n".encode())
    await writer.drain()


async def _serve() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0, limit=2 * CHUNK_BYTES)
    async with server:
        print(f"target {server.sockets[0].getsockname()[1]}", flush=True)
        await server.serve_forever()


def main() -> int:
    """Run the target; it ends only when the process is killed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
