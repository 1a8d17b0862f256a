"""One attack on a broker, until the process is killed: `python -m loadtests.hostile.broker_attacker ATTACK --broker A`.

It comes from an address of its own, which the broker takes for a user. The process prints `attacking` just before the
attack begins.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable
from itertools import count

from loadtests.hostile.attacking import attack_until_killed
from loadtests.hostile.broker import PINGS, SHARED
from tunnel.messages import ByteBufferMessageSet, split_address
from tunnel.messages.broker.protocol import COMMIT, CREATE, FETCH, JOIN, LEAVE, METRICS, POSITIONS, PRODUCE, TOPICS
from tunnel.messages.calls.frames import REQUEST_HEADER_BYTES_MAX, CallHeader, FrameFlag, encode_frame
from tunnel.messages.sets.message import encode_payloads
from tunnel.messages.topics.producers import encode_requests
from tunnel.messages.topics.requests import ProduceRequest

__all__ = ["BROKER_ATTACKS", "BROKER_NEIGHBOUR", "main"]

_SOURCE = "127.0.0.2"
_CONNECTIONS = 8
_PAUSE_S = 0.05
_LARGE_BYTES = 900_000


async def _connect(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, port = split_address(address)
    return await asyncio.open_connection(host, port, local_addr=(_SOURCE, 0))


def _frame(code: int, opaque: int, fields: dict[str, str] | None = None, body: bytes = b"", flag: int = 0) -> bytes:
    return b"".join(encode_frame(CallHeader(code, opaque, flag, "", fields), body))


def _produce(data: bytes, topic: str = SHARED) -> bytes:
    return encode_requests([ProduceRequest(topic, 0, ByteBufferMessageSet(data))])


async def _flood(address: str, make: Callable[[int], bytes], connections: int = _CONNECTIONS) -> None:
    """Send what `make` returns for 0, 1, 2 and so on, on several connections, read all answers, and connect again."""

    async def flood() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await _connect(address)
                reading = asyncio.ensure_future(_drain(reader))
                try:
                    for number in count():
                        writer.write(make(number))
                        await writer.drain()
                        if reading.done():
                            break
                        await asyncio.sleep(0)
                finally:
                    reading.cancel()
                    writer.transport.abort()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(flood() for _ in range(connections)))


async def _drain(reader: asyncio.StreamReader) -> None:
    with contextlib.suppress(OSError):
        while await reader.read(1 << 16):
            pass


async def calls(address: str) -> None:
    """Ask for the metrics all the time."""
    await _flood(address, lambda _: b"".join(_frame(METRICS, opaque) for opaque in range(200)))


async def messages(address: str) -> None:
    """Send produce requests of one empty message without waiting for answers."""
    requests = _produce(encode_payloads([b""])) * 1000
    await _flood(address, lambda _: requests)


async def tiny_messages(address: str) -> None:
    """Send sets of 100,000 empty messages, which take long to check."""
    request = _frame(PRODUCE, 1, {"durable": "0"}, _produce(encode_payloads([b""] * 100_000)))
    await _flood(address, lambda _: request)


async def sets(address: str) -> None:
    """Send calls of 60,000 sets, each with one empty message, one after the other."""
    one = ProduceRequest(SHARED, 0, ByteBufferMessageSet(encode_payloads([b""])))
    request = _frame(PRODUCE, 1, {"durable": "0"}, encode_requests([one] * 60_000))
    while True:
        reader, writer = await _connect(address)
        writer.write(request)
        await reader.read(1)  # the answer begins
        writer.transport.abort()


async def memory(address: str) -> None:
    """Fill a topic in memory with empty messages."""
    _, writer = await _connect(address)
    writer.write(_frame(CREATE, 1, {"topic": "eves"}, b'{"storage":"memory","messages_max":100000}'))
    request = _produce(encode_payloads([b""] * 2_000), "eves")
    await _flood(address, lambda number: _frame(PRODUCE, number, None, request))


async def headers(address: str) -> None:
    """Let requests with the longest headers wait, on 100 connections, and send longer ones."""
    name = "x" * (REQUEST_HEADER_BYTES_MAX - 300)
    fields = {"topic": SHARED, "partition": "0", "offset": "999999999", "wait_ms": "60000", "x": name}
    waiting = b"".join(_frame(FETCH, opaque, fields) for opaque in range(200))
    longer = (4 << 20).to_bytes(4, "big") + (4 << 20).to_bytes(4, "big") + b'{"' + b"x" * 100_000
    await asyncio.gather(_flood(address, lambda _: waiting, 100), _flood(address, lambda _: longer))


async def slow_requests(address: str) -> None:
    """Send large requests that lack the last byte."""

    async def stay() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await _connect(address)
                writer.write(_produce(encode_payloads([bytes(_LARGE_BYTES)]))[:-1])
                await reader.read()
                writer.close()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(stay() for _ in range(100)))


async def storm(address: str) -> None:
    """Join the victim's group and leave it all the time."""

    def make(number: int) -> bytes:
        fields = {"group": "victims", "topic": PINGS, "member": f"eve{number % 50}"}
        return _frame(JOIN, 2 * number, fields) + _frame(LEAVE, 2 * number + 1, fields)

    await _flood(address, make)


async def creations(address: str) -> None:
    """Create topics and positions without end."""

    def make(number: int) -> bytes:
        group = {"group": f"eve{number}", "topic": SHARED, "partition": "0", "offset": "0"}
        return _frame(CREATE, 2 * number, {"topic": f"eve{number}"}, b"{}") + _frame(COMMIT, 2 * number + 1, group)

    await _flood(address, make)


async def lists(address: str) -> None:
    """Ask for the lists of topics and positions on 100 connections."""
    await _flood(address, lambda n: _frame(TOPICS, 2 * n) + _frame(POSITIONS, 2 * n + 1, {"group": ""}), 100)


async def cancellations(address: str) -> None:
    """Begin fetches that wait, and cancel them at once."""

    def make(_: int) -> bytes:
        fields = {"topic": SHARED, "partition": "0", "offset": "999999999", "wait_ms": "60000"}
        cancel = FrameFlag.CANCEL | FrameFlag.ONE_WAY
        return b"".join(_frame(FETCH, each, fields) + _frame(FETCH, each, flag=cancel) for each in range(100))

    await _flood(address, make)


async def rewinds(address: str) -> None:
    """Force the position of the victim's group back and forth, which goes to the disk and wakes its members."""

    def make(number: int) -> bytes:
        fields = {"group": "victims", "topic": SHARED, "partition": "0", "offset": "0", "force": "1"}
        return _frame(COMMIT, number, fields)

    await _flood(address, make)


async def connections(address: str) -> None:
    """Connect and go away, all the time."""

    async def flood() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await _connect(address)
                writer.write(b"garbage that is no request")
                writer.close()
            await asyncio.sleep(0.001)

    await asyncio.gather(*(flood() for _ in range(_CONNECTIONS)))


BROKER_NEIGHBOUR = "broker-honest-neighbour"


async def neighbour(address: str) -> None:
    """Act as an honest user who sends all it can in sets of 200 messages."""
    request = _produce(encode_payloads([bytes(100)] * 200))
    await _flood(address, lambda _: request, 2)


BROKER_ATTACKS: dict[str, Callable[[str], Awaitable[None]]] = {
    f"broker-{each.__name__.replace('_', '-')}": each
    for each in (
        *(calls, messages, tiny_messages, sets, memory, headers, slow_requests, storm, creations),
        *(lists, cancellations, rewinds, connections),
    )
}


def main(arguments: list[str] | None = None) -> int:
    """Attack until the process is killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.hostile.broker_attacker")
    parser.add_argument("attack", choices=[BROKER_NEIGHBOUR, *BROKER_ATTACKS])
    parser.add_argument("--broker", required=True, metavar="ADDRESS")
    options = parser.parse_args(arguments)
    attack = BROKER_ATTACKS.get(options.attack, neighbour)
    return attack_until_killed(attack(options.broker))


if __name__ == "__main__":
    sys.exit(main())
