"""One attack on a separate exit, until the process is killed: `python -m loadtests.hostile.exit_attacker ATTACK`.

The token is in TUNNEL_TOKEN. The process prints `attacking` just before the attack begins.
"""

import argparse
import asyncio
import os
import socket
import sys
from collections.abc import Awaitable, Callable
from itertools import count
from typing import cast

import tunnel
from loadtests.harness.ports import hold_port
from loadtests.hostile.attacking import attack_until_killed
from loadtests.hostile.raw import RawEndpoint
from tunnel.wire import Connect, Options, Packet, PacketType, Target, TargetKind, encode_connect, encode_packets

__all__ = ["EXIT_ATTACKS", "EXIT_NEIGHBOUR", "main"]

EXIT_NEIGHBOUR = "exit-neighbour"
_NEIGHBOUR_DOWNLOADS = 4
_DOWNLOADS = 500
_UNREAD = 800  # if their receive buffers grew, they would use up what Linux grants to TCP on a machine with 8 GB
_CONNECTS = 512  # in one batch
# An exit dials about as many meanwhile. If more came, thousands would wait, as many connections as an honest user may
# have open, and the figures would show how long Python's collector takes to visit them: 0.2 s and more.
_PAUSE_S = 0.5
_CHUNK_BYTES = 64 * 1024
# Of the targets. If the kernel let the buffers grow, to 4 MiB each, it would become short of memory for the TCP
# connections of all processes and drop what they receive. Targets on other machines do not do this to an exit.
_SEND_BUFFER_BYTES = 256 * 1024


class _Source(asyncio.Protocol):
    """A target that sends all it can."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        sock = transport.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER_BYTES)
        self._is_full = False
        self.resume_writing()

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        while not self._is_full and not self._transport.is_closing():
            self._transport.write(bytes(_CHUNK_BYTES))


async def _download(url: str, token: str, number: int, *, reads: bool = True) -> None:
    async def stream(endpoint: tunnel.Attachment) -> None:
        reader, _ = await endpoint.open_connection("127.0.0.1", port)
        while reads and await reader.read(_CHUNK_BYTES):
            pass
        await asyncio.Event().wait()

    server = await asyncio.get_running_loop().create_server(_Source, "127.0.0.1", 0, backlog=number)
    port = server.sockets[0].getsockname()[1]
    async with server, tunnel.attach(url, token=token, proxy=None, carrier="link") as endpoint:
        await asyncio.gather(*(stream(endpoint) for _ in range(number)))


async def neighbour(url: str, token: str) -> None:
    """Act as an honest user with a few downloads through the exit."""
    await _download(url, token, _NEIGHBOUR_DOWNLOADS)


async def downloads(url: str, token: str) -> None:
    """Download on hundreds of connections through the exit."""
    await _download(url, token, _DOWNLOADS)


async def unread(url: str, token: str) -> None:
    """Ask for downloads on thousands of connections through the exit, and read none of them."""
    await _download(url, token, _UNREAD, reads=False)


async def connects(url: str, token: str) -> None:
    """Send CONNECTs in batches, to a port at which nothing listens."""
    with hold_port() as port:
        target = Target(TargetKind.TCP, "127.0.0.1", port)
        link = await (await RawEndpoint(url, token, 1).attach()).link()
        for first in count(1, _CONNECTS):
            made = [
                (number, Connect(number.to_bytes(16, "big"), False, target, 1 << 16, Options()))
                for number in range(first, first + _CONNECTS)
            ]
            packets = [Packet(PacketType.CONNECT, number, 0, 1, encode_connect(connect)) for number, connect in made]
            await link.send(b"".join(encode_packets(packets)))
            await asyncio.sleep(_PAUSE_S)


EXIT_ATTACKS: dict[str, Callable[[str, str], Awaitable[None]]] = {
    "exit-downloads": downloads,
    "exit-unread": unread,
    "exit-connects": connects,
}


def main(arguments: list[str] | None = None) -> int:
    """Attack until the process is killed."""
    parser = argparse.ArgumentParser(prog="python -m loadtests.hostile.exit_attacker")
    parser.add_argument("attack", choices=[EXIT_NEIGHBOUR, *EXIT_ATTACKS])
    parser.add_argument("--relay", required=True, metavar="URL")
    options = parser.parse_args(arguments)
    attack = EXIT_ATTACKS.get(options.attack, neighbour)
    return attack_until_killed(attack(options.relay, os.environ["TUNNEL_TOKEN"]))


if __name__ == "__main__":
    sys.exit(main())
