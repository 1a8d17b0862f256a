"""What several tests of the exchange share: units, an attached loop of lanes, and the goals for what it carries."""

from collections.abc import Callable
from random import Random

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tunnel.exchange import LaneConfig, Request
from tunnel.wire import Message, Status, StatusCode, encode_envelope

__all__ = [
    "KIB",
    "MIB",
    "MS",
    "PACKET_BYTES",
    "SECOND",
    "STEADY",
    "attached_loop",
    "carried",
    "echoes",
    "encoded",
    "pushes",
    "received",
    "status",
]

KIB = 1024
MS = 1_000
SECOND = 1_000_000
STEADY = LaneConfig(adapt_lanes=False)


def encoded(message: Message) -> bytes:
    return b"".join(encode_envelope(message))


def status(code: StatusCode, retry_after_ms: int = 0) -> bytes:
    return encoded(Status(code, retry_after_ms, "text"))


def pushes(*fates: Fate) -> Callable[[Request, int], Fate]:
    """Give these fates, in turn, to attempts of pushes, repeats included; all other attempts succeed."""
    left = list(fates)

    def fate(request: Request, now: int) -> Fate:
        return left.pop(0) if left and request.lane >= 0 and not request.pull else Fate()

    return fate


def attached_loop(config: LaneConfig = STEADY, relay: Relay | None = None, packets: int = 0) -> Loop:
    """Return a loop that has attached (after 20 ms), with `packets` small packets to push."""
    loop = Loop(config, relay=relay or Relay(Random(2)))
    loop.run(30 * MS)
    loop.queue.extend(data_packet(name) for name in range(1, packets + 1))
    return loop


def received(loop: Loop) -> list[int]:
    return [name for _, name in loop.relay.received]


MIB = 1024 * KIB
PACKET_BYTES = 7_500  # about an eighth of the first body, as the core cuts them


def carried(loop: Loop, *, upload: bool, seconds: int = 20) -> float:
    """Return the MiB per second that the path carries."""
    before = len(loop.relay.received if upload else loop.delivered)
    start_us = loop.now
    while loop.now < start_us + seconds * SECOND:
        if upload and len(loop.queue) < 1000:
            loop.queue.extend([data_packet(1, PACKET_BYTES)] * 1000)
        elif not upload and len(loop.relay.outbox.frames) < 1000:
            loop.relay.give([data_frame(1, PACKET_BYTES)] * 1000)
        loop.run(loop.now + 10 * MS)
    return (len(loop.relay.received if upload else loop.delivered) - before) * PACKET_BYTES / MIB / seconds


def echoes(loop: Loop, count: int) -> list[int]:
    """Send packets that are answered at once, one after another; return the times from packet to answer."""
    times = []
    for name in range(count):
        start_us, sent, delivered = loop.now, len(loop.relay.received), len(loop.delivered)
        loop.queue.append(data_packet(name))
        loop.until(lambda sent=sent: len(loop.relay.received) > sent, loop.now + 60 * SECOND)  # type: ignore[misc]
        loop.relay.give([data_frame(name)])
        loop.until(lambda before=delivered: len(loop.delivered) > before, loop.now + 60 * SECOND)  # type: ignore[misc]
        times.append(loop.now - start_us)
    return times
