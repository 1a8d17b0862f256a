"""Section "Sync and async": a producer that writes at once, and one with a queue, a batch size and three policies.

Urgent messages are sent by the sync producer. Logs and the like go into the queue of an async producer, whose sender
takes batches out of it, by size or by time. When the queue is full, the enqueue timeout decides.

Prints:
    the broker got: urgent, 0, 1, 2, 3, 4
    timeout 0, queue full: False
    timeout 5 ms, queue full: False
    timeout below 0, queue full: waits until there is room
"""

import asyncio
from typing import cast

from tunnel.messages import AsyncProducer, AsyncProducerConfig, StringEncoder, SyncProducer, read_requests


class Nowhere:
    """A stream that takes nothing until it is opened."""

    def __init__(self) -> None:
        self.open = asyncio.Event()

    def is_closing(self) -> bool:
        return False

    def write(self, data: bytes) -> None: ...

    async def drain(self) -> None:
        await self.open.wait()


async def send_to_a_broker() -> None:
    received: list[str] = []
    done = asyncio.Event()

    async def broker(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async for request in read_requests(reader):
            received.extend(payload.decode() for payload in request.messages.payloads())
        writer.close()
        done.set()

    async with await asyncio.start_server(broker, "127.0.0.1", 0) as server:
        _, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        sync = SyncProducer(writer, encoder=StringEncoder())
        await sync.send("orders", "urgent")
        async with AsyncProducer(sync, AsyncProducerConfig(batch_max=200, linger_s=0.01)) as producer:
            for number in range(5):
                await producer.send("logs", str(number))
        writer.close()
        await done.wait()
    print("the broker got:", ", ".join(received))


async def with_a_full_queue(timeout_ms: int) -> None:
    nowhere = Nowhere()
    config = AsyncProducerConfig(queue_max=1, batch_max=1, linger_s=0.0, enqueue_timeout_ms=timeout_ms)
    async with AsyncProducer(SyncProducer(cast("asyncio.StreamWriter", nowhere)), config) as producer:
        for _ in range(3):  # the first is being sent, the second is in the queue, and there is no room for the third
            producer.offer("logs", b"x")
            await asyncio.sleep(0)
        if timeout_ms >= 0:
            name = f"{timeout_ms} ms" if timeout_ms else "0"
            print(f"timeout {name}, queue full:", await producer.send("logs", b"x"))
        else:
            waiting = asyncio.ensure_future(producer.send("logs", b"x"))
            nowhere.open.set()
            assert await waiting
            print("timeout below 0, queue full: waits until there is room")
        nowhere.open.set()


async def main() -> None:
    await send_to_a_broker()
    for timeout_ms in (0, 5, -1):
        await with_a_full_queue(timeout_ms)


if __name__ == "__main__":
    asyncio.run(main())
