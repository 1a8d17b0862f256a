"""A receiver process: it records the messages of its main subscription until a terminate message ends it."""

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

import nats
import structlog
from nats.aio.msg import Msg

from loadtests.experiments.message_loss.protocol import CONTROL, GROUP, HELLO, ID_HEADER, MAIN
from loadtests.experiments.message_loss.records import Recorder
from tunnel.process.command_line import configure_log

__all__ = ["main", "receive"]

_log = structlog.get_logger("receiver")
# After the terminate message, the receiver ends when no message has come for this time. The other servers of a cluster
# deliver their last messages within it.
_QUIET_S = 1.0


async def receive(port: int, recorder: Recorder) -> int:
    """Record messages until the terminate message and a quiet second after it; return their number."""
    count = 0
    moved = asyncio.Event()
    ended = asyncio.Event()

    async def on_message(message: Msg) -> None:
        nonlocal count
        count += 1
        number = int((message.headers or {}).get(ID_HEADER, "0"))
        recorder.received(number, len(message.data))
        moved.set()

    async def on_control(message: Msg) -> None:
        ended.set()

    async def on_hello(message: Msg) -> None:
        if not greeted.is_set():
            greeted.set()
            _log.info("greeted")

    greeted = asyncio.Event()
    client = await nats.connect(f"nats://127.0.0.1:{port}", max_reconnect_attempts=0)
    try:
        await client.subscribe(MAIN, queue=GROUP, cb=on_message)
        await client.subscribe(CONTROL, cb=on_control)
        await client.subscribe(HELLO, cb=on_hello)
        await client.flush()
        _log.info("subscribed", port=port)
        await ended.wait()
        while True:
            moved.clear()
            try:
                async with asyncio.timeout(_QUIET_S):
                    await moved.wait()
            except TimeoutError:
                return count
    finally:
        await client.close()


def main(argv: Sequence[str] | None = None) -> int:
    """Run one receiver; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.message_loss.receiver",
        description="A receiver of the message-loss experiment.",
        epilog="example: python -m loadtests.experiments.message_loss.receiver --port 4223 --name receiver-0 "
        "--directory build/x",
    )
    parser.add_argument("--port", type=int, required=True, help="port of its server, on loopback")
    parser.add_argument("--name", required=True)
    parser.add_argument("--directory", type=Path, required=True, help="directory for its records")
    arguments = parser.parse_args(argv)
    configure_log("info")
    try:
        with Recorder(arguments.directory, arguments.name) as recorder:
            count = asyncio.run(receive(arguments.port, recorder))
    except KeyboardInterrupt:
        return 130
    _log.info("ended", messages=count)
    return 0


if __name__ == "__main__":
    sys.exit(main())
