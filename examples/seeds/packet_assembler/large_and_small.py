"""The document's first two figures: message 2 arrives while the large message 1 is still on its way, and so do pings.

Prints:
    message 2 arrived first: [5, 8000000]
    the ping was answered before message 1 was complete: True
"""

import asyncio

from tunnel.messages import MessageSession, Packet

TARGET = 7


async def main() -> None:
    sizes: list[int] = []
    ended = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        session = MessageSession(reader, writer)
        session.register(TARGET, lambda packet: sizes.append(len(packet.data)))
        async with session:
            await session.wait_closed()
        ended.set()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        streams = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with MessageSession(*streams) as session:
            large = asyncio.ensure_future(session.send(Packet(bytes(8_000_000), TARGET)))
            await asyncio.sleep(0)  # from here on, message 1 is being sent
            await session.send(Packet(b"small", TARGET))
            await session.ping()
            before = not large.done()
            await large
        await ended.wait()
    print("message 2 arrived first:", sizes)
    print("the ping was answered before message 1 was complete:", before)


if __name__ == "__main__":
    asyncio.run(main())
