"""Redis's clients on a real server: redis-py under a patch, redis-benchmark through `tunnel forward`."""

import asyncio
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest
import redis
import redis.asyncio

from tests.real.clients_rig import LOOPBACK, WAIT_S, Way, wait_until
from tests.real.servers import Server, start_server
from tests.support.loops import run

pytestmark = pytest.mark.real("nginx", "redis-server", "redis-benchmark")

COUNT = 2000
KEYS = [f"key:{number}" for number in range(COUNT)]
# By default redis-py 8 gives up after 5 s without a byte and repeats the command, which publishes a message twice.
PATIENT: dict[str, Any] = {"socket_timeout": WAIT_S}
LARGE = bytes(range(256)) * 4096


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    """A server that stores nothing on disk."""
    with start_server(lambda port: ["redis-server", "--bind", LOOPBACK, "--port", str(port), "--save", ""]) as running:
        yield running


def test_redis(way: Way, server: Server) -> None:
    """A connection survives `way.trouble()` during a pipeline, and then carries a large value."""
    with (
        way.patch(),
        redis.Redis(host=LOOPBACK, port=server.port, single_connection_client=True, **PATIENT) as database,
    ):
        before = database.client_id()
        with way.trouble(), database.pipeline(transaction=False) as pipeline:
            for key in KEYS:
                pipeline.set(key, key)
            assert pipeline.execute() == [True] * COUNT
        database.set("large", LARGE)
        assert database.get("large") == LARGE
        assert database.mget(KEYS) == [key.encode() for key in KEYS]
        assert database.client_id() == before


def test_redis_pubsub(way: Way, server: Server) -> None:
    """A subscription survives `way.trouble()`, and no message published meanwhile is missing."""
    news = f"news by {way.name}"  # the subscription of the last path may end a moment later, when a request was lost
    with (
        way.patch(),
        redis.Redis(host=LOOPBACK, port=server.port, **PATIENT) as database,
        database.pubsub(ignore_subscribe_messages=True) as listener,
    ):
        listener.subscribe(news)
        assert listener.get_message(timeout=WAIT_S) is None  # the confirmation of the subscription
        with way.trouble(), redis.Redis(host=LOOPBACK, port=server.port, **PATIENT) as publisher:
            assert [publisher.publish(news, str(number)) for number in range(20)] == [1] * 20
            heard: list[Any] = []
            while len(heard) < 20:
                message = listener.get_message(timeout=WAIT_S)
                assert message is not None
                heard.append(message["data"])
        assert heard == [str(number).encode() for number in range(20)]


def test_redis_asyncio(way: Way, server: Server) -> None:
    async def main() -> None:
        async with (
            redis.asyncio.Redis(host=LOOPBACK, port=server.port, **PATIENT) as database,
            database.pubsub(ignore_subscribe_messages=True) as listener,
        ):
            await listener.subscribe("later")
            assert await listener.get_message(timeout=WAIT_S) is None
            before = await database.client_id()
            with way.trouble():
                await asyncio.gather(*(database.publish("later", str(number)) for number in range(5)))
                heard = [await listener.get_message(timeout=WAIT_S) for _ in range(5)]
            assert sorted(message["data"] for message in heard if message) == [b"0", b"1", b"2", b"3", b"4"]
            await database.set("large", LARGE)
            assert await database.get("large") == LARGE
            assert before in [int(client["id"]) for client in await database.client_list()]

    with way.patch():
        run(main())


def test_redis_benchmark(way: Way, server: Server) -> None:
    """The long form of this test is `python -m loadtests.experiments.redis_bench`."""
    port = str(way.forward(server.port))
    command = ["redis-benchmark", "-h", LOOPBACK, "-p", port, "-q", "-n", "1000", "-c", "20", "-t", "set"]
    with redis.Redis(host=LOOPBACK, port=server.port) as direct:
        direct.config_resetstat()
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as bench:
            try:
                wait_until(lambda: sets(direct) > 40, "redis-benchmark begins")
                with way.trouble():
                    said, _ = bench.communicate(timeout=WAIT_S)
            finally:
                bench.kill()
        assert bench.returncode == 0, said
        assert "Error" not in said
        assert "requests per second" in said
        assert 1000 <= sets(direct) <= 1020  # its connections may finish requests that they have begun


def sets(direct: redis.Redis) -> int:
    found: Any = direct.info("commandstats")
    return int(found.get("cmdstat_set", {}).get("calls", 0))
