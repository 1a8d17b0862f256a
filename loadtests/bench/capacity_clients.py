"""Idle attachments: `python -m loadtests.bench.capacity_clients URL CARRIER COUNT`, with the token in TUNNEL_TOKEN.

The process says "ready" when all are attached, and then keeps them until it is killed.
"""

import asyncio
import os
import sys
from contextlib import AsyncExitStack

import tunnel
from tunnel.process.event_loops import new_event_loop

__all__ = ["main"]

_AT_ONCE = 16


async def _attach(url: str, carrier: str, count: int) -> None:
    token = os.environ["TUNNEL_TOKEN"]
    turns = asyncio.Semaphore(_AT_ONCE)
    async with AsyncExitStack() as stack:

        async def one() -> None:
            async with turns:
                attachment = tunnel.attach(
                    url,
                    token=token,
                    proxy=None,
                    carrier=carrier,
                    attach_timeout=None,  # a busy machine needs long for ten thousand
                    linger=0.0,
                    encryption="off",
                )
                await stack.enter_async_context(attachment)

        await asyncio.gather(*(one() for _ in range(count)))
        print("ready", flush=True)
        await asyncio.Event().wait()


def main() -> None:
    """Attach, and stay attached."""
    url, carrier, count = sys.argv[1:]
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_attach(url, carrier, int(count)))


if __name__ == "__main__":
    main()
