"""A forwarder that resets each connection at a certain age: `python -m loadtests.bench.peers.cutter`.

Some firewalls do the same. It prints `ready PORT` when it listens.
"""

import argparse
import asyncio
import contextlib
import signal

from tunnel.messages.resets import reset_stream

__all__ = ["main", "serve"]

_READ_BYTES = 256 * 1024


async def _pass(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(_READ_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def serve(upstream: int, age_s: float) -> asyncio.Server:
    """Listen at a free port; return the server."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", upstream)
        except OSError:
            reset_stream(writer)
            return
        try:
            async with asyncio.timeout(age_s):
                await asyncio.gather(_pass(reader, far_writer), _pass(far_reader, writer))
        except TimeoutError:
            reset_stream(writer)
            reset_stream(far_writer)
        finally:
            writer.close()
            far_writer.close()

    return await asyncio.start_server(connected, "127.0.0.1", 0)


async def _run(upstream: int, age_s: float) -> None:
    server = await serve(upstream, age_s)
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    print(f"ready {server.sockets[0].getsockname()[1]}", flush=True)
    await stopped.wait()


def main(arguments: list[str] | None = None) -> int:
    """Run until SIGTERM."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.bench.peers.cutter",
        description=__doc__,
        epilog="example: python -m loadtests.bench.peers.cutter --upstream 8080 --age 0.5",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--upstream", type=int, required=True, metavar="PORT", help="port to which connections are forwarded"
    )
    parser.add_argument(
        "--age", type=float, default=0.5, metavar="S", help="age at which a connection is reset (default: 0.5)"
    )
    options = parser.parse_args(arguments)
    asyncio.run(_run(options.upstream, options.age))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
