"""Connections to a proxy whose CONNECT fails. test_proxy_authentication.py has proxies that admit us."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest

from tests.carriers.origin import Origin, answer
from tests.fuzz.wire_end import MemoryTransport
from tests.support.loops import in_loop
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.dialing.failures import explain, is_cut
from tunnel.carriers.dialing.proxy_connect import ProxyConnection


@pytest.mark.parametrize("status", ["403 Forbidden", "407 Who are you", "502 Bad Gateway"])
@in_loop
async def test_each_refused_connect_closes_its_connection_to_the_proxy(status: str) -> None:
    """An attachment tries for as long as it runs: what it leaves open adds up."""
    async with Origin(answer(status)) as proxy:
        dialing = Dialing("https://relay.invalid", proxy=proxy.url)
        async with dialing.session() as session:
            for _ in range(2):
                with pytest.raises(aiohttp.ClientHttpProxyError):
                    await session.get(dialing.url("exchange"))
                async with asyncio.timeout(10):
                    assert await proxy.ended.get() == proxy.ports[-1]


@pytest.mark.parametrize("is_tls", [False, True], ids=["plain", "CONNECT"])
@in_loop
async def test_a_refused_password_is_not_sent_again_until_there_is_another(is_tls: bool) -> None:
    """Many proxies lock an account after a few wrong passwords, and each road, spare and renewal would send it."""
    scheme = "https" if is_tls else "http"
    async with Origin(answer('407 Who are you\r\nProxy-Authenticate: Basic realm="x"')) as proxy:

        def with_password(password: str) -> str:
            return f"{proxy.url[:7]}me:{password}@{proxy.url[7:]}"

        dialing = Dialing(f"{scheme}://relay.invalid", proxy=with_password("wrong"))
        async with dialing.session() as session:

            async def get() -> None:
                with pytest.raises(aiohttp.ClientHttpProxyError, match="did not accept user me") as caught:
                    await session.get(dialing.url("exchange"), proxy=None if is_tls else dialing.proxy)
                assert caught.value.status == 407

            def with_it() -> int:
                return sum("Proxy-Authorization" in head for head in proxy.heads)

            for _ in range(3):
                await get()
            assert with_it() == 1
            dialing.renew(dialing.other_secrets(None, {}, with_password("new")), lambda status: None)
            for _ in range(3):
                await get()
            assert with_it() == 2


@pytest.mark.parametrize(
    "head",
    [
        f"HTTP/1.1 {'9' * 5000} x",
        "HTTP/1.1 0200 x",
        "HTTP/1.1 20 x",
        "HTTP/1.1 \xb2\xb20 x",
        f"HTTP/1.1 407 x\r\nContent-Length: {'9' * 5000}",
        "HTTP/1.1 407 x\r\nContent-Length: \xb2",
    ],
)
@in_loop
async def test_wrong_numbers_in_an_answer_to_connect_are_an_error_or_end_the_dialogue(head: str) -> None:
    dialogue = ProxyConnection()
    transport = MemoryTransport(dialogue)
    dialogue.connection_made(transport)
    asking = asyncio.ensure_future(dialogue.ask("relay:443", None))
    await asyncio.sleep(0)
    transport.arrive(f"{head}\r\n\r\n".encode("latin-1"))
    if "Content-Length" in head:
        assert await asking == (407, "x", [])
        assert not dialogue.goes_on
    else:
        with pytest.raises(ConnectionError, match="not HTTP"):
            await asking
    transport.lose()


@in_loop
async def test_the_reason_of_a_proxy_does_not_reach_a_terminal_as_escape_codes() -> None:
    dialogue = ProxyConnection()
    transport = MemoryTransport(dialogue)
    dialogue.connection_made(transport)
    transport.arrive(b"HTTP/1.1 403 \x1b[2Jno\nway\r\n\r\n")
    assert await dialogue.ask("relay:443", None) == (403, r"\x1b[2Jno\nway", [])
    transport.lose()


@in_loop
async def test_a_user_name_may_have_letters_beyond_ascii() -> None:
    dialogue = ProxyConnection()
    transport = MemoryTransport(dialogue)
    dialogue.connection_made(transport)
    transport.arrive(b"HTTP/1.1 200 x\r\n\r\n")
    assert (await dialogue.ask("relay:443", 'Digest username="\u20acva"'))[0] == 200
    assert 'username="\u20acva"'.encode() in transport.sent
    transport.lose()


PAGE = b"<html><head><title>Blocked</title></head></html>"
ANSWER = b"HTTP/1.1 %s x\r\nContent-Type: text/html\r\nContent-Length: %d\r\n\r\n%s"
GRANTED = b"HTTP/1.1 200 Connection established\r\n\r\n"


@asynccontextmanager
async def granting_proxy(granted: bytes, then: bytes, *, waits: bool) -> AsyncIterator[str]:
    """A proxy that grants each CONNECT and then sends this, perhaps only after it has heard something, and ends."""
    tasks: set[asyncio.Task[None] | None] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        tasks.add(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(granted)
            if waits:
                await reader.read(1)
            writer.write(then)
            await writer.drain()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        await asyncio.gather(*filter(None, tasks))


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after the handshake began"])
@pytest.mark.parametrize(
    ("granted", "then", "kind"),
    [
        (ANSWER % (b"200", len(PAGE), PAGE), b"", "proxy-page"),
        (GRANTED, ANSWER % (b"200", len(PAGE), PAGE), "proxy-page"),
        (GRANTED, ANSWER % (b"403", len(PAGE), PAGE), "proxy-page"),
        (GRANTED, PAGE, "proxy-page"),
        (GRANTED, b"HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n", "proxy-page"),
        (GRANTED, ANSWER % (b"400", len(PAGE), PAGE), "plain-http"),  # a server with plain HTTP at the relay's port
        (GRANTED, b"SSH-2.0-OpenSSH_9.2\r\n", "plain-http"),
        (GRANTED, b"", "tls-cut"),
    ],
)
@in_loop
async def test_a_page_in_place_of_a_tunnel_is_told_from_a_server_without_tls(
    granted: bytes, then: bytes, kind: str, waits: bool
) -> None:
    async with granting_proxy(granted, then, waits=waits) as proxy:
        dialing = Dialing("https://relay.invalid", proxy=proxy)
        async with dialing.session() as session:
            with pytest.raises(aiohttp.ClientError) as caught:
                await session.get(dialing.url("exchange"))
    found = explain(caught.value, dialing.base)
    # Where the connection ends with unread bytes of ours, a reset may overtake what was sent.
    assert found.kind == kind or (kind == "plain-http" and found.kind == "tls-cut")
    if kind == "proxy-page":
        said = "an empty body" if b"302" in then else "the page 'Blocked'"
        assert found.text == f"the proxy answers CONNECT with HTTP 200, and then sends {said} in place of a tunnel"


@in_loop
async def test_a_handshake_that_cannot_begin_is_a_failure_of_tls_through_a_proxy_too() -> None:
    async with granting_proxy(GRANTED, b"", waits=True) as proxy:
        dialing = Dialing("https://relay.invalid", proxy=proxy)
        assert dialing.tls is not None
        dialing.tls.maximum_version = ssl.TLSVersion.TLSv1_2
        dialing.tls.minimum_version = ssl.TLSVersion.TLSv1_3
        async with dialing.session() as session:
            with pytest.raises(aiohttp.ClientConnectorSSLError) as caught:
                await session.get(dialing.url("exchange"))
    assert explain(caught.value, dialing.base).kind == "tls-version"
    assert not is_cut(caught.value)


@in_loop
async def test_a_failure_of_tls_is_told_although_the_proxy_does_not_answer_a_second_connect(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunnel.carriers.dialing.proxy_connect._AGAIN_S", 0.01)
    asked, tasks = 0, set[asyncio.Task[None] | None]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        tasks.add(asyncio.current_task())
        with contextlib.closing(writer), contextlib.suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            if asked == 1:
                writer.write(GRANTED)
                await reader.read(1)
                writer.write(b"SSH-2.0-OpenSSH_9.2\r\n")
            await reader.read()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        proxy = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        dialing = Dialing("https://relay.invalid", proxy=proxy)
        async with dialing.session() as session:
            with pytest.raises(aiohttp.ClientConnectorSSLError) as caught:
                await session.get(dialing.url("exchange"))
        await asyncio.gather(*filter(None, tasks))
    assert explain(caught.value, dialing.base).kind == "plain-http"
