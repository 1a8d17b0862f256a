"""Services for people without the tunnel: ports and host names of two users, and strangers who mean harm."""

from __future__ import annotations

import asyncio
import socket
import ssl
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest

from loadtests.harness.ports import hold_port
from tests.servlet.rig import KEYS, LOOPBACK, TOKENS, until
from tests.servlet.web.public_ports_rig import echo, greet, request, rig, shut, talk, usual
from tests.servlet.web.rig import certificates, files
from tests.support.loops import in_loop
from tunnel import DeniedError, PublicPlace, StreamReader, StreamWriter, attach
from tunnel_servlet.access.grants import Grant, parse_public_address
from tunnel_servlet.access.tokens import TokenTable

__all__ = ["certificates"]


@in_loop
async def test_a_port_leads_to_the_service_and_closes_and_opens_with_it() -> None:
    async with rig() as world:
        port = world.ports["ann"]
        with pytest.raises(ConnectionRefusedError):
            await talk(port, b"x")
        server = await world.serve("ann", "raw", PublicPlace(port), echo)
        assert await talk(port, b"hello" * 100_000, ends=True) == b"hello" * 100_000
        server.close()
        await until(lambda: not world.public.public_services)
        with pytest.raises(ConnectionRefusedError):
            await talk(port, b"x")
        await world.serve("ann", "raw", PublicPlace(port), echo)
        assert await talk(port, b"again", ends=True) == b"again"
        await world.users["ann"].close()
        await until(lambda: not world.public.public_services)
        with pytest.raises(ConnectionRefusedError):
            await talk(port, b"x")


@in_loop
async def test_the_service_sees_strangers_as_such_and_not_as_its_owner() -> None:
    users: list[Any] = []

    async def note(reader: StreamReader, writer: StreamWriter) -> None:
        users.append(writer.get_extra_info("tunnel_user"))
        writer.close()

    async with rig() as world:
        port = world.ports["ann"]
        await world.serve("ann", "raw", PublicPlace(port), note)
        await talk(port, b"")
        _, writer = await world.users["ann"].open_connection("raw")
        await until(lambda: len(users) == 2)
        assert users == ["relay:public", "ann"]
        writer.close()


@in_loop
async def test_two_users_cannot_take_each_others_ports_and_hosts() -> None:
    async with rig() as world:
        for place in (PublicPlace(world.ports["ann"]), PublicPlace(host="ann.example", http=True), PublicPlace(1)):
            key = "public_hosts" if place.host else "public"
            with pytest.raises(DeniedError, match=rf"no rule allows the user .* under \[users.bob\] .* {key} = \["):
                await world.serve("bob", "mine", place)
        assert not world.public.public_services
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        await world.serve("bob", "site-of-bob", PublicPlace(host="bob.example", http=True))
        assert b"Host: ANN.example:80" in await request(world.http, "ANN.example:80")
        assert b"Host: bob.example." in await request(world.http, "bob.example.")
        answer = await request(world.http, "other.example")
        assert answer.startswith(b"HTTP/1.1 404 Not Found")


@in_loop
async def test_one_place_leads_to_one_service_and_one_service_to_one_place() -> None:
    async with rig() as world:
        await world.serve("ann", "one", PublicPlace(host="ann.example", http=True))
        with pytest.raises(DeniedError, match=r"ann\.example leads to the service one already"):
            await world.serve("ann", "two", PublicPlace(host="ann.example", http=True))
        url = f"http://{world.running.addresses[0]}"
        async with attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as second:
            with pytest.raises(DeniedError, match=r"one is public at ann\.example already, through another endpoint"):
                await second.start_server(greet, "one", public=PublicPlace(world.ports["ann"]))
            await second.start_server(greet, "one", public=PublicPlace(host="ann.example", http=True))
            await world.users["ann"].close()
            assert (await request(world.http, "ann.example")).startswith(b"HTTP/1.1 200")


@in_loop
async def test_a_port_that_another_program_has_is_refused_with_the_reason() -> None:
    async with rig() as world:
        place, why = PublicPlace(world.ports["ann"]), r"the relay cannot open port .*: Address already in use"
        with socket.create_server((LOOPBACK.host, place.port)), pytest.raises(DeniedError, match=why):
            await world.serve("ann", "raw", place)


@pytest.mark.parametrize("everyone", [Grant(), Grant(services=("*",))])
def test_a_removed_rule_closes_the_port_and_ends_its_connections(everyone: Grant) -> None:
    """This holds although the owner, or everyone, may use the service: strangers do not count as users."""
    in_loop(removes_a_rule)(everyone)


async def removes_a_rule(everyone: Grant) -> None:
    async with rig() as world:
        port = world.ports["ann"]
        rest = Grant(listen=("*",), services=() if everyone.services else ("*",))
        server = await world.serve("ann", "raw", PublicPlace(port), echo)
        await world.serve("bob", "other", PublicPlace(world.ports["bob"]), echo)
        reader, writer = await asyncio.open_connection(LOOPBACK.host, port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        world.running.relay.reload(replace(world.running.config, grants=world.grants(everyone, ann=rest)))
        assert "no rule allows the user port" in str(await server.refused())
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        with pytest.raises(ConnectionRefusedError):
            await talk(port, b"x")
        assert await talk(world.ports["bob"], b"x", ends=True) == b"x"
        await shut(writer)


@in_loop
async def test_a_rule_with_another_address_closes_the_port_until_the_service_is_offered_again() -> None:
    async with rig() as world:
        port = world.ports["ann"]
        wide, narrow = (
            msgspec.structs.replace(usual(world.ports)["ann"], public=(parse_public_address(f"{address}:{port}"),))
            for address in ("0.0.0.0", LOOPBACK.host)
        )
        world.running.relay.reload(replace(world.running.config, grants=world.grants(ann=wide)))
        server = await world.serve("ann", "raw", PublicPlace(port), echo)
        reader, writer = await asyncio.open_connection("127.0.0.2", port)
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        world.running.relay.reload(replace(world.running.config, grants=world.grants(ann=narrow)))
        assert "at another address of the relay now: offer the service again" in str(await server.refused())
        with pytest.raises(ConnectionResetError):
            await reader.readexactly(1)
        await shut(writer)
        await world.serve("ann", "raw", PublicPlace(port), echo)
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection("127.0.0.2", port)
        assert await talk(port, b"x", ends=True) == b"x"


@in_loop
async def test_a_place_stays_open_when_the_service_cannot_have_another_one() -> None:
    async with rig() as world:
        port = world.ports["ann"]
        with hold_port() as other, socket.create_server((LOOPBACK.host, other)):
            public = tuple(parse_public_address(f"{LOOPBACK.host}:{each}") for each in (port, other))
            both = msgspec.structs.replace(usual(world.ports)["ann"], public=public)
            world.running.relay.reload(replace(world.running.config, grants=world.grants(ann=both)))
            await world.serve("ann", "raw", PublicPlace(port), echo)
            assert "cannot open" in world.public.publish("ann", "raw", PublicPlace(other))
        assert await talk(port, b"x", ends=True) == b"x"


@in_loop
async def test_a_revoked_user_has_no_port() -> None:
    async with rig() as world:
        await world.serve("ann", "raw", PublicPlace(world.ports["ann"]), echo)
        rest = TokenTable({user: keys for user, keys in KEYS.items() if user != "ann"})
        world.running.relay.reload(replace(world.running.config, tokens=rest))
        await until(lambda: not world.public.public_services)
        with pytest.raises(ConnectionRefusedError):
            await talk(world.ports["ann"], b"x")


# --- HTTP


FORGED = (
    "X-Forwarded-For: 6.6.6.6",
    "x_forwarded_for: 6.6.6.6",
    "X-FORWARDED-HOST: evil.example",
    "Forwarded: for=6.6.6.6",
    "X-Real-IP: 6.6.6.6",
    "Connection: keep-alive, X-Secret, Content-Length",
    "X-Secret: 1",
)


@in_loop
async def test_forged_headers_are_replaced() -> None:
    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        answer = await request(world.http, "ann.example", *FORGED, "X-Kept: yes", "Content-Length: 4", body=b"body")
    head, _, said = answer.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK")
    assert b"6.6.6.6" not in said
    assert b"evil" not in said
    assert b"X-Secret" not in said
    for line in (
        b"POST /path?x=1 HTTP/1.1",
        b"X-Kept: yes",
        b"X-Forwarded-For: 127.0.0.1",
        b"X-Forwarded-Proto: http",
        b"X-Forwarded-Host: ann.example",
        b"Connection: close",
    ):
        assert line + b"\r\n" in said, line
    assert said.endswith(b"\r\n\r\nbody")


@in_loop
async def test_a_second_request_on_the_connection_never_reaches_the_service() -> None:
    """This holds for a first request with a length, without a body, and in chunks."""
    seen: list[bytes] = []

    async def all_of_it(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        data = b""
        with suppress(Exception):
            while chunk := await reader.read(1 << 16):
                data += chunk
                if data.endswith((b"\r\n\r\n", b"body")):
                    break
        seen.append(data)
        writer.close()

    smuggled = b"GET /admin HTTP/1.1\r\nHost: bob.example\r\nX-Forwarded-For: 6.6.6.6\r\n\r\n"
    first = b"POST / HTTP/1.1\r\nHost: ann.example\r\n"
    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True), all_of_it)
        for framing in (
            b"Content-Length: 4\r\n\r\nbody",
            b"\r\n",
            b"Transfer-Encoding: chunked\r\n\r\n4\r\nbody\r\n0\r\n\r\n",
        ):
            seen.clear()
            await talk(world.http, first + framing + smuggled)
            await until(lambda: seen)
            assert b"admin" not in seen[0], framing
            assert seen[0].startswith(b"POST / HTTP/1.1\r\nHost: ann.example\r\n")


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (
            b"POST / HTTP/1.1\r\nHost: ann.example\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
            400,
        ),
        (b"POST / HTTP/1.1\r\nHost: ann.example\r\nContent-Length: 4\r\nContent-Length: 5\r\n\r\nbody", 400),
        (b"POST / HTTP/1.1\r\nHost: ann.example\r\nContent-Length: +4\r\n\r\nbody", 400),
        (b"POST / HTTP/1.1\r\nHost: ann.example\r\nTransfer-Encoding: gzip, chunked\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: ann.example\r\nHost: bob.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost : ann.example\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (b"GET / HTTP/1.0\r\n\r\n", 400),
        (b"GET http://bob.example/ HTTP/1.1\r\nHost: ann.example\r\n\r\n", 400),
        (b"CONNECT ann.example:80 HTTP/1.1\r\nHost: ann.example\r\n\r\n", 405),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: ann.example\r\nX: " + b"x" * 20_000, 431),
        (b"GET / HTTP/1.1\r\nHost: \xff\xfe\r\n\r\n", 404),
    ],
)
def test_malformed_requests_are_refused_before_a_service_gets_them(sent: bytes, status: int) -> None:
    @in_loop
    async def scenario() -> None:
        async with rig() as world:
            await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
            answer = await talk(world.http, sent)
            assert answer.startswith(b"HTTP/1.1 %d " % status), answer
            assert b"Connection: close" in answer

    scenario()


@in_loop
async def test_a_web_socket_is_passed_on_once_the_service_has_switched() -> None:
    ask = b"GET /ws HTTP/1.1\r\nHost: ann.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"

    async def switches(reader: StreamReader, writer: StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        assert b"Connection: Upgrade\r\nUpgrade: websocket\r\n" in head
        for part in (b"HTT", b"P/1.1 101 Swi", b"tching Protocols\r\n\r\n"):
            writer.write(part)
            await writer.flush()
        await echo(reader, writer)

    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True), switches)
        answer = await talk(world.http, ask + b"frames", ends=True)
        assert answer == b"HTTP/1.1 101 Switching Protocols\r\n\r\nframes"


@in_loop
async def test_a_service_that_does_not_switch_gets_no_bytes_after_the_request() -> None:
    """Otherwise it would take them for another request."""
    ask = b"GET /ws HTTP/1.1\r\nHost: ann.example\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n"
    rest: list[bytes] = []

    async def refuses(reader: StreamReader, writer: StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 426 Upgrade Required\r\nContent-Length: 0\r\n\r\n")
        writer.write_eof()
        rest.append(await reader.read())
        writer.close()

    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True), refuses)
        answer = await talk(world.http, ask + b"GET /admin HTTP/1.1\r\nHost: ann.example\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 426")
        await until(lambda: rest)
        assert rest == [b""]


@in_loop
async def test_an_upgrade_to_another_protocol_is_not_passed_on() -> None:
    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
        answer = await request(world.http, "ann.example", "Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c")
        assert b"h2c" not in answer
        assert b"Connection: close" in answer


@in_loop
async def test_a_body_that_is_cut_short_ends_with_a_reset_for_the_service() -> None:
    outcome: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def reads(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            outcome.set_result(await reader.read())
        except Exception as error:
            outcome.set_result(error)
        writer.close()

    async with rig() as world:
        await world.serve("ann", "site", PublicPlace(host="ann.example", http=True), reads)
        sent = b"POST / HTTP/1.1\r\nHost: ann.example\r\nContent-Length: 100\r\n\r\nhalf"
        await talk(world.http, sent, ends=True)
        assert isinstance(await outcome, ConnectionError | OSError)


@in_loop
async def test_a_service_gets_the_address_of_the_client_in_a_proxy_header() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def reads(reader: StreamReader, writer: StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()

    async with rig() as world:
        port = world.ports["ann"]
        await world.serve("ann", "raw", PublicPlace(port, proxy_header=True), reads)
        await talk(port, b"payload", ends=True)
        said = await heard
    assert said[:12] == b"\r\n\r\n\x00\r\nQUIT\n"
    assert said[12:16] == b"\x21\x11\x00\x0c"
    assert said[16:24] == bytes([127, 0, 0, 1] * 2)
    assert int.from_bytes(said[26:28], "big") == port
    assert said[28:] == b"payload"


@pytest.mark.real("openssl")
def test_public_http_works_over_tls(certificates: Path) -> None:
    """TLS has no half-close: the relay ends the connection after the answer."""
    context = ssl.create_default_context(cafile=certificates / "ca.pem")

    @in_loop
    async def scenario() -> None:
        async with rig(tls=files(certificates)) as world:
            await world.serve("ann", "site", PublicPlace(host="ann.example", http=True))
            for host, status in (("ann.example", b"200"), ("other.example", b"404")):
                reader, writer = await asyncio.open_connection(LOOPBACK.host, world.http, ssl=context)
                writer.write(f"POST / HTTP/1.1\r\nHost: {host}\r\nContent-Length: 4\r\n\r\nbody".encode())
                said = await reader.read()
                assert said.startswith(b"HTTP/1.1 " + status)
                assert (b"X-Forwarded-Proto: https" in said) == (status == b"200")
                await shut(writer)
            assert await talk(world.http, b"GET / HTTP/1.1\r\nHost: ann.example\r\n\r\n") in (b"", b"reset")
            await until(lambda: world.public.open_connections == 0)

    scenario()


@in_loop
async def test_http_at_a_port_of_its_own_takes_any_host() -> None:
    async with rig() as world:
        port = world.ports["ann"]
        await world.serve("ann", "site", PublicPlace(port, http=True))
        assert b"X-Forwarded-For: 127.0.0.1" in await request(port, "whatever.example")
