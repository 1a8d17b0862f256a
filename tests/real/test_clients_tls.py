"""TLS of the standard library over tunnel sockets, and a WebSocket client: to TLS servers beyond the relay."""

import asyncio
import hashlib
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import websockets.asyncio.client
import websockets.sync.client
import websockets.sync.server

import tunnel
import tunnel_client
from tests.client.rig import Background, echo
from tests.real.clients_rig import LOOPBACK, WAIT_S, Way
from tests.real.transfers import CA, MIB, noise
from tests.support.loops import run

pytestmark = pytest.mark.real("nginx")

CERTIFICATE = Path(CA).parent / "server.pem"
TURN = 64 * 1024  # bytes; divides the payload
PAYLOAD = noise(MIB, seed=3)


def server_context() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE)
    return context


def client_context() -> ssl.SSLContext:
    return ssl.create_default_context(cafile=CA)


@pytest.fixture(scope="module")
def echo_port() -> Iterator[int]:
    """The port of a TLS echo server."""
    with Background() as background:

        async def start() -> asyncio.Server:
            return await asyncio.start_server(echo, LOOPBACK, 0, ssl=server_context())

        server = background.call(start())
        yield server.sockets[0].getsockname()[1]
        background.loop.call_soon_threadsafe(server.close)


@pytest.fixture(scope="module")
def wss_port() -> Iterator[int]:
    """The port of a WebSocket echo server over TLS."""

    def serve(connection: websockets.sync.server.ServerConnection) -> None:
        for message in connection:
            connection.send(message)

    with websockets.sync.server.serve(serve, LOOPBACK, 0, ssl=server_context(), max_size=4 * MIB) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.socket.getsockname()[1]
        server.shutdown()
        thread.join(WAIT_S)


def test_wrap_socket(way: Way, echo_port: int) -> None:
    sock = tunnel_client.create_connection((LOOPBACK, echo_port), timeout=WAIT_S, runtime=way.runtime)
    with client_context().wrap_socket(sock, server_hostname="localhost") as wrapped:
        session = wrapped.version(), wrapped.cipher()
        with way.trouble():
            # In turns: two threads at once would race within OpenSSL's connection (CPython issues 76714, 124984).
            received = bytearray()
            for start in range(0, MIB, TURN):
                wrapped.sendall(PAYLOAD[start : start + TURN])
                while len(received) < start + TURN:
                    data = wrapped.recv(1 << 16)
                    assert data, "the stream ended early"
                    received += data
        assert hashlib.sha256(received).digest() == hashlib.sha256(PAYLOAD).digest()
        assert session == (wrapped.version(), wrapped.cipher())
        wrapped.unwrap().close()


def test_a_certificate_for_another_name_is_refused(way: Way, echo_port: int) -> None:
    """TLS through the tunnel still checks the certificate against the name of the target."""
    with (
        tunnel_client.create_connection((LOOPBACK, echo_port), timeout=WAIT_S, runtime=way.runtime) as sock,
        pytest.raises(ssl.SSLCertVerificationError, match=r"not valid for 'db\.internal'"),
    ):
        client_context().wrap_socket(sock, server_hostname="db.internal")


async def talk(way: Way, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send the payload and check that all of it comes back, whatever happens on the path."""

    async def send() -> None:
        writer.write(PAYLOAD)
        await writer.drain()

    with way.trouble():
        _, received = await asyncio.gather(send(), reader.readexactly(MIB))
    assert received == PAYLOAD
    writer.close()
    await writer.wait_closed()


def test_start_tls_of_asyncio(way: Way, echo_port: int) -> None:
    """StreamWriter.start_tls, which calls loop.start_tls, works on a tunnel socket."""

    async def main() -> None:
        reader, writer = await asyncio.open_connection(LOOPBACK, echo_port)
        await writer.start_tls(client_context(), server_hostname="localhost")
        await talk(way, reader, writer)

    with way.patch():
        run(main())


def test_start_tls_on_a_tunnel_transport(way: Way, echo_port: int) -> None:
    """loop.start_tls accepts the transport of a tunnel connection as it accepts a transport of the loop."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        url, token = way.environment["TUNNEL_RELAY"], way.environment["TUNNEL_TOKEN"]
        async with tunnel.attach(url, token=token, proxy=None, carrier="poll", linger=1.0) as attachment:
            reader = asyncio.StreamReader(limit=4 * MIB)  # never pauses the transport, which start_tls replaces
            protocol = asyncio.StreamReaderProtocol(reader)
            plain, _ = await attachment.create_connection(lambda: protocol, LOOPBACK, echo_port)
            secured = await loop.start_tls(plain, protocol, client_context(), server_hostname="localhost")
            assert secured is not None
            await talk(way, reader, asyncio.StreamWriter(secured, protocol, reader, loop))

    run(main())


def test_websocket(way: Way, wss_port: int) -> None:
    sock = tunnel_client.create_connection((LOOPBACK, wss_port), timeout=WAIT_S, runtime=way.runtime)
    sock.settimeout(None)
    with websockets.sync.client.connect(
        f"wss://localhost:{wss_port}/", sock=sock, ssl=client_context(), open_timeout=WAIT_S, max_size=4 * MIB
    ) as connection:
        connection.send("hello")
        assert connection.recv(WAIT_S) == "hello"
        with way.trouble():
            connection.send(PAYLOAD)
            assert connection.recv(WAIT_S) == PAYLOAD
        assert connection.ping().wait(WAIT_S)


def test_websocket_asyncio(way: Way, wss_port: int) -> None:
    async def main() -> None:
        async with websockets.asyncio.client.connect(
            f"wss://{LOOPBACK}:{wss_port}/", ssl=client_context(), proxy=None, open_timeout=WAIT_S, max_size=4 * MIB
        ) as connection:
            with way.trouble():
                for number in range(20):
                    await connection.send(str(number))
                assert [await connection.recv() for _ in range(20)] == [str(number) for number in range(20)]
                await connection.send(PAYLOAD)
                assert await connection.recv() == PAYLOAD
            await (await connection.ping())

    with way.patch():
        run(main())
