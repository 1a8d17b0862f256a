"""Before a client has shown a valid token, it can make the relay spend almost nothing."""

from __future__ import annotations

import asyncio
import socket
import ssl
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from tests.servlet.rig import TOKENS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.web.rig import answer, certificates, close, connect, files, request
from tests.support.logs import limited_logs
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.wire import Attached, StatusCode
from tunnel_servlet.web.http.payers import UNAUTHENTICATED
from tunnel_servlet.web.running import RunningRelay

__all__ = ["certificates"]

SHORT = 0.05
ELSEWHERE = "127.0.0.2"  # the attacker's address; the victim's is 127.0.0.1
POST = b"POST /exchange HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 0\r\n"
BAD = b"\xff\xfe\xc3\x28"


async def unauthenticated(
    running: RunningRelay, source: str = ELSEWHERE
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection from the attacker's address."""
    address = running.addresses[0]
    return await asyncio.open_connection(address.host, address.port, local_addr=(source, 0))


@pytest.mark.parametrize(
    "request_",
    [
        POST + b"Authorization: Bearer tnl_" + BAD + b"\r\n\r\n",
        POST + b"Authorization: " + BAD + b"\r\n\r\n",
        POST + b"Expect: " + BAD + b"\r\n\r\n",
        POST + b"Expect: 100-continue, " + BAD + b"\r\n\r\n",
        POST + b"X-Endpoint-Role: " + BAD + b"\r\nContent-Type: " + BAD + b"\r\nContent-Encoding: " + BAD + b"\r\n\r\n",
        POST + b"Cookie: " + BAD + b"\r\nUpgrade: " + BAD + b"\r\nConnection: upgrade\r\n\r\n",
        b"GET /" + BAD + b" HTTP/1.1\r\nHost: " + BAD + b"\r\nExpect: " + BAD + b"\r\n\r\n",
        b"GET /link?" + BAD + b" HTTP/1.1\r\nHost: [::1\r\nUpgrade: tunnel\r\nConnection: Upgrade\r\n\r\n",
        b"GET http://[:::::]:99999/ HTTP/1.1\r\nHost: x\r\n\r\n",
        b"CONNECT " + BAD + b":443 HTTP/1.1\r\nHost: x\r\n\r\n",
        b"OPTIONS * HTTP/1.1\r\nHost: x\r\n\r\n",
        BAD + b" / HTTP/1.1\r\nHost: x\r\n\r\n",
        POST + BAD + b": x\r\n\r\n",
        b"POST /exchange HTTP/1.1\r\nHost: x\r\nContent-Length: \xb2\r\n\r\n",
    ],
)
@pytest.mark.parametrize("is_open", [False, True])
@in_loop
async def test_two_users_unauthenticated_requests_are_refused_with_one_line_a_second_at_most(
    request_: bytes, is_open: bool
) -> None:
    with limited_logs() as logs:
        async with relay(settings(is_open=is_open)) as running, Client(running) as victim:
            for _ in range(30):
                reader, writer = await unauthenticated(running)
                writer.write(request_)
                status, _ = await answer(reader)
                assert 400 <= status < 500
                await close(writer)
            assert isinstance(await victim.attach(), Attached)
    about = [line for line in logs if line.get("address")]
    assert len(about) <= 2  # one for each second that the requests took
    assert "exception" not in str(logs)
    assert all(len(str(line)) < 300 for line in logs)


@in_loop
async def test_two_users_wrong_tokens_of_any_bytes_are_counted() -> None:
    async with relay(settings(limits={"auth_failures_per_minute": 2})) as running, Client(running) as victim:
        statuses = []
        for number in range(4):
            reader, writer = await unauthenticated(running)
            writer.write(POST + b"Authorization: Bearer " + BAD + b"%d\r\n\r\n" % number)
            statuses.append((await answer(reader))[0])
            await close(writer)
        assert statuses == [401, 401, 429, 429]
        assert isinstance(await victim.attach(), Attached)


@pytest.mark.parametrize("path", [b"/", b"/exchange", b"/link"])
@in_loop_within(HANGING_S)
async def test_two_users_an_answer_to_an_unauthenticated_client_ends_the_connection(path: bytes) -> None:
    async with relay() as running:
        reader, writer = await unauthenticated(running)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\nConnection: keep-alive\r\n\r\n")
        assert (await answer(reader))[0] in (401, 404, 405)
        assert await reader.read() == b""
        await close(writer)


@pytest.mark.parametrize(
    ("refused", "status"),
    [
        (POST + b"Authorization: Bearer tnl_wrong\r\n\r\n", 401),
        (POST + b"\r\n", 401),
        (b"GET /link HTTP/1.1\r\nHost: x\r\nUpgrade: tunnel\r\nConnection: Upgrade\r\n\r\n", 401),
        (b"GET /elsewhere HTTP/1.1\r\nHost: x\r\n\r\n", 404),
    ],
)
@in_loop_within(HANGING_S)
async def test_two_users_who_fails_on_a_connection_that_a_proxy_has_used_for_a_user_waits_with_strangers_and_ends_it(
    refused: bytes, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay() as running:
        turns, waited = running.relay.host.turns, []
        wait = turns.wait_for_turn

        async def wait_for_turn(payer: str) -> None:
            waited.append(payer)
            await wait(payer)

        monkeypatch.setattr(turns, "wait_for_turn", wait_for_turn)
        reader, writer = await connect(running)
        for seed in (1, 2):  # the connection is kept for the user
            writer.write(request(attach_body(seed), "ann"))
            assert (await answer(reader))[0] == 200
        waited.clear()
        writer.write(refused)
        assert (await answer(reader))[0] == status
        assert await reader.read() == b""
        assert waited == [UNAUTHENTICATED]
        await close(writer)


@in_loop
async def test_two_users_connections_of_one_address_are_limited_until_they_show_a_token() -> None:
    async with relay(settings(limits={"connections_per_address_max": 2})) as running:
        held = [await unauthenticated(running) for _ in range(2)]
        await until(lambda: running.connections.unauthenticated == 2)
        newest = await unauthenticated(running)
        assert await held[0][0].read() == b""  # the oldest makes room
        await close(held[0][1])
        held = [held[1], newest]
        victims = [Client(running, user) for user in ("ann", "ann", "bob", "bob")]
        for number, victim in enumerate(victims):
            assert isinstance(await victim.attach(number + 1), Attached)
        await close(held[0][1])
        await until(lambda: running.connections.unauthenticated == 1)
        reader, writer = await unauthenticated(running)
        writer.write(POST + b"\r\n")
        assert (await answer(reader))[0] == 401
        for client in victims:
            await client.session.close()
        for _, open_ in (*held, (reader, writer)):
            await close(open_)
    assert (running.connections.total, running.connections.unauthenticated) == (0, 0)


@in_loop
async def test_two_users_unauthenticated_clients_leave_half_of_all_connections_to_users() -> None:
    limits = {"connections_max": 8, "connections_per_address_max": 100}
    async with relay(settings(limits=limits)) as running:
        victim = Client(running)
        assert isinstance(await victim.attach(), Attached)
        held = [await unauthenticated(running, f"127.0.0.{2 + number // 4}") for number in range(16)]
        ends = [asyncio.ensure_future(reader.read()) for reader, _ in held]
        await until(lambda: sum(end.done() for end in ends) == 12)
        assert (running.connections.total, running.connections.unauthenticated) == (5, 4)
        assert isinstance(await victim.attach(), Attached)
        for end in ends:
            end.cancel()
        await victim.session.close()
        for _, writer in held:
            await close(writer)


@pytest.mark.parametrize("encrypted", [False, True])
@pytest.mark.real("openssl")
@in_loop
async def test_two_users_half_heads_from_five_addresses_keep_no_user_out(encrypted: bool, certificates: Path) -> None:
    """The attackers open a new connection for each that ends. No user who has a token notices."""
    limits = {"connections_max": 64, "connections_per_address_max": 16}
    config = settings(limits=limits, tls=files(certificates)) if encrypted else settings(limits=limits)
    context = ssl.create_default_context(cafile=certificates / "ca.pem") if encrypted else None
    async with relay(config) as running:
        held = [await unauthenticated(running, f"127.0.0.{2 + number % 5}") for number in range(80)]
        await until(lambda: running.connections.unauthenticated == 32)
        url = f"{'https' if encrypted else 'http'}://{running.addresses[0]}/exchange"
        for seed in range(1, 6):
            connector = aiohttp.TCPConnector(local_addr=(f"127.0.0.{100 + seed}", 0), force_close=True)
            async with aiohttp.ClientSession(connector=connector) as session:
                headers = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/octet-stream"}
                async with session.post(url, data=attach_body(seed), headers=headers, ssl=context or False) as response:
                    assert response.status == 200
            held += [await unauthenticated(running, f"127.0.0.{2 + number % 5}") for number in range(8)]
        for _, writer in held:
            await close(writer)
        await until(lambda: not running.connections.total)


@in_loop
async def test_two_users_one_user_leaves_connections_when_there_are_few_descriptors() -> None:
    """Here `connections_per_user_max` is more than there are at all."""
    async with relay(settings(limits={"connections_max": 8})) as running:
        clients = [Client(running, "ann") for _ in range(8)]
        codes = [(await client.post(attach_body(number + 1))).status for number, client in enumerate(clients)]
        assert codes == [200] * 4 + [429] * 4
        victim = Client(running, "bob")
        assert isinstance(await victim.attach(9), Attached)
        for client in (*clients, victim):
            await client.session.close()


@in_loop
async def test_two_users_one_user_does_not_take_the_connections_of_another() -> None:
    async with relay(settings(limits={"connections_per_user_max": 1})) as running:
        first, second, victim = Client(running, "ann"), Client(running, "ann"), Client(running, "bob")
        assert isinstance(await first.attach(1), Attached)
        refused = await second.post(attach_body(2))
        assert (refused.status, refused.message.code) == (429, StatusCode.BUSY)
        assert refused.headers["Retry-After"] == "1"
        assert isinstance(await victim.attach(3), Attached)
        await first.session.close()
        await until(lambda: running.connections.total == 1)
        assert isinstance(await second.attach(2), Attached)
        await second.session.close()
        await victim.session.close()


@in_loop
async def test_two_users_an_answer_that_is_not_read_ends_the_connection() -> None:
    running = relay(settings(limits={"answer_seconds": SHORT}))

    async def large(_: web.Request) -> web.Response:
        return web.Response(body=bytes(64 << 20))

    running.app.router.add_get("/large", large)
    async with running:
        _, writer = await connect(running)
        raw = writer.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(b"GET /large HTTP/1.1\r\nHost: x\r\n\r\n")
        await until(lambda: running.connections.total == 1)
        await until(lambda: running.connections.total == 0)
        await close(writer)


@in_loop
async def test_an_answer_that_is_read_in_time_is_whole_and_its_connection_goes_on() -> None:
    async with relay(settings(limits={"answer_seconds": 30})) as running, Client(running) as client:
        await client.attach()
        for number in range(1, 4):
            assert (await client.post(exchange_body(client.epoch, number))).status == 200
        assert running.connections.total == 1


@pytest.mark.real("openssl")
@in_loop
async def test_a_connection_over_tls_whose_answer_has_left_is_not_paused(certificates: Path) -> None:
    context = ssl.create_default_context(cafile=certificates / "ca.pem")
    async with relay(settings(tls=files(certificates))) as running, Client(running) as client:
        url = f"https://{running.addresses[0]}/exchange"
        headers = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/octet-stream"}
        for seed in (1, 2):
            async with client.session.post(url, data=attach_body(seed), headers=headers, ssl=context) as response:
                assert response.status == 200
            server = running._runners[0].server
            assert server is not None
            assert [connection.writing_paused for connection in server.connections] == [False]
        assert running.connections.held_bytes == 0


@pytest.mark.real("openssl")
@in_loop
async def test_two_users_a_stalled_tls_handshake_ends(certificates: Path) -> None:
    config = settings(tls=files(certificates), limits={"tls_seconds": SHORT, "connections_per_address_max": 1})
    async with relay(config) as running:
        reader, writer = await unauthenticated(running)
        await until(lambda: running.connections.unauthenticated == 1)  # counted before its handshake has ended
        assert await reader.read() == b""
        await until(lambda: running.connections.total == 0)
        await close(writer)


@pytest.mark.real("openssl")
@in_loop
async def test_garbage_for_tls_is_logged_once_a_second_at_most(certificates: Path) -> None:
    troubles: list[Any] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: troubles.append(context))
    with limited_logs() as logs:
        async with relay(settings(tls=files(certificates))) as running:
            for _ in range(20):
                reader, writer = await unauthenticated(running)
                writer.write(b"GET / HTTP/1.0\r\n\r\n" + BAD)
                await reader.read()
                await close(writer)
            await until(lambda: running.connections.total == 0)
    assert troubles == []
    assert len([line for line in logs if line.get("address") == ELSEWHERE]) <= 2


@pytest.mark.parametrize("path", [b"/", b"/exchange", b"/link"])
@in_loop
async def test_two_users_unauthenticated_clients_share_one_part_of_the_processor(path: bytes) -> None:
    async with relay() as running, Client(running) as victim:
        await victim.attach()  # from here on the user of the token pays
        turns = running.relay.host.turns
        turns.spend(UNAUTHENTICATED, 50_000)  # other unauthenticated clients have used up the time
        timer = turns._queues[UNAUTHENTICATED].timer
        assert timer is not None
        timer.cancel()  # so that these clients go on only at `turns.close()`
        reader, writer = await unauthenticated(running)
        writer.write(b"GET " + path + b" HTTP/1.1\r\nHost: x\r\n\r\n")
        waiting = asyncio.ensure_future(answer(reader))
        assert isinstance(await victim.attach(), Attached)
        assert not waiting.done()
        turns.close()
        assert (await waiting)[0] in (401, 404, 405)
        await close(writer)


@in_loop
async def test_a_connection_counts_for_the_user_of_a_token_that_is_shown_later() -> None:
    async with relay() as running, Client(running) as client:
        reader, writer = await connect(running)
        await until(lambda: running.connections.unauthenticated == 1)
        body = attach_body()
        head = POST.replace(b"Content-Length: 0", b"Content-Length: %d" % len(body))
        writer.write(head + f"Authorization: Bearer {TOKENS['ann']}\r\n".encode())
        writer.write(b"Content-Type: application/octet-stream\r\n\r\n" + body)
        assert (await answer(reader))[0] == 200
        assert (running.connections.total, running.connections.unauthenticated) == (1, 0)
        await close(writer)
        await until(lambda: running.connections.total == 0)
        assert isinstance(await client.attach(), Attached)
