"""`tunnel proxy`: four protocols on one port, refusals that say why, and its limits."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from tests.client.rig import TOKEN, Rig, echo
from tests.servlet.rig import relay, settings
from tests.support.loops import in_loop
from tunnel import attach
from tunnel_client.cli.commands.proxy import Proxying
from tunnel_client.cli.main import main
from tunnel_client.forward.traffic import Traffic
from tunnel_client.proxy.socks import encode_address
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]
HELLO = b"\x05\x01\x00"
_WAIT_S = 60.0


class World:
    """A relay, a proxy, and the connections to the proxy."""

    def __init__(self, proxying: Proxying, traffic: Traffic, port: int) -> None:
        self.proxying = proxying
        self.traffic = traffic
        self.port = port
        self._contexts = contextlib.AsyncExitStack()
        self._handlers: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def open(self, data: bytes = b"") -> Streams:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._contexts.callback(writer.close)
        writer.write(data)
        return reader, writer

    async def ask(self, data: bytes) -> bytes:
        """Send data; return all that the proxy answers until the end."""
        reader, writer = await self.open(data)
        found = await reader.read()
        writer.close()
        return found

    async def serve(self, handler: Any) -> int:
        async def tracked(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._handlers[task] = writer
            try:
                await handler(reader, writer)
            finally:
                writer.close()
                with contextlib.suppress(ConnectionError):
                    await writer.wait_closed()

        server = await asyncio.start_server(tracked, "127.0.0.1", 0)
        self._contexts.callback(server.close)
        port: int = server.sockets[0].getsockname()[1]
        return port

    async def close(self) -> None:
        await self._contexts.aclose()
        for writer in self._handlers.values():
            writer.transport.abort()
        await asyncio.gather(*self._handlers, return_exceptions=True)


@asynccontextmanager
async def world(**options: Any) -> AsyncIterator[World]:
    allowed = tuple(map(parse_rule, ("127.0.0.0/8:*", "nowhere.invalid:*")))
    config = settings(exit="inline", grants=GrantTable({"ann": Grant(connect=allowed)}))
    async with (
        relay(config) as running,
        attach(f"http://{running.addresses[0]}", token=TOKEN, proxy=None, carrier="poll") as attachment,
    ):
        sock = socket.create_server(("127.0.0.1", 0))
        traffic = Traffic(attachment)
        proxying = Proxying(attachment, sock, traffic, **options)
        found = World(proxying, traffic, sock.getsockname()[1])
        async with proxying:
            yield found
            await found.close()


def socks5(host: str, port: int) -> bytes:
    return HELLO + b"\x05\x01\x00" + encode_address(host, port)


async def say_and_hear(streams: Streams, data: bytes) -> None:
    reader, writer = streams
    writer.write(data)
    assert await reader.readexactly(len(data)) == data
    writer.write_eof()
    assert await reader.read() == b""
    writer.close()


@in_loop
async def test_every_protocol_leads_to_its_target_on_one_port() -> None:
    async with world() as w:
        port = await w.serve(echo)
        data = os.urandom(200_000)
        streams = await w.open(socks5("127.0.0.1", port))
        assert await streams[0].readexactly(2 + 10) == b"\x05\x00\x05\x00\x00\x01" + bytes(6)
        await say_and_hear(streams, data)
        four = b"\x04\x01" + port.to_bytes(2, "big")
        for request in (four + b"\x7f\x00\x00\x01me\x00", four + b"\x00\x00\x00\x01\x00127.0.0.1\x00"):
            streams = await w.open(request)
            assert await streams[0].readexactly(8) == b"\x00\x5a" + bytes(6)
            await say_and_hear(streams, data)
        streams = await w.open(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)
        assert await streams[0].readuntil(b"\r\n\r\n") == b"HTTP/1.1 200 Connection established\r\n\r\n"
        await say_and_hear(streams, data)
        report = w.traffic.report()
        assert (report.connections, report.connections_failed) == (4, 0)


@in_loop
async def test_a_request_may_come_in_pieces_and_data_may_follow_at_once() -> None:
    async with world() as w:
        port = await w.serve(echo)
        request = socks5("127.0.0.1", port)
        reader, writer = await w.open()
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in request:
            writer.write(bytes([byte]))
            await asyncio.sleep(0)
        early = os.urandom(300_000)  # more than the proxy buffers before the target is reached
        writer.write(early)
        writer.write_eof()
        assert await reader.readexactly(12)
        assert await reader.read() == early


@in_loop
async def test_an_absolute_url_is_fetched_with_one_request_per_connection() -> None:
    heard: list[bytes] = []
    ended = asyncio.Event()

    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(await reader.readuntil(b"\r\n\r\n") + await reader.readexactly(5))
        writer.write(b"HTTP/1.1 200 OK\r\n\r\nfound")
        await writer.drain()
        writer.write_eof()
        heard.append(await reader.read())
        writer.close()
        ended.set()

    async with world() as w:
        port = await w.serve(web)
        request = b"POST http://127.0.0.1:%d/a HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\n" % port
        reader, writer = await w.open(request + b"hello" + b"GET http://secret.example/ HTTP/1.1\r\n\r\n")
        assert await reader.read() == b"HTTP/1.1 200 OK\r\n\r\nfound"
        writer.close()
        host = b"Host: 127.0.0.1:%d\r\n" % port
        await ended.wait()
        assert heard == [b"POST /a HTTP/1.1\r\n" + host + b"Content-Length: 5\r\nConnection: close\r\n\r\nhello", b""]


@in_loop
async def test_refusals_say_why() -> None:
    async with world() as w:
        with hold_port() as closed:
            for host, port, code, status, text in (
                ("127.0.0.1", closed, 5, 502, "refused the connection"),
                ("nowhere.invalid", 80, 4, 502, "has no address"),
                ("example.com", 80, 2, 403, "no rule allows example.com:80"),
            ):
                assert (await w.ask(socks5(host, port)))[2:4] == bytes([5, code])
                answer = (await w.ask(f"CONNECT {host}:{port} HTTP/1.1\r\n\r\n".encode())).decode()
                assert answer.startswith(f"HTTP/1.1 {status} ")
                assert text in answer
                answer = (await w.ask(f"GET http://{host}:{port}/ HTTP/1.1\r\n\r\n".encode())).decode()
                assert answer.startswith(f"HTTP/1.1 {status} ")
            assert (await w.ask(b"\x04\x01\x00\x50\x00\x00\x00\x01\x00example.com\x00"))[:2] == b"\x00\x5b"
        assert w.traffic.failed == 10
        assert await w.ask(b"GET / HTTP/1.1\r\n\r\n") != b""
        assert await w.ask(b"\x05\x01\x02") == b"\x05\xff"
        assert await w.ask(b"\x16\x03\x01") == b""
        assert await w.ask(b"\x00") == b""


@in_loop
async def test_a_target_that_does_not_answer_in_time_is_a_refusal() -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        port = full.getsockname()[1]
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        async with world(dial_seconds=0.3) as w:
            assert (await w.ask(b"CONNECT 127.0.0.1:%d HTTP/1.1\r\n\r\n" % port)).startswith(b"HTTP/1.1 504 ")
            assert (await w.ask(socks5("127.0.0.1", port)))[2:4] == b"\x05\x06"
            streams = await w.open(socks5("127.0.0.1", port))
            assert await streams[0].readexactly(2) == b"\x05\x00"
            streams[1].transport.abort()  # a client that gives up waiting is forgotten
        for filler in fillers:
            filler.close()


@in_loop
async def test_a_client_that_sends_no_request_is_disconnected() -> None:
    async with world(request_seconds=0.1) as w:
        for data in (b"", b"\x05", HELLO, b"GET http://127.0.0.1/ HTTP/1.1\r\n"):
            reader, _ = await w.open(data)
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() in (b"", b"\x05\x00")
        reader, writer = await w.open(b"\x05")
        writer.write_eof()
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""


@in_loop
async def test_connections_beyond_the_limit_are_closed() -> None:
    async with world(connections_max=1) as w:
        port = await w.serve(echo)
        first = await w.open(socks5("127.0.0.1", port))
        assert await first[0].readexactly(12)
        reader, _ = await w.open(HELLO)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        await say_and_hear(first, b"x")


@in_loop
async def test_resets_are_passed_on_and_stopping_the_proxy_is_a_reset() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        linger = struct.pack("ii", 1, 0)
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        writer.transport.abort()

    async with world() as w:
        reader, writer = await w.open(socks5("127.0.0.1", await w.serve(reset)))
        assert await reader.readexactly(12)
        writer.write(b"x")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        last, last_writer = await asyncio.open_connection("127.0.0.1", w.port)
        last_writer.write(socks5("127.0.0.1", await w.serve(echo)))
        assert await last.readexactly(12)
    with pytest.raises(ConnectionResetError):
        await last.read()
    last_writer.close()


def test_an_invalid_or_busy_address_is_a_usage_error(known: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["proxy", "x"]) == 2
    assert "write PORT, or HOST:PORT as in 127.0.0.1:1080" in capsys.readouterr().err
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert main(["proxy", str(taken.getsockname()[1])]) == 2
    assert "something listens there already" in capsys.readouterr().err
    with pytest.raises(SystemExit) as caught:
        main(["proxy", "0", "--connections", "0"])
    assert caught.value.code == 2


@pytest.mark.real("curl")
def test_the_command_as_curl_uses_it(rig: Rig, home: object) -> None:
    async def web(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\nConnection: close\r\n\r\nfound")
        await writer.drain()
        writer.close()

    url = f"http://localhost:{rig.serve(web)}/"
    command = python_command("tunnel_client", "proxy", "0.0.0.0:0")
    with Process(command, ready=says_event("listening"), environment=rig.environment()) as proxy:
        assert "open_to_others" in proxy.output
        port = proxy.ready_line.partition('"bind": "0.0.0.0:')[2].partition('"')[0]
        for way in ("socks5h", "socks4a", "http"):
            curl = ["curl", "-sS", "--noproxy", "", "--max-time", "60", "--proxy", f"{way}://127.0.0.1:{port}", url]
            done = subprocess.run(curl, capture_output=True, text=True, timeout=_WAIT_S * 2, check=False)
            assert (done.stdout, done.stderr) == ("found", ""), way
        assert proxy.stop() == 0
        proxy.start()
        proxy.wait_ready()
        proxy.signal(signal.SIGINT)
        assert proxy.wait(_WAIT_S) == 130
