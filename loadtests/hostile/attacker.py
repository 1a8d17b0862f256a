"""One attack, until the process is killed: `python -m loadtests.hostile.attacker ATTACK --relay URL`.

The token is in TUNNEL_TOKEN. The process prints `attacking` just before the attack begins.
"""

import argparse
import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable
from itertools import count

import tunnel
from loadtests.hostile.attacking import attack_until_killed
from loadtests.hostile.raw import RawEndpoint, RawLink, read_answer, shrink_window
from tunnel.wire import (
    Connect,
    LinkHeader,
    ListenState,
    ListenStatus,
    Options,
    Packet,
    PacketType,
    Target,
    TargetKind,
    encode_connect,
    encode_link_header,
    encode_listen_state,
    encode_packets,
    question_about,
)

__all__ = ["ATTACKS", "NEIGHBOUR", "main"]

_LINKS = 8  # four for each of two attachments
_PACKETS = 16_000  # in one batch
_UNAUTHENTICATED = 2000
_BODIES = 1000
_BODY_PACKETS = 1024  # the most that a relay takes in one body
_OPEN = 2048  # connections that one endpoint may have open
_OWN = "attacker-own"  # a service of the attacker
_PAUSE_S = 0.01
_NEIGHBOUR_BYTES = 64 * 1024


async def tiny_packets(new: Callable[[int], RawEndpoint]) -> None:
    """Send batches of tiny packets that have no route, on links."""
    batch = b"".join(encode_packets([Packet(PacketType.PING, number, 1, 0, b"") for number in range(1, _PACKETS + 1)]))

    async def flood(seed: int) -> None:
        endpoint = await new(seed).attach()
        links = [await endpoint.link() for _ in range(4)]
        while True:
            await asyncio.gather(*(link.send(batch) for link in links))

    await asyncio.gather(*(flood(seed) for seed in range(_LINKS // 4)))


async def tiny_bodies(new: Callable[[int], RawEndpoint]) -> None:
    """Send bodies of tiny packets that have no route, in exchanges on four lanes of each of two attachments."""
    batch = b"".join(encode_packets([Packet(PacketType.PING, number, 1, 0, b"") for number in range(1, _PACKETS + 1)]))

    async def flood(endpoint: RawEndpoint, lane: int) -> None:
        reader, writer = await endpoint.connect()
        for number in count(1):
            writer.write(endpoint.exchange(number, batch, lane=lane))
            head = await reader.readuntil(b"\r\n\r\n")
            length = next(line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:"))
            await reader.readexactly(int(length.split(b":")[1]))

    endpoints = [await new(seed).attach() for seed in range(2)]
    await asyncio.gather(*(flood(endpoint, lane) for endpoint in endpoints for lane in range(4)))


async def empty_batches(new: Callable[[int], RawEndpoint]) -> None:
    """Send nothing but empty batches, on links."""
    batches = b"".join(encode_link_header(LinkHeader(number, 0, 0)) for number in range(1, 100_001))

    async def flood(endpoint: RawEndpoint) -> None:
        while True:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                link = await endpoint.link()
                link.writer.write(batches)
                await link.writer.drain()
            await asyncio.sleep(_PAUSE_S)

    endpoint = await new(1).attach()
    await asyncio.gather(*(flood(endpoint) for _ in range(4)))


def _connect(number: int, target: Target, *, resume: bool = False, options: Options | None = None) -> Packet:
    """Return a CONNECT with this id, and with a route key of its own."""
    payload = encode_connect(Connect(number.to_bytes(16, "big"), resume, target, 1 << 16, options or Options()))
    return Packet(PacketType.CONNECT, number, 0, 1, payload)


async def connects(new: Callable[[int], RawEndpoint]) -> None:
    """Send CONNECTs to a target that no rule allows, and questions about it."""
    target = Target(TargetKind.TCP, "forbidden.invalid", 1)
    asked = (target, question_about(target))
    batch = b"".join(encode_packets([_connect(number, asked[number % 2]) for number in range(1, 4001)]))
    link = await (await new(1).attach()).link()
    while True:
        await link.send(batch)


async def _send_bodies(endpoint: RawEndpoint, packets: bytes, lane: int) -> None:
    """Send bodies with these packets on one lane, each when the one before is answered."""
    reader, writer = await endpoint.connect()
    for number in count(1):
        writer.write(endpoint.exchange(number, packets, lane=lane))
        await read_answer(reader)


async def connect_bodies(new: Callable[[int], RawEndpoint]) -> None:
    """Send as many CONNECTs as a body may hold, to a target that no rule allows, on four lanes."""
    target = Target(TargetKind.TCP, "forbidden.invalid", 1)
    packets = b"".join(encode_packets([_connect(number, target) for number in range(1, _BODY_PACKETS + 1)]))
    endpoint = await new(1).attach()
    await asyncio.gather(*(_send_bodies(endpoint, packets, lane) for lane in range(4)))


async def _unanswered(new: Callable[[int], RawEndpoint], seed: int) -> tuple[RawEndpoint, list[RawLink]]:
    """Attach, open as many connections as one attachment may, to a service that answers none. Return it, and the
    links of both."""
    service, client = await new(seed).attach(), await new(seed + 1).attach()
    offered, opened = await service.link(), await client.link()
    await offered.send(b"".join(encode_packets([_listen(1, ListenStatus.UP)])))
    target = Target(TargetKind.SERVICE, _OWN, 0)
    await asyncio.sleep(0.1)
    packets = [_connect(number, target) for number in range(1, _OPEN + 1)]
    await opened.send(b"".join(encode_packets(packets)))
    return client, [offered, opened]


def _listen(version: int, state: ListenStatus) -> Packet:
    return Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(ListenState(version, state, 65535, _OWN)))


async def questions(new: Callable[[int], RawEndpoint]) -> None:
    """Ask about a target in bodies and on a link, while many connections have no answer."""
    client, _ = await _unanswered(new, 1)
    asked = question_about(Target(TargetKind.TCP, "127.0.0.1", 1))
    packets = [_connect((1 << 16) + number, asked) for number in range(1, _BODY_PACKETS + 1)]
    batch = b"".join(encode_packets(packets))
    await asyncio.gather(*(_send_bodies(client, batch, lane) for lane in range(4)))


async def flaps(new: Callable[[int], RawEndpoint]) -> None:
    """Offer a service at two endpoints in turn, so that its unanswered connections are handed to and fro."""
    _, links = await _unanswered(new, 1)
    other = await (await new(3).attach()).link()
    for version in count(2):
        await other.send(b"".join(encode_packets([_listen(2 * version, ListenStatus.UP)])))
        await asyncio.sleep(0.01)
        await links[0].send(b"".join(encode_packets([_listen(2 * version, ListenStatus.DOWN)])))
        await asyncio.sleep(0.01)
        await links[0].send(b"".join(encode_packets([_listen(2 * version + 1, ListenStatus.UP)])))
        await asyncio.sleep(0.01)
        await other.send(b"".join(encode_packets([_listen(2 * version + 1, ListenStatus.DOWN)])))
        await asyncio.sleep(0.01)


async def parked(new: Callable[[int], RawEndpoint]) -> None:
    """Resume connections at an endpoint that is not there, and let it attach."""
    for round_ in count():
        acceptor, client = new(10 * round_ + 1), await new(10 * round_ + 2).attach()
        link = await client.link()
        options = Options(endpoint_id=acceptor.identity)
        target = Target(TargetKind.SERVICE, _OWN, 0)
        packets = [_connect(number, target, resume=True, options=options) for number in range(1, _OPEN + 1)]
        await link.send(b"".join(encode_packets(packets)))
        await asyncio.sleep(0.5)
        await acceptor.attach()
        await (await acceptor.link()).send(b"".join(encode_packets([_listen(1, ListenStatus.UP)])))
        link.close()


async def unauthenticated(new: Callable[[int], RawEndpoint]) -> None:
    """Open connections from many addresses: half of them stay idle, half send a token that is not even ASCII."""
    endpoint = new(1)

    async def stay(number: int) -> None:
        source = f"127.0.{1 + number // 250}.{1 + number % 250}"
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                reader, writer = await endpoint.connect(source)
                if number % 2:
                    writer.write(b"POST /exchange HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer \xff\r\n\r\n")
                await reader.read()
                writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(stay(number) for number in range(_UNAUTHENTICATED)))


async def unfinished_bodies(new: Callable[[int], RawEndpoint]) -> None:
    """Send requests whose bodies of 1 MiB lack the last byte."""
    endpoint = await new(1).attach()

    async def stay() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await endpoint.connect()
                writer.write(endpoint.head(1 << 20) + bytes((1 << 20) - 1))
                await reader.read()
                writer.close()
            await asyncio.sleep(1)

    await asyncio.gather(*(stay() for _ in range(_BODIES)))


async def unread_answers(new: Callable[[int], RawEndpoint]) -> None:
    """Send requests, and do not read the answers."""
    endpoint = await new(1).attach()
    request = endpoint.head(4) + b"TUNL"

    async def stay() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await endpoint.connect()
                shrink_window(writer)
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # transports of sockets have it
                while True:
                    writer.write(request * 100)
                    await writer.drain()
            await asyncio.sleep(1)

    await asyncio.gather(*(stay() for _ in range(100)))


async def half_batches(new: Callable[[int], RawEndpoint]) -> None:
    """Begin a batch of 4 MiB on each of many links, and never send its last byte."""

    async def stay(endpoint: RawEndpoint) -> None:
        while True:
            with contextlib.suppress(OSError, asyncio.IncompleteReadError):
                link = await endpoint.link()
                link.writer.write(encode_link_header(LinkHeader(1, 0, 4 << 20)) + bytes((4 << 20) - 1))
                await link.writer.drain()
            await asyncio.sleep(1)

    endpoints = [await new(seed).attach() for seed in range(30)]
    await asyncio.gather(*(stay(endpoint) for endpoint in endpoints for _ in range(4)))


async def repeats(new: Callable[[int], RawEndpoint]) -> None:
    """Repeat one request on many connections, and read no answer."""
    endpoint = await new(1).attach()
    request = endpoint.exchange(1)

    async def stay() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await endpoint.connect()
                shrink_window(writer)
                writer.transport.pause_reading()  # type: ignore[attr-defined]  # transports of sockets have it
                for _ in range(100):
                    writer.write(request)
                    await writer.drain()
                writer.close()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(stay() for _ in range(100)))


async def listens(new: Callable[[int], RawEndpoint]) -> None:
    """Announce services that the user may not offer."""

    def packet(number: int) -> Packet:
        state = ListenState(1, ListenStatus.UP, 1, f"{number:x}".zfill(200))
        return Packet(PacketType.LISTEN_STATE, 0, 0, 0, encode_listen_state(state))

    batch = b"".join(encode_packets([packet(number) for number in range(1000)]))
    link = await (await new(1).attach()).link()
    while True:
        await link.send(batch)


async def attaches(new: Callable[[int], RawEndpoint]) -> None:
    """Make new attachments without end, on connections that stay open."""

    async def flood(first: int) -> None:
        endpoint = new(first)
        reader, writer = await endpoint.connect()
        for seed in count(first):
            writer.write(new(seed).attaching())
            await read_answer(reader)

    await asyncio.gather(*(flood(number << 32) for number in range(8)))


async def one_byte_chunks(new: Callable[[int], RawEndpoint]) -> None:
    """Send chunked bodies with one byte in each chunk."""
    endpoint = await new(1).attach()
    head = endpoint.head(0).replace(b"Content-Length: 0", b"Transfer-Encoding: chunked")

    async def flood() -> None:
        while True:
            with contextlib.suppress(OSError):
                _, writer = await endpoint.connect()
                writer.write(head + b"1\r\nx\r\n" * 100_000)
                await writer.drain()
                writer.close()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(flood() for _ in range(8)))


async def pipelines(new: Callable[[int], RawEndpoint]) -> None:
    """Send thousands of requests on each connection without waiting for an answer."""
    endpoint = await new(1).attach()

    async def flood() -> None:
        while True:
            with contextlib.suppress(OSError):
                reader, writer = await endpoint.connect()
                reading = asyncio.ensure_future(reader.read(-1))
                for _ in range(20):
                    writer.write(endpoint.exchange(1) * 500)
                    await writer.drain()
                reading.cancel()
                writer.close()
            await asyncio.sleep(_PAUSE_S)

    await asyncio.gather(*(flood() for _ in range(8)))


NEIGHBOUR = "honest-neighbour"


async def neighbour(url: str, token: str, port: int) -> None:
    """Act as an honest user whose streams send all they can to an echo server."""

    async def stream(endpoint: tunnel.Attachment) -> None:
        reader, writer = await endpoint.open_connection("127.0.0.1", port)
        reading = asyncio.ensure_future(_drain(reader))
        while not reading.done():
            writer.write(bytes(_NEIGHBOUR_BYTES))
            await writer.drain()

    async with tunnel.attach(url, token=token, proxy=None, carrier="link") as endpoint:
        await asyncio.gather(*(stream(endpoint) for _ in range(4)))


async def _drain(reader: asyncio.StreamReader) -> None:
    while await reader.read(_NEIGHBOUR_BYTES):
        pass


ATTACKS: dict[str, Callable[[Callable[[int], RawEndpoint]], Awaitable[None]]] = {
    "tiny-packets": tiny_packets,
    "tiny-bodies": tiny_bodies,
    "empty-batches": empty_batches,
    "connects": connects,
    "connect-bodies": connect_bodies,
    "questions": questions,
    "flaps": flaps,
    "parked": parked,
    "unauthenticated": unauthenticated,
    "unfinished-bodies": unfinished_bodies,
    "unread-answers": unread_answers,
    "half-batches": half_batches,
    "repeats": repeats,
    "listens": listens,
    "attaches": attaches,
    "one-byte-chunks": one_byte_chunks,
    "pipelines": pipelines,
}


def main(arguments: list[str] | None = None) -> int:
    """Attack until the process is killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.hostile.attacker")
    parser.add_argument("attack", choices=[NEIGHBOUR, *ATTACKS])
    parser.add_argument("--relay", required=True, metavar="URL")
    parser.add_argument("--echo", type=int, default=0, metavar="PORT", help="port of the neighbour's echo server")
    options = parser.parse_args(arguments)
    token = os.environ["TUNNEL_TOKEN"]
    if options.attack == NEIGHBOUR:
        return attack_until_killed(neighbour(options.relay, token, options.echo))
    return attack_until_killed(ATTACKS[options.attack](lambda seed: RawEndpoint(options.relay, token, seed)))


if __name__ == "__main__":
    sys.exit(main())
