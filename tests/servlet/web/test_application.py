"""The relay over HTTP: the requests that it serves, and the refusal of all others as in PROTOCOL 7.9 and 7.10."""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import AsyncIterator
from secrets import token_hex
from typing import Any

import pytest
from aiohttp import FormData, web
from structlog.testing import capture_logs

from tests.servlet.rig import TOKENS, Client, attach_body, exchange_body, relay, settings, until
from tests.servlet.support import connect, data, kinds, listen_state, read_rejected
from tests.support.loops import in_loop
from tunnel.wire import (
    Answer,
    Attached,
    EnvelopeError,
    Frame,
    RejectReason,
    Status,
    StatusCode,
    parse_packets,
)
from tunnel.wire.form_data import wrap_form
from tunnel_servlet.config import ListenAddress
from tunnel_servlet.web.application import RELAY, create_app
from tunnel_servlet.web.http.server import RelayRunner, listen


@in_loop
async def test_an_endpoint_attaches_and_exchanges() -> None:
    async with relay() as running, Client(running) as client:
        attached = await client.attach()
        assert isinstance(attached, Attached)
        assert (attached.epoch, attached.fresh) == (client.epoch, True)
        reply = await client.post(exchange_body(client.epoch, 1))
        assert reply.status == 200
        assert isinstance(reply.message, Answer)
        assert reply.headers["Content-Type"] == "application/octet-stream"
        assert reply.headers["Cache-Control"] == "no-store, no-transform"
        assert reply.headers["X-Accel-Buffering"] == "no"
        assert int(reply.headers["Content-Length"]) == len(reply.body)


@in_loop
async def test_the_base_path_prefixes_every_path() -> None:
    async with relay(settings(base="/a/b")) as running, Client(running, base="/a/b") as client:
        assert isinstance(await client.attach(), Attached)
        client.url = client.url.removesuffix("/a/b")
        assert (await client.post(attach_body())).status == 404


@in_loop
async def test_a_parked_pull_is_answered_when_something_waits() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
        await ann.attach()
        await exit_.attach(seed=2)
        pull = await exit_.parked(exchange_body(exit_.epoch, 1, seed=2, pull=True))
        await ann.post(exchange_body(ann.epoch, 1, connect(11)))
        packets, _ = parse_packets((await pull).message.data)
        assert kinds(packets) == ["CONNECT"]


@in_loop
async def test_a_parked_pull_is_answered_when_its_hold_ends() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        reply = await client.post(exchange_body(client.epoch, 1, pull=True, hold_ms=1))
        assert len(reply.message.data) == 0


@in_loop
async def test_a_repeat_releases_the_original_and_is_answered_with_a_later_serial() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        body = exchange_body(client.epoch, 1, pull=True)
        first = await client.parked(body)
        second = await client.post(body)
        assert second.message.serial > (await first).message.serial


@in_loop
async def test_the_pull_of_a_client_that_leaves_is_forgotten() -> None:
    async with relay() as running, Client(running) as client:
        await client.attach()
        pull = await client.parked(exchange_body(client.epoch, 1, pull=True))
        pull.cancel()
        await until(lambda: not running.relay.host.switch.stats().parked_pulls and not running.relay.host.waiting)


@in_loop
async def test_every_frame_goes_through_the_packet_filter() -> None:
    seen: list[Frame] = []

    def lose(frame: Frame) -> bool:
        seen.append(frame)
        return False

    async with relay(packet_filter=lose) as running, Client(running) as client:
        await client.attach()
        await client.post(exchange_body(client.epoch, 1, listen_state("reports")))
        assert len(seen) == 1
        assert running.relay.host.switch.stats().listeners == 0


@pytest.mark.parametrize(
    "authorization",
    ["", "Bearer", "Bearer tnl_00000000_x", f"Basic {TOKENS['ann']}", f"Bearer {TOKENS['ann']}x", "Bearer \u00e9"],
)
@in_loop
async def test_requests_without_a_valid_token_are_refused(authorization: str) -> None:
    async with relay() as running, Client(running) as client:
        reply = await client.post(attach_body(), Authorization=authorization)
        assert reply.status == 401
        assert reply.message.code is StatusCode.NOT_AUTHORISED
        assert reply.headers["WWW-Authenticate"].startswith("Bearer")
        assert running.relay.host.switch.stats().counters.requests == 0


@in_loop
async def test_wrong_tokens_beyond_the_limit_are_answered_with_429_but_valid_ones_are_not() -> None:
    config = settings(limits={"auth_failures_per_minute": 2})
    async with relay(config) as running, Client(running, "tnl_wrong") as wrong, Client(running) as right:
        statuses = [(await wrong.post(attach_body())).status for _ in range(3)]
        assert statuses == [401, 401, 429]
        reply = await wrong.post(attach_body())
        assert 0 < int(reply.headers["Retry-After"]) <= 60
        assert reply.message.code is StatusCode.BUSY
        assert isinstance(await right.attach(), Attached)


@in_loop
async def test_no_token_is_logged() -> None:
    with capture_logs() as logs:
        async with relay() as running, Client(running) as client, Client(running, TOKENS["bob"] + "x") as wrong:
            await client.attach()
            await wrong.attach()
    assert any(entry["event"] == "wrong_token" for entry in logs)
    assert "tnl_" not in str(logs)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Encoding": "gzip"}, 415),
        ({"Content_Encoding": "deflate"}, 415),
        ({"Content_Encoding": "identity"}, 200),
        ({"Content_Type": "text/html"}, 415),
        ({"Content_Type": "multipart/mixed; boundary=x"}, 415),
    ],
)
@in_loop
async def test_compressed_bodies_and_other_content_types_are_refused(headers: dict[str, str], status: int) -> None:
    async with relay() as running, Client(running) as client:
        body = gzip.compress(attach_body()) if "gzip" in headers.values() else attach_body()
        reply = await client.post(body, **headers)
        assert reply.status == status
        if status == 415:
            assert reply.message.code is StatusCode.MALFORMED


@in_loop
async def test_a_body_may_come_as_the_file_of_a_form() -> None:
    async with relay() as running, Client(running) as client:
        kind, form = wrap_form([attach_body()], token_hex)
        assert isinstance((await client.post(form, Content_Type=kind)).message, Attached)
        form_of_aiohttp = FormData()
        form_of_aiohttp.add_field("any", exchange_body(client.epoch, 1), filename="x", content_type="image/png")
        payload = form_of_aiohttp()
        reply = await client.post(payload, Content_Type=payload.headers["Content-Type"])
        assert isinstance(reply.message, Answer)


@in_loop
async def test_a_damaged_form_is_a_damaged_body() -> None:
    async with relay() as running, Client(running) as client:
        kind, form = wrap_form([attach_body()], token_hex)
        reply = await client.post(form[:-9], Content_Type=kind)
        assert (reply.status, reply.message.code) == (400, StatusCode.CORRUPT)
        assert "does not end with its boundary" in reply.message.text
        assert isinstance((await client.post(form, Content_Type=kind)).message, Attached)


async def chunks(*parts: bytes) -> AsyncIterator[bytes]:
    for part in parts:
        yield part


@in_loop
async def test_bodies_that_are_too_large_are_refused_with_a_status_message() -> None:
    async with relay(settings(switch={"body_bytes_max": 1 << 16})) as running, Client(running) as client:
        for body in (bytes((1 << 16) + 1), chunks(bytes(1 << 16), b"x")):
            reply = await client.post(body)
            assert (reply.status, reply.message.code) == (413, StatusCode.TOO_LARGE)
        assert isinstance((await client.post(chunks(attach_body()[:9], attach_body()[9:]))).message, Attached)


@in_loop
async def test_a_body_is_refused_as_soon_as_it_is_too_large() -> None:
    """A chunked body names no length, and may never end."""

    async def endless() -> AsyncIterator[bytes]:
        yield bytes((1 << 16) + 1)
        await asyncio.Event().wait()

    async with relay(settings(switch={"body_bytes_max": 1 << 16})) as running, Client(running) as client:
        reply = await client.post(endless())
        assert (reply.status, reply.message.code) == (413, StatusCode.TOO_LARGE)
        assert running.relay.host.switch.stats().counters.requests == 0


@in_loop
async def test_bodies_are_never_unpacked() -> None:
    """A small body could become a very large one."""
    running = relay()

    async def count(request: web.Request) -> web.Response:
        return web.Response(text=str(len(await request.read())))

    running.app.router.add_post("/count", count)
    packed = gzip.compress(bytes(1 << 20))
    async with running, Client(running) as client:
        reply = await client.ask("POST", "/count", packed, Content_Encoding="gzip")
        assert int(reply.body) == len(packed)


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, StatusCode.CORRUPT),
        (b"<html>", 400, StatusCode.CORRUPT),
        (attach_body()[:-1], 400, StatusCode.CORRUPT),
        (exchange_body(1, 1), 404, StatusCode.UNKNOWN),
    ],
)
@in_loop
async def test_a_bad_body_is_refused_with_a_status_message(body: bytes, status: int, code: StatusCode) -> None:
    async with relay() as running, Client(running) as client:
        reply = await client.post(body)
        assert (reply.status, reply.message.code) == (status, code)


@in_loop
async def test_another_user_gets_the_answer_for_an_unknown_id() -> None:
    """Scenario 37: the answer is the same as for an id that does not exist."""
    async with relay() as running, Client(running) as ann, Client(running, "bob") as bob:
        await ann.attach()
        theirs = await bob.post(exchange_body(ann.epoch, 1))
        nobodys = await bob.post(exchange_body(ann.epoch, 1, seed=9))
        assert theirs.status == 404
        assert theirs.body == nobodys.body
        assert isinstance((await ann.post(exchange_body(ann.epoch, 1))).message, Answer)


@pytest.mark.parametrize(
    ("user", "role", "status", "exits"),
    [
        ("exits", "exit", 200, 1),
        ("exits", "", 200, 0),
        ("exits", "conductor", 200, 0),
        ("exits", "endpoint", 200, 0),
        ("ann", "exit", 403, 0),
        ("ann", "endpoint", 200, 0),
        ("ann", "", 200, 0),
        ("ann", "conductor", 200, 0),  # from an endpoint of a later version
    ],
)
@in_loop
async def test_an_endpoint_states_its_role(user: str, role: str, status: int, exits: int) -> None:
    """7.17: only an endpoint that names the role *exit* is one, and it is refused if its user may not be an exit."""
    async with relay() as running, Client(running, user) as client:
        client.role = role
        reply = await client.post(attach_body())
        assert reply.status == status
        if status == 200:
            assert (await client.post(exchange_body(client.epoch, 1))).status == 200  # whatever its role
        else:
            assert "ann may not be an exit: exit = true is missing" in reply.message.text
        assert running.relay.host.switch.stats().exits == exits


@pytest.mark.parametrize(
    ("headers", "exits"),
    [
        ({"Tunnel_Role": "exit"}, 1),
        ({"Tunnel_Role": "endpoint"}, 0),
        ({"X_Endpoint_Role": "exit", "Tunnel_Role": "endpoint"}, 1),
        ({"X_Endpoint_Role": "endpoint", "Tunnel_Role": "exit"}, 0),
    ],
)
@in_loop
async def test_an_earlier_endpoint_states_its_role_in_another_header(headers: dict[str, str], exits: int) -> None:
    async with relay() as running, Client(running, "exits") as client:
        client.role = ""
        assert (await client.post(attach_body(), **headers)).status == 200
        assert (await client.post(exchange_body(client.epoch, 1), **headers)).status == 200
        assert running.relay.host.switch.stats().exits == exits


@pytest.mark.parametrize("role", ["", "endpoint", "conductor"])
@in_loop
async def test_two_users_an_endpoint_that_does_not_state_that_it_is_an_exit_gets_no_plaintext(role: str) -> None:
    """7.17: the user `exits` may be an exit, but this endpoint of theirs does not say that it is one."""
    running = relay(settings(switch={"settle_us": 0}))
    with capture_logs() as logs:
        async with running, Client(running) as ann, Client(running, "exits") as plain:
            plain.role = role
            await plain.attach(2)
            await plain.post(exchange_body(plain.epoch, 1, seed=2))
            await ann.attach()
            reply = await ann.post(exchange_body(ann.epoch, 1, connect(11), data(11, 0, 101)))
            (refused,) = parse_packets(reply.message.data)[0]
            assert read_rejected(refused).reason == RejectReason.NO_EXIT
            reply = await plain.post(exchange_body(plain.epoch, 2, seed=2))
            assert parse_packets(reply.message.data)[0] == []
    assert [line["user"] for line in logs if line["event"] == "no_role"] == ["exits"] * (role == "")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/", 404),
        ("GET", "/index.html", 404),
        ("POST", "/exchange/", 404),
        ("POST", "/Exchange", 404),
        ("GET", "/exchange", 405),
        ("PUT", "/exchange", 405),
        ("OPTIONS", "/exchange", 405),
        ("POST", "/link", 405),
        ("HEAD", "/link", 405),
    ],
)
@in_loop
async def test_other_paths_and_methods_are_answered_without_magic_or_html(method: str, path: str, status: int) -> None:
    async with relay() as running, Client(running) as client:
        reply = await client.ask(method, path, Accept="text/html", Authorization=f"Bearer {TOKENS['ann']}")
        assert reply.status == status
        assert reply.message is EnvelopeError.NOT_OURS
        assert "html" not in reply.headers["Content-Type"]
        assert b"<" not in reply.body
        assert (status == 405) == ("Allow" in reply.headers)


@in_loop
async def test_a_bug_is_answered_in_plain_text_and_logged() -> None:
    async with relay() as running, Client(running) as client:
        running.relay.tokens = None  # type: ignore[assignment]  # break the relay
        with capture_logs() as logs:
            reply = await client.post(attach_body(), Accept="text/html")
        assert (reply.status, reply.body) == (500, b"Internal Server Error")
        assert [entry["event"] for entry in logs] == ["failed"]


@in_loop
async def test_a_link_needs_an_upgrade() -> None:
    async with relay() as running, Client(running) as client:
        assert (await client.ask("GET", "/link")).status == 401
        reply = await client.ask("GET", "/link", Authorization=f"Bearer {TOKENS['ann']}")
        assert (reply.status, reply.headers["Upgrade"]) == (426, "tunnel-link/1")


@pytest.mark.parametrize(
    ("host", "status"), [("localhost:8080", 200), ("[::1]", 200), ("127.0.0.1", 200), ("evil.example:8080", 403)]
)
@in_loop
async def test_an_open_relay_needs_no_token_but_localhost_or_an_ip_address_as_its_host(host: str, status: int) -> None:
    """DNS rebinding: a page in a browser that reaches the relay under its own host name could read the answers."""
    async with relay(settings(is_open=True)) as running, Client(running) as client:
        assert (await client.post(attach_body(), Authorization="", Host=host)).status == status


@in_loop
async def test_the_relay_also_runs_as_a_plain_aiohttp_application() -> None:
    app = create_app(settings())
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = ListenAddress("127.0.0.1", runner.addresses[0][1])
    running: Any = type("Running", (), {"addresses": [address], "relay": app[RELAY]})
    async with Client(running) as client:
        assert isinstance(await client.attach(), Attached)
        reply = await client.post(gzip.compress(attach_body()), Content_Encoding="gzip")
        assert reply.status == 415
    await runner.cleanup()
    assert not app[RELAY].is_ready


@in_loop
async def test_held_pulls_are_answered_when_the_relay_stops() -> None:
    app = create_app(settings())
    runner = RelayRunner(app, settings().limits)
    await runner.setup()
    address = await listen(runner, ListenAddress("127.0.0.1", 0))
    running: Any = type("Running", (), {"addresses": [address], "relay": app[RELAY]})
    async with Client(running) as client:
        await client.attach()
        pull = await client.parked(exchange_body(client.epoch, 1, pull=True))
        await runner.cleanup()
        reply = await pull
        assert isinstance(reply.message, Status)
        assert (reply.status, reply.message.code) == (503, StatusCode.BUSY)
