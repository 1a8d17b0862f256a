"""A TCP echo server on loopback that runs until it is killed: `python -m loadtests.harness.echo`.

It prints `echo PORT` when it listens.
"""

import asyncio
import sys
from typing import cast

from tunnel.process.event_loops import new_event_loop

__all__ = ["Echo", "main"]


class Echo(asyncio.Protocol):
    """Echoes one connection; stops reading while the client does not read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._transport.write(data)

    def eof_received(self) -> bool:
        self._transport.write_eof()
        return False

    def pause_writing(self) -> None:
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._transport.resume_reading()


async def serve() -> None:
    """Listen at a free port, print `echo PORT`, and serve forever."""
    server = await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=1024)
    print(f"echo {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


def main() -> int:
    """Run the server; it ends only when the process is killed."""
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
