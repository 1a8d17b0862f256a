"""nats-py with a real server, under `tunnel_client.patch`."""

import asyncio
from collections.abc import Iterator

import nats
import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from tests.real.clients_rig import LOOPBACK, WAIT_S, Way
from tests.real.servers import Server, start_server
from tests.support.loops import run

pytestmark = pytest.mark.real("nginx", "nats-server")

COUNT = 1000
NUMBERS = list(range(COUNT))


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A single server, not a cluster."""
    with start_server(lambda port: ["nats-server", "-a", LOOPBACK, "-p", str(port)]) as running:
        yield running


async def connect(port: int, name: str) -> Client:
    """Connect, and print errors and disconnections, which pytest shows when a test fails: without them, only the other
    client would notice that messages are missing."""

    async def on_error(error: Exception) -> None:
        print(f"{name}: {error!r}")

    async def on_disconnect() -> None:
        print(f"{name}: disconnected")

    return await nats.connect(
        f"nats://{LOOPBACK}:{port}",
        name=name,
        allow_reconnect=False,
        connect_timeout=WAIT_S,
        error_cb=on_error,
        disconnected_cb=on_disconnect,
    )


def test_nats(way: Way, server: Server) -> None:
    """Publisher and subscriber both use the tunnel. Neither reconnects, and yet no message is lost."""

    async def main() -> None:
        subscriber, publisher = await connect(server.port, "subscriber"), await connect(server.port, "publisher")
        heard: list[int] = []
        done = asyncio.Event()

        async def hear(message: Msg) -> None:
            heard.append(int(message.data))
            if len(heard) == COUNT:
                done.set()

        await subscriber.subscribe("numbers", cb=hear)
        await subscriber.flush(int(WAIT_S))
        with way.trouble():
            for number in NUMBERS:
                await publisher.publish("numbers", b"%d" % number)
            await publisher.flush(int(WAIT_S))
            await done.wait()
        assert heard == NUMBERS
        await publisher.close()
        await subscriber.close()

    with way.patch():
        run(main())


def test_nats_requests_and_answers(way: Way, server: Server) -> None:
    async def main() -> None:
        asker, worker = await connect(server.port, "asker"), await connect(server.port, "worker")

        async def double(message: Msg) -> None:
            await message.respond(message.data * 2)

        await worker.subscribe("double", cb=double)
        await worker.flush(int(WAIT_S))
        with way.trouble():
            answers = await asyncio.gather(*(asker.request("double", b"%d" % n, timeout=WAIT_S) for n in range(50)))
        assert [answer.data for answer in answers] == [b"%d" % number * 2 for number in range(50)]
        await asker.close()
        await worker.close()

    with way.patch():
        run(main())
