"""Send lines to a service through a tunnel, and print what the hooks of the tunnel report meanwhile. Run it as

TUNNEL_TOKEN=... python examples/watch.py https://relay.example reports

"reports" is a service that answers each line with a line, or HOST:PORT. Lines are read from standard input. Restart the
relay between two lines: the hooks report it, and the stream goes on.
"""

import asyncio
import os
import sys

import tunnel


class Watcher:
    """Connection listener, error listener and statistics collector of an attachment, all in one object.

    The methods are called in the event loop between two steps of the tunnel, so they must return at once.
    """

    def __init__(self) -> None:
        self.filled = 0
        self.filled_bytes = 0
        self.written_bytes = 0

    def disconnected(self, reason: str) -> None:
        """The relay does not answer, or has forgotten this attachment. Streams wait, up to the user timeout.

        Or the relay has refused this attachment for good, which ends all streams.
        """
        print("disconnected:", reason, flush=True)

    def reconnected(self) -> None:
        """The relay answers again. Streams continue where they were."""
        print("reconnected", flush=True)

    def read_closed(self, text: str) -> None:
        """One HTTP connection to the relay has failed. This alone does not mean that the relay is away."""
        print("connection failed:", text, flush=True)

    def increment_out_bytes(self, size_bytes: int) -> None:
        """A batch of this size was filled with packets."""
        self.filled += 1
        self.filled_bytes += size_bytes

    def register_write(self, size_bytes: int) -> None:
        """Bytes were written to an HTTP connection. The size includes headers, and everything that was repeated."""
        self.written_bytes += size_bytes


async def watch(url: str, target: str) -> None:
    """Send each line of standard input, and print the answer."""
    host, _, port = target.partition(":")
    watcher = Watcher()
    async with tunnel.attach(url, token=os.environ.get("TUNNEL_TOKEN")) as attachment:
        attachment.add_connection_listener(watcher)
        attachment.add_error_listener(watcher)
        attachment.set_statistics_collector(watcher)
        reader, writer = await attachment.open_connection(host, int(port) if port else None, timeout=30.0)
        while line := await asyncio.to_thread(sys.stdin.buffer.readline):
            writer.write(line)
            print("answer:", (await reader.readline()).decode().rstrip(), flush=True)
        writer.close()
        await writer.wait_closed()
    print(f"{watcher.filled_bytes} bytes in {watcher.filled} batches, {watcher.written_bytes} bytes written")


def main() -> int:
    """Run the program; return its exit code."""
    if len(sys.argv) != 3:
        print("usage: watch.py URL SERVICE|HOST:PORT", file=sys.stderr)
        return 2
    try:
        asyncio.run(watch(*sys.argv[1:]))
    except tunnel.TunnelError as error:
        print("failed:", error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
