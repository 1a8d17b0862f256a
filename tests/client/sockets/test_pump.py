"""Both sides behind a TunnelSocket: a loopback socket, and a connection through the tunnel that the test plays."""

import asyncio
import os
import socket
import struct
from collections.abc import Callable
from typing import TypeAlias

import pytest
import uvloop

from tests.support.loops import in_loop, run
from tests.support.relays import MemoryTestRelay
from tunnel import ResetError, StreamReader, StreamWriter
from tunnel.streams.splice import Side, splice
from tunnel_client.borrowed.pair import listen_near
from tunnel_client.settings import RelaySettings
from tunnel_client.sockets.connector import Connector
from tunnel_client.sockets.pump import FarSide, NearSide

NewLoop: TypeAlias = Callable[[], asyncio.AbstractEventLoop]


class Silent(asyncio.Transport):
    """A tunnel connection on which nothing happens."""

    def pause_reading(self) -> None:
        """Do nothing: no data arrives."""

    def resume_reading(self) -> None:
        """Do nothing: no data arrives."""

    def is_closing(self) -> bool:
        return False

    def write_eof(self) -> None:
        """Do nothing: there is no peer."""

    def abort(self) -> None:
        """Do nothing: there is no peer."""


@in_loop
async def test_a_reset_does_not_wait_for_an_application_that_has_closed() -> None:
    """Data that the kernel has not delivered to the application by then can never be delivered."""
    with listen_near() as server:
        application = socket.create_connection(server.getsockname())
        sock, _ = server.accept()
    ended: asyncio.Future[Side] = asyncio.get_running_loop().create_future()
    sock.setblocking(False)
    far = FarSide()
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


class FakeTransport(asyncio.Transport):
    """A tunnel connection whose far side the test plays. `log` records the calls; `reads` says whether the far side may
    deliver data."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[str] = []
        self.reads = True
        self.write_error: Exception | None = None

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return "close" in self.log or "abort" in self.log

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.log.append("write")

    def write_eof(self) -> None:
        self.log.append("eof")

    def close(self) -> None:
        self.log.append("close")

    def abort(self) -> None:
        self.log.append("abort")


class Spliced:
    """An application's socket, our end of it, and the far side that the test plays."""

    application: socket.socket
    near: NearSide
    far: FarSide
    transport: FakeTransport

    async def __aenter__(self) -> "Spliced":
        loop = asyncio.get_running_loop()
        with listen_near() as server:
            self.application = socket.create_connection(server.getsockname())
            sock, _ = server.accept()
        self.application.setblocking(False)
        sock.setblocking(False)
        self.ended: asyncio.Future[Side] = loop.create_future()
        self.far, self.transport = FarSide(), FakeTransport()
        self.far.connection_made(self.transport)
        self.near = NearSide(sock, 0, lambda side, error: self.ended.set_result(side))
        await loop.create_connection(lambda: self.near, sock=sock)
        splice(self.near, self.far)
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.application.close()
        self.near.abort()
        await self.ended

    async def received(self) -> tuple[int, str]:
        """Read as the application until the end; return the number of bytes, and "end" or "reset"."""
        loop, size = asyncio.get_running_loop(), 0
        try:
            while data := await loop.sock_recv(self.application, 1 << 16):
                size += len(data)
        except ConnectionResetError:
            return size, "reset"
        return size, "end"


ANSWER = bytes(16_000_000)  # more than the kernel takes at once


@in_loop
async def test_an_answer_is_delivered_whole_although_the_peer_left_our_bytes_unread() -> None:
    """As with an early 413: the answer arrives up to its clean end, although data that we wrote is lost."""
    async with Spliced() as pair:
        pair.far.data_received(ANSWER)
        pair.transport.write_error = ResetError("bytes of ours were not read")
        pair.far.eof_received()
        assert await pair.received() == (len(ANSWER), "end")


@pytest.mark.parametrize("size", [0, 100, 100_000])
@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def test_an_answer_ends_cleanly_although_the_far_side_is_lost_right_after_its_end(new_loop: NewLoop, size: int) -> None:
    """No reset overtakes the end of file, which the loop passes on after it has told the side of its last write."""

    async def scenario() -> None:
        async with Spliced() as pair:
            with socket.socket(fileno=os.dup(pair.near.descriptor)) as ours:
                ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)  # the kernel takes little at a time ...
            pair.application.setsockopt(socket.IPPROTO_TCP, socket.TCP_QUICKACK, 1)  # ... and hands it over at once
            pair.far.data_received(ANSWER[:size])
            pair.far.eof_received()
            pair.far.connection_lost(ResetError("bytes of ours were not read"))
            assert await pair.received() == (size, "end")

    run(scenario(), new_loop)


@in_loop
async def test_bytes_that_a_peer_left_unread_do_not_cost_its_answer() -> None:
    """The application was still writing when the peer answered and closed; as with an early 413, the answer arrives."""
    async with Spliced() as pair:
        pair.transport.write_error = ResetError("bytes of ours were not read")
        pair.near.data_received(b"more")
        pair.far.data_received(ANSWER)
        pair.near.data_received(b"more")
        pair.far.eof_received()
        pair.near.data_received(b"more")
        pair.far.connection_lost(pair.transport.write_error)
        assert await pair.received() == (len(ANSWER), "end")
        assert pair.transport.log == ["write"] * 3


@in_loop
async def test_writing_after_the_far_side_was_lost_keeps_the_pending_answer() -> None:
    async with Spliced() as pair:
        pair.far.data_received(ANSWER)
        pair.transport.write_error = ResetError("bytes of ours were not read")
        pair.far.connection_lost(pair.transport.write_error)
        pair.near.data_received(b"late")
        assert await pair.received() == (len(ANSWER), "reset")


@in_loop
async def test_an_application_that_writes_to_a_lost_peer_gets_a_reset_at_once() -> None:
    async with Spliced() as pair:
        pair.transport.write_error = ResetError("bytes of ours were not read")
        pair.near.data_received(b"more")
        pair.far.connection_lost(pair.transport.write_error)
        assert await pair.received() == (0, "reset")
        assert pair.transport.log == ["write"]


@in_loop
async def test_a_reset_by_the_application_after_both_ends_does_not_abort_the_tunnel() -> None:
    """The far side may still be delivering data that was written before."""
    async with Spliced() as pair:
        pair.far.data_received(ANSWER)  # the application reads none of it
        pair.near.eof_received()
        pair.far.eof_received()
        pair.application.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        pair.application.close()
        await pair.ended
        assert pair.transport.log == ["eof", "close"]


@in_loop
async def test_a_cut_after_the_application_ended_its_direction_is_no_clean_end() -> None:
    """An application that has sent its whole request would otherwise take half an answer for a whole one."""
    async with Spliced() as pair:
        pair.application.shutdown(socket.SHUT_WR)
        await pair.near.ended_reading
        pair.far.data_received(b"half")
        pair.far.connection_lost(ResetError("reset by the peer"))
        assert await pair.received() == (4, "reset")


@in_loop
async def test_an_application_that_closed_after_its_end_is_noticed_when_the_peer_goes_on_sending() -> None:
    """The loop does not report the close, so the far side could send an endless answer that nothing reads."""
    async with Spliced() as pair:
        pair.application.shutdown(socket.SHUT_WR)
        await pair.near.ended_reading
        pair.application.close()
        pair.far.data_received(b"once")
        async with asyncio.timeout(10):
            await pair.ended
        assert pair.transport.log == ["eof", "abort"]


@in_loop
async def test_the_kernel_is_told_to_probe_an_application_that_ended_its_direction() -> None:
    """While the far side is silent, only a keepalive shows that the application has closed."""
    async with Spliced() as pair:
        with socket.socket(fileno=os.dup(pair.near.descriptor)) as ours:
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 0
            pair.application.shutdown(socket.SHUT_WR)
            await pair.near.ended_reading
            assert ours.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
            assert ours.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 30


@in_loop
async def test_an_application_that_reads_slowly_pauses_the_tunnel_until_it_has_read() -> None:
    async with Spliced() as pair:
        pair.far.data_received(ANSWER)
        assert not pair.transport.reads
        size = 0
        async with asyncio.timeout(10):
            while size < len(ANSWER):
                size += len(await asyncio.get_running_loop().sock_recv(pair.application, 1 << 20))
        assert pair.transport.reads


@in_loop
async def test_a_slow_tunnel_pauses_the_application() -> None:
    async with Spliced() as pair:
        pair.far.pause_writing()
        assert not pair.near._transport.is_reading()
        pair.far.resume_writing()
        assert pair.near._transport.is_reading()


@pytest.mark.parametrize("size", [300, 3_000_000])
@in_loop
async def test_an_answer_before_the_request_is_read_arrives_whole(size: int) -> None:
    """Through a real switch: the service answers, and closes while most of the request is unread."""

    async def answer_early(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.read(1000)
        writer.write(bytes(size))
        writer.close()

    loop = asyncio.get_running_loop()
    async with MemoryTestRelay() as relay, relay.attach("bob", linger=1) as service, relay.attach(linger=1) as client:
        await service.start_server(answer_early, "early")
        _, far = await client.create_connection(FarSide, "early")
        with listen_near() as server:
            application = socket.create_connection(server.getsockname())
            sock, _ = server.accept()
        with application:
            application.setblocking(False)
            sock.setblocking(False)
            near = NearSide(sock, 0, lambda side, error: None)
            await loop.create_connection(lambda: near, sock=sock)
            splice(near, far)
            await loop.sock_sendall(application, bytes(400_000))
            got = 0
            while data := await loop.sock_recv(application, 1 << 16):
                got += len(data)
            assert got == size
        near.abort_both()


@in_loop
async def test_a_connector_retires_although_a_socket_could_not_be_joined() -> None:
    connector = Connector(RelaySettings("http://127.0.0.1:1", proxy=None), linger=0)
    far = FarSide()
    far.connection_made(Silent())
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    with pytest.raises(ValueError, match="Stream Socket"):
        await connector.join(far, datagrams)
    assert datagrams.fileno() < 0
    async with asyncio.timeout(10):
        await connector.retire()


@in_loop
async def test_a_connector_that_retires_closes_when_its_last_connection_could_not_be_opened() -> None:
    opening = asyncio.Event()

    class Failing(Connector):
        async def open(self, host: str, port: int | None, seconds: float | None) -> FarSide:
            await opening.wait()
            raise ConnectionRefusedError

    connector = Failing(RelaySettings("http://127.0.0.1:1", proxy=None), linger=0)
    near, application = socket.socketpair()
    trying = asyncio.ensure_future(connector.open_and_join("db.internal", 5432, None, near, 0))
    await asyncio.sleep(0)
    retiring = asyncio.ensure_future(connector.retire())
    await asyncio.sleep(0)
    opening.set()
    with pytest.raises(ConnectionRefusedError):
        await trying
    async with asyncio.timeout(10):
        await retiring
    application.close()
