"""Section "Backlog", case 2, and its last example: a listener that finds out that messages pile up on the disk.

The document registers a listener, and compares the offset of a message with the maximum offset. It calls a difference
of more than 10,000 a backlog. This program has a limit of 10 instead, and 15 messages.

Prints:
    offset 0 of 15: a backlog, 15 messages
    offset 5 of 15: near the end
    offset 14 of 15: near the end
    handled 15
"""

import asyncio
import tempfile

import structlog

from tunnel.messages import Broker, BrokerClient, ChannelTable, DeliveredMessage, GroupConsumer

BACKLOG_MESSAGES = 10  # 10,000 in the document
SHOWN = (0, 5, 14)


async def main(directory: str) -> None:
    handled: list[int] = []
    done = asyncio.Event()

    def consume(message: DeliveredMessage) -> None:
        if message.offset in SHOWN:
            far = message.lag > BACKLOG_MESSAGES
            text = f"a backlog, {message.lag} messages" if far else "near the end"
            print(f"offset {message.offset} of {message.max_offset}: {text}")
        handled.append(message.offset)
        if len(handled) == 15:
            done.set()

    async with Broker(directory) as broker, ChannelTable() as table:
        address = await broker.listen("127.0.0.1", 0)
        producer = BrokerClient(table, address).producer()
        await producer.send("orders", *(b"message %d" % number for number in range(15)))
        consumer = GroupConsumer(table, address, "billing", "orders")
        async with consumer.register_message_listener(consume):
            await done.wait()
    print("handled", len(handled))


if __name__ == "__main__":
    # The broker logs, to standard output unless the program says otherwise. Only warnings are of interest here.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(30))
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(place))
