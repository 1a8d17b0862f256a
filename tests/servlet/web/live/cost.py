"""What the live page costs a relay with 10,000 connections: `python -m tests.servlet.web.live.cost`.

It measures the processor time of this process, in which only the relay works, while pages look at it and while none
does. It prints the share of one core, and the longest turn of the event loop.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator

from tests.servlet.rig import ANYWHERE, LOOPBACK, Client, exchange_body, relay, settings
from tests.servlet.support import accepted, connect, key
from tests.servlet.web.rig import SECRET
from tunnel.wire import Packet, PacketType, decode_connect, parse_packets
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.web.running import RunningRelay

__all__ = ["main"]

CONNECTIONS = 10_000
_EACH = 1000  # by one endpoint, in one body
_SECONDS = 30.0
_LIMITS = {
    "routes_max": 2 * CONNECTIONS,
    "routes_per_user_max": CONNECTIONS,
    "settle_us": 0,
    "hold_us_max": 1000,
    "process_bytes_max": 1 << 30,
    "user_bytes_max": 512 << 20,
    "exit_mailbox_bytes_max": 512 << 20,
}


async def fill(running: RunningRelay) -> None:
    """Open the connections: of ann and bob, through one exit."""
    async with Client(running, "exits") as exit_, Client(running, "ann") as ann, Client(running, "bob") as bob:
        await exit_.attach(seed=99, name="exit")
        numbers: Iterator[int] = iter(range(1, 1 << 20))
        await exit_.post(exchange_body(exit_.epoch, next(numbers), seed=99, hold_ms=0))
        for part in range(CONNECTIONS // _EACH):
            client, seed = (ann, bob)[part % 2], part + 1
            await client.attach(seed=seed, name=f"endpoint-{seed}")
            first = part * _EACH + 1
            opening = [connect(source, route_key=key(source)) for source in range(first, first + _EACH)]
            await client.post(exchange_body(client.epoch, 1, *opening, seed=seed, hold_ms=0))
            left, serial = _EACH, 0
            answers: list[Packet] = []
            while left:
                body = exchange_body(
                    exit_.epoch, next(numbers), *answers, seed=99, hold_ms=0, pull=True, serial_received=serial
                )
                message = (await exit_.post(body)).message
                serial, answers = message.serial, []
                for packet in parse_packets(message.data)[0]:
                    if packet.type == PacketType.CONNECT:
                        found = decode_connect(packet.payload)
                        assert found is not None
                        own = (1 << 20) + packet.source
                        answers.append(accepted(packet.source, own, route_key=found.route_key))
                        left -= 1
            last = exchange_body(exit_.epoch, next(numbers), *answers, seed=99, hold_ms=0, serial_received=serial)
            await exit_.post(last)
    assert running.relay.host.switch.stats().routes_bound == CONNECTIONS, running.relay.host.switch.stats()


async def longest_turn(ends: float) -> float:
    """Return the longest time until the loop came round again, in processor time of this thread."""
    longest, before = 0.0, time.thread_time()
    while time.monotonic() < ends:
        await asyncio.sleep(0.0005)
        now = time.thread_time()
        longest, before = max(longest, now - before), now
    return longest


async def looked(running: RunningRelay, query: str, pages: int) -> None:
    """Measure, and print a line."""
    reader = (
        "import sys, urllib.request\n"
        "request = urllib.request.Request(sys.argv[1], headers={'Tunnel-Admin': sys.argv[2]})\n"
        "with urllib.request.urlopen(request) as answer:\n"
        "    while answer.read1(1 << 16): pass\n"
    )
    url = f"http://{running.admin}/events?{query}"
    lookers = [await asyncio.create_subprocess_exec(sys.executable, "-c", reader, url, SECRET) for _ in range(pages)]
    await asyncio.sleep(3)
    began_s, spent_s = time.monotonic(), time.process_time()
    await asyncio.sleep(_SECONDS)
    share = (time.process_time() - spent_s) / (time.monotonic() - began_s)
    longest = await longest_turn(time.monotonic() + 6)
    for one in lookers:
        one.kill()
        await one.wait()
    print(
        f"{pages} pages, {query or 'nothing'}: {share:.2%} of a core, longest turn {longest * 1000:.1f} ms", flush=True
    )


async def main() -> None:
    grants = GrantTable({"ann": ANYWHERE, "bob": ANYWHERE, "exits": Grant(exit=True)})
    config = settings(admin=LOOPBACK, admin_secret=SECRET, grants=grants, switch=_LIMITS)
    async with relay(config) as running:
        await fill(running)
        print(f"{running.relay.host.switch.stats().routes_bound} connections", flush=True)
        await looked(running, "", 0)
        await looked(running, "table=connections&limit=50", 1)
        await looked(running, "table=connections&limit=50&sort=rate", 1)
        await looked(running, "table=connections&limit=50&sort=target&find=endpoint-7", 1)
        await looked(running, "table=connections&limit=50&sort=rate", 4)


if __name__ == "__main__":
    asyncio.run(main())
