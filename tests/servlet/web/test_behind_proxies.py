"""A relay behind proxies: whose word about a client's address counts, and what forged, cut off and late words do."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from ipaddress import ip_network
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import LOOPBACK, TOKENS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import certificates, files  # noqa: F401  # a fixture
from tests.support.loops import in_loop
from tunnel.wire import Attached
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.audit.event import AuditEvent, Kind, decode_event
from tunnel_servlet.settings import AuditSettings
from tunnel_servlet.web.public.proxy_header import proxy_header
from tunnel_servlet.web.running import RunningRelay

PROXY = "127.0.0.1"
HERE = [ip_network("127.0.0.1/32")]
CLIENT = "192.0.2.7"
HEADER = proxy_header((CLIENT, 4711), ("127.0.0.1", 80))
REQUEST = b"POST /exchange HTTP/1.1\r\nHost: x\r\nContent-Length: 0\r\n\r\n"


def events(folder: Path, kind: Kind) -> list[AuditEvent]:
    found = map(decode_event, (folder / "audit.jsonl").read_bytes().splitlines())
    return [event for event in found if event is not None and event.event is kind]


@asynccontextmanager
async def behind(folder: Path, proxies: TrustedProxies, **changes: Any) -> AsyncIterator[RunningRelay]:
    config = settings(audit=AuditSettings(file=str(folder / "audit.jsonl")), **changes)
    async with relay(replace(config, proxies=proxies)) as running:
        yield running


async def said(running: RunningRelay, *parts: bytes, source: str = PROXY) -> bytes:
    """Send the parts one after the other, and return the answer; nothing if the relay only ends the connection."""
    address = running.addresses[0]
    reader, writer = await asyncio.open_connection(address.host, address.port, local_addr=(source, 0))
    try:
        for part in parts:
            writer.write(part)
            await writer.drain()
            await asyncio.sleep(0)
        return await reader.read()
    except ConnectionError:
        return b""
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def refused_by(logs: Any) -> list[str]:
    return [log["text"] for log in logs if log["event"] == "no_client"]


@in_loop
async def test_x_forwarded_for_of_a_listed_proxy_is_in_the_audit(tmp_path: Path) -> None:
    async with behind(tmp_path, TrustedProxies(HERE)) as running, Client(running) as client:
        headers = {"X_Forwarded_For": f"6.6.6.6, {CLIENT}"}
        assert isinstance((await client.post(attach_body(), **headers)).message, Attached)
        await client.post(exchange_body(client.epoch, 1), **headers)
    (attached,) = events(tmp_path, Kind.ENDPOINT_ATTACHED)
    assert (attached.source, attached.forwarded) == (PROXY, CLIENT)


@in_loop
async def test_x_forwarded_for_of_anybody_else_is_ignored(tmp_path: Path) -> None:
    proxies = TrustedProxies([ip_network("10.0.0.0/8")])
    async with behind(tmp_path, proxies) as running, Client(running) as client:
        await client.post(attach_body(), X_Forwarded_For="6.6.6.6")
        await client.post(exchange_body(client.epoch, 1), X_Forwarded_For="6.6.6.6")
        await client.post(b"", X_Forwarded_For="6.6.6.6", Authorization="Bearer wrong")
    (attached,), (refused,) = events(tmp_path, Kind.ENDPOINT_ATTACHED), events(tmp_path, Kind.TOKEN_REFUSED)
    assert (attached.source, attached.forwarded) == (refused.source, refused.forwarded) == (PROXY, "")


@in_loop
async def test_two_users_wrong_tokens_of_one_client_do_not_limit_another_behind_the_same_proxy(tmp_path: Path) -> None:
    limits = {"auth_failures_per_minute": 1}
    async with behind(tmp_path, TrustedProxies(HERE), limits=limits) as running, Client(running, "wrong") as client:
        statuses = [(await client.post(b"", X_Forwarded_For=name)).status for name in (CLIENT, CLIENT, "192.0.2.8")]
    assert statuses == [401, 429, 401]
    found = [(event.source, event.forwarded, event.reason) for event in events(tmp_path, Kind.TOKEN_REFUSED)]
    assert found == [(PROXY, CLIENT, "wrong"), (PROXY, CLIENT, "limited"), (PROXY, "192.0.2.8", "wrong")]


@in_loop
async def test_one_connection_of_a_proxy_may_carry_several_clients(tmp_path: Path) -> None:
    async with behind(tmp_path, TrustedProxies(HERE)) as running, Client(running) as client:
        for seed, name in ((1, CLIENT), (2, "192.0.2.8")):
            await client.post(attach_body(seed), X_Forwarded_For=name)
            await client.post(exchange_body(client.epoch, 1, seed=seed), X_Forwarded_For=name)
    assert [event.forwarded for event in events(tmp_path, Kind.ENDPOINT_ATTACHED)] == [CLIENT, "192.0.2.8"]


# --- the PROXY header


@in_loop
async def test_the_proxy_header_names_the_client_however_it_is_cut_into_pieces(tmp_path: Path) -> None:
    async with behind(tmp_path, TrustedProxies(HERE, has_header=True)) as running:
        wrong = REQUEST.replace(b"\r\nHost", b"\r\nAuthorization: Bearer wrong\r\nHost")
        for parts in ([HEADER + wrong], [HEADER, wrong], [bytes([byte]) for byte in HEADER] + [wrong]):
            assert b" 401 " in await said(running, *parts)
    found = events(tmp_path, Kind.TOKEN_REFUSED)
    assert [(event.source, event.forwarded) for event in found] == [(PROXY, CLIENT)] * 3


@pytest.mark.parametrize(
    ("parts", "text"),
    [
        ([REQUEST], "does not begin with a PROXY header"),
        ([b"PROXY TCP4 192.0.2.7 127.0.0.1 1 80\r\n" + REQUEST], "does not begin with a PROXY header"),
        ([HEADER[:14] + b"\xff\xff" + HEADER[16:]], "65535 bytes, more than 2048"),
        ([HEADER[:12] + b"\x31" + HEADER[13:]], "version or command 0x31"),
    ],
)
@in_loop
async def test_a_listed_proxy_that_does_not_begin_with_the_header_is_not_served(
    tmp_path: Path, parts: list[bytes], text: str
) -> None:
    async with behind(tmp_path, TrustedProxies(HERE, has_header=True)) as running:
        with capture_logs() as logs:
            assert await said(running, *parts) == b""
        assert running.connections.total == 0
    (why,) = refused_by(logs)
    assert text in why


@in_loop
async def test_a_header_that_is_cut_off_or_late_ends_the_connection(tmp_path: Path) -> None:
    proxies, limits = TrustedProxies(HERE, has_header=True), {"tls_seconds": 0.05}
    async with behind(tmp_path, proxies, limits=limits) as running:
        with capture_logs() as logs:
            for end in (0, 5, 16, len(HEADER) - 1):
                assert await said(running, HEADER[:end]) == b""
        assert [("no whole PROXY header in 0.05 s" in why) for why in refused_by(logs)] == [True] * 4
        address = running.addresses[0]
        with capture_logs() as logs:
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(HEADER[:20])
            writer.write_eof()
            await until(lambda: refused_by(logs))
            writer.close()
        assert "cut off after 4 bytes" in refused_by(logs)[0]
        assert running.connections.total == 0


@in_loop
async def test_a_forged_header_from_anybody_else_is_no_request(tmp_path: Path) -> None:
    proxies = TrustedProxies([ip_network("10.0.0.0/8")], has_header=True)
    async with behind(tmp_path, proxies) as running:
        assert b" 400 " in await said(running, HEADER + REQUEST)
        assert b" 401 " in await said(running, REQUEST)  # those who come directly send none


@in_loop
async def test_a_probe_of_the_proxy_itself_is_served_as_the_proxy(tmp_path: Path) -> None:
    local = HEADER[:12] + b"\x20\x00\x00\x00"
    async with behind(tmp_path, TrustedProxies(HERE, has_header=True)) as running:
        assert b" 401 " in await said(running, local + REQUEST)


@in_loop
async def test_the_client_behind_a_header_may_be_a_proxy_with_x_forwarded_for(tmp_path: Path) -> None:
    proxies = TrustedProxies([*HERE, ip_network("10.0.0.0/8")], has_header=True)
    header = proxy_header(("10.0.0.5", 1), ("127.0.0.1", 80))
    lines = b"\r\nAuthorization: Bearer wrong\r\nX-Forwarded-For: 192.0.2.9\r\nHost"
    async with behind(tmp_path, proxies) as running:
        await said(running, header + REQUEST.replace(b"\r\nHost", lines))
    (refused,) = events(tmp_path, Kind.TOKEN_REFUSED)
    assert (refused.source, refused.forwarded) == (PROXY, "192.0.2.9")


@in_loop
async def test_two_users_the_limit_of_connections_is_that_of_the_client_and_not_of_the_proxy(tmp_path: Path) -> None:
    limits = {"connections_per_address_max": 2}
    async with behind(tmp_path, TrustedProxies(HERE, has_header=True), limits=limits) as running:
        address = running.addresses[0]
        writers = []
        for number in range(6):
            _, writer = await asyncio.open_connection(address.host, address.port)
            writer.write(proxy_header((f"192.0.2.{number % 3}", 1), ("127.0.0.1", 80)))
            writers.append(writer)
        await until(lambda: running.connections.total == 6)
        await until(lambda: PROXY not in running.connections.payers)
        assert (running.connections.total, running.connections.evicted) == (6, 0)
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(proxy_header(("192.0.2.0", 1), ("127.0.0.1", 80)))
        await until(lambda: running.connections.evicted)
        assert running.connections.total == 6
        for each in (*writers, writer):
            each.close()


@in_loop
async def test_the_header_comes_before_tls(tmp_path: Path, certificates: Path) -> None:  # noqa: F811
    context = ssl.create_default_context(cafile=str(certificates / "ca.pem"))
    proxies = TrustedProxies(HERE, has_header=True)
    async with behind(tmp_path, proxies, tls=files(certificates)) as running:
        address = running.addresses[0]
        reader, writer = await asyncio.open_connection(LOOPBACK.host, address.port)
        writer.write(HEADER)
        await writer.start_tls(context, server_hostname="127.0.0.1")
        writer.write(REQUEST.replace(b"\r\nHost", b"\r\nAuthorization: Bearer wrong\r\nHost"))
        assert b" 401 " in await reader.read(100)
        writer.close()
    (refused,) = events(tmp_path, Kind.TOKEN_REFUSED)
    assert refused.forwarded == CLIENT
    assert TOKENS["ann"] not in (tmp_path / "audit.jsonl").read_text()


@in_loop
async def test_a_relay_that_stops_waits_for_no_header(tmp_path: Path) -> None:
    async with behind(tmp_path, TrustedProxies(HERE, has_header=True)) as running:
        address = running.addresses[0]
        reader, writer = await asyncio.open_connection(address.host, address.port)
        await until(lambda: running.connections.total)
    assert await reader.read() == b""
    writer.close()
