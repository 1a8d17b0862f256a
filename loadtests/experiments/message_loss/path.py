"""The path from the sender to its broker or relay: a forwarder that delays every byte, in each direction.

When it is killed, the bytes that it holds are lost, as when a router or a proxy dies.
"""

import argparse
import asyncio
import contextlib
import sys
from collections.abc import Sequence

import structlog

from tunnel.process.command_line import configure_log

__all__ = ["forward", "main"]

_log = structlog.get_logger("path")
_READ_BYTES = 64 * 1024
_HELD_CHUNKS = 256  # at most 16 MiB


async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    """Forward bytes in one direction, each `delay_s` after it arrived, until either side ends."""
    loop = asyncio.get_running_loop()
    held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_HELD_CHUNKS)

    async def take() -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(_READ_BYTES):
                await held.put((loop.time() + delay_s, data))
        await held.put((loop.time() + delay_s, b""))

    taking = loop.create_task(take())
    try:
        while True:
            due, data = await held.get()
            await asyncio.sleep(due - loop.time())
            if not data:
                break
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
    except ConnectionError:
        writer.close()
    finally:
        taking.cancel()


async def _run(port: int, to: int, delay_s: float) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", to)
        except OSError as error:
            _log.warning("upstream unreachable", error=str(error))
            writer.close()
            return
        await asyncio.gather(forward(reader, far_writer, delay_s), forward(far_reader, writer, delay_s))
        for side in (writer, far_writer):
            side.close()

    async with await asyncio.start_server(serve, "127.0.0.1", port):
        _log.info("listening", port=port, to=to)
        await asyncio.Event().wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Forward until interrupted."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.message_loss.path",
        description="A TCP forwarder on loopback that delays every byte.",
        epilog="example: python -m loadtests.experiments.message_loss.path --listen 4000 --to 4222 --delay-ms 20",
    )
    parser.add_argument("--listen", type=int, required=True, metavar="PORT")
    parser.add_argument("--to", type=int, required=True, metavar="PORT")
    parser.add_argument(
        "--delay-ms", type=float, default=20.0, metavar="MS", help="delay in each direction (default: 20)"
    )
    arguments = parser.parse_args(argv)
    configure_log("info")
    try:
        asyncio.run(_run(arguments.listen, arguments.to, arguments.delay_ms / 1000))
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
