"""The receiver of the measurements, a separate process: `python -m loadtests.bench.messages.peer RELAY`."""

import asyncio
import sys

import uvloop

from tunnel import StreamReader, StreamWriter, attach
from tunnel.messages import MessageSession, Packet, Request, Response, read_requests, serve_calls

__all__ = ["CALLS", "PACKETS", "SINK", "STREAM", "serve"]

SINK, CALLS, PACKETS, STREAM = "sink", "calls", "packets", "stream"


async def sink(reader: StreamReader, writer: StreamWriter) -> None:
    """Read produce requests until the end, check every message, and answer with the number of messages."""
    count = 0
    async for request in read_requests(reader):
        for _ in request.messages.payloads():
            count += 1
    writer.write(count.to_bytes(8, "big"))
    writer.close()
    await writer.wait_closed()


async def answer(request: Request) -> Response:
    return Response(request.body)


async def take_packets(reader: StreamReader, writer: StreamWriter) -> None:
    def drop(packet: Packet) -> None:
        """Do nothing: a large body is already on disk."""

    session = MessageSession(reader, writer)
    session.register(1, drop)
    async with session:
        await session.wait_closed()


async def echo_stream(reader: StreamReader, writer: StreamWriter) -> None:
    """Echo plain bytes, for comparison."""
    while data := await reader.read(1 << 18):
        writer.write(data)
        await writer.drain()
    writer.close()
    await writer.wait_closed()


async def serve(relay: str) -> None:
    """Offer all services until killed."""
    async with attach(relay, carrier="link", name="peer") as attachment:
        await attachment.start_server(sink, SINK)
        await attachment.start_server(serve_calls({1: answer}), CALLS)
        await attachment.start_server(take_packets, PACKETS)
        await attachment.start_server(echo_stream, STREAM)
        print("ready", flush=True)
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1]))
