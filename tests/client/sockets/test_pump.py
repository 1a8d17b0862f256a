"""The pump behind a TunnelSocket, between a loopback socket and a connection that the test plays."""

import asyncio
import socket

from tests.support.loops import in_loop
from tunnel import ResetError
from tunnel.splice import Side, TunnelSide, splice
from tunnel_client.borrowed.pair import listen_near
from tunnel_client.sockets.pump import NearSide


class Silent(asyncio.Transport):
    """A connection through the tunnel on which nothing happens."""

    def pause_reading(self) -> None:
        """Nothing comes."""

    def resume_reading(self) -> None:
        """Nothing comes."""

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        """Nobody is told."""

    def abort(self) -> None:
        """Nobody is told."""


@in_loop
async def test_a_reset_does_not_wait_for_an_application_that_is_gone() -> None:
    """What the kernel had not handed over by then it never will."""
    with listen_near() as server:
        application = socket.create_connection(server.getsockname())
        sock, _ = server.accept()
    ended: asyncio.Future[Side] = asyncio.get_running_loop().create_future()
    sock.setblocking(False)
    far = TunnelSide()
    far.connection_made(Silent())
    near = NearSide(sock, 0, lambda side, error: ended.set_result(side))
    await asyncio.get_running_loop().create_connection(lambda: near, sock=sock)
    splice(near, far)
    application.close()
    await near.ended_reading
    near.write(b"nobody hears this")
    for _ in range(1000):
        if near.names() is None:
            break
        await asyncio.sleep(0.001)
    far.connection_lost(ResetError("reset by the peer"))
    assert await ended is near
    assert near.descriptor < 0
