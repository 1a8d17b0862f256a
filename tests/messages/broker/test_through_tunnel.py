"""A broker as a service at a relay: its connections have no descriptor, so large answers are views of a mapped file."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import until
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel.messages import Broker, BrokerClient, ChannelTable, GroupConsumer, ProducerData, SyncProducer


@in_loop
async def test_producers_consumers_and_listeners_reach_a_broker_through_a_relay(tmp_path: Path) -> None:
    async with (
        MemoryTestRelay() as relay,
        relay.attach("ann") as service,
        relay.attach("bob") as near,
        Broker(tmp_path) as broker,
    ):
        await service.start_server(broker.serve, "broker")

        async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await near.open_connection(address)

        async with ChannelTable(dial) as table:
            client = BrokerClient(table, "broker")
            payloads = [bytes([number]) * 900 for number in range(200)]
            await client.producer().send("t", *payloads)
            messages = await client.consumer("t").fetch()  # 182 kB: such a large answer is not copied
            assert [message.payload for message in messages] == payloads
            found: list[int] = []
            consumer = GroupConsumer(table, "broker", "billing", "t")
            async with consumer.register_message_listener(lambda each: found.append(each.offset)):
                await until(lambda: len(found) == 200)
            reader, writer = await near.open_connection("broker")
            await SyncProducer(writer).send("t", b"last")
            writer.write_eof()
            assert await reader.read() == b""  # no error: the message is on disk
            writer.close()
            assert (await client.consumer("t", offset=200).fetch())[0].payload == b"last"
            reader, writer = await near.open_connection("broker")
            await SyncProducer(writer).send_data(ProducerData("t", [b"x"], 9))
            with pytest.raises(ConnectionError):
                await reader.read()
            writer.close()
