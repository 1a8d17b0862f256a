"""Forwards and services whose ends are Unix sockets, datagrams or ranges of ports, through a real relay and exit."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from tests.client.cli.commands.rig import echo
from tests.client.forward.rig import peer
from tests.servlet.rig import TOKENS, relay, settings
from tests.support.loops import in_loop
from tests.support.targets import unix_target
from tunnel import Attachment, DeniedError, attach
from tunnel.ground.exit_codes import USAGE
from tunnel_client.cli.commands.expose import Exposing
from tunnel_client.cli.commands.forward import Forwarding
from tunnel_client.cli.main import main
from tunnel_client.forward.datagrams import DatagramForwarding
from tunnel_client.forward.listening import bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.forward.unix_sockets import bind_unix
from tunnel_client.places import Address, parse_address, parse_forward, parse_target
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule


@asynccontextmanager
async def users(*rules: str) -> AsyncIterator[tuple[Attachment, Attachment]]:
    """Attachments of ann, who has these rules and offers services, and of bob, who may reach only service udp/dns."""
    ann = Grant(connect=tuple(map(parse_rule, rules)), services=("db",), listen=("udp/dns", "db"))
    grants = GrantTable({"ann": ann, "bob": Grant(services=("udp/dns",), listen=("udp/other",))})
    config = settings(exit="inline", grants=grants, switch={"settle_us": 1})
    async with relay(config) as running, AsyncExitStack() as stack:
        url = f"http://{running.addresses[0]}"
        one, other = [
            await stack.enter_async_context(attach(url, token=TOKENS[user], proxy=None, linger=0.1))
            for user in ("ann", "bob")
        ]
        yield one, other


async def exchange(path: str) -> bytes:
    """Say hello at a Unix socket; return the answer."""
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(b"hello" * 100_000)
    writer.write_eof()
    answer = await reader.read(-1)
    writer.close()
    await writer.wait_closed()
    return answer


@pytest.mark.parametrize("as_service", [False, True])
def test_a_unix_socket_leads_to_a_unix_socket(tmp_path: Path, as_service: bool) -> None:
    near, far = f"{tmp_path}/near", f"{tmp_path}/far"
    target = "db" if as_service else f"unix:{far}"

    @in_loop
    async def scenario() -> None:
        async with unix_target(echo, far), users(f"unix:{far}") as (ann, _), AsyncExitStack() as stack:
            traffic = Traffic(ann)
            if as_service:
                await stack.enter_async_context(Exposing(ann, "db", parse_address(f"unix:{far}"), traffic))
            spec = parse_forward(f"unix:{near}:{target}")
            sock = stack.enter_context(bind_unix(spec.bind))
            forwarding = await stack.enter_async_context(Forwarding(ann, spec.target, sock, traffic))
            assert await exchange(near) == b"hello" * 100_000
            assert traffic.failed == 0
            await forwarding.stop_listening()

    scenario()
    assert not Path(near).exists()


def test_another_user_does_not_reach_the_unix_socket_of_a_rule(tmp_path: Path) -> None:
    path = f"{tmp_path}/far"

    @in_loop
    async def scenario() -> None:
        target = parse_target(f"unix:{path}")
        async with unix_target(echo, path), users(f"unix:{path}") as (_, bob):
            with pytest.raises(DeniedError, match=r'under \[users.bob\] .* connect = \["unix:'):
                await bob.open_connection(target.host, target.port)

    scenario()


@in_loop
async def test_datagrams_to_a_service_keep_their_boundaries_and_senders_are_kept_apart() -> None:
    """Bob may reach the service only; both senders use his forward."""
    async with users() as (ann, bob), peer(echoes=True) as server, peer() as one, peer() as other:
        exposing = Exposing(ann, "udp/dns", Address("127.0.0.1", server.port), Traffic(ann))
        sock = bind(Address("127.0.0.1", 0), socket.SOCK_DGRAM)
        port = sock.getsockname()[1]
        forwarding = DatagramForwarding(bob, parse_forward("udp/1:dns").target, sock, Traffic(bob))
        async with exposing, forwarding:
            one.say(b"a", port)
            other.say(b"b" * 1400, port)
            one.say(b"c", port)
            assert [(await one.heard.get())[0] for _ in range(2)] == [b"A", b"C"]
            assert (await other.heard.get())[0] == b"B" * 1400
            sources = {(await server.heard.get())[1] for _ in range(3)}
            assert len(sources) == 2


@in_loop
async def test_a_user_who_may_reach_udp_dns_may_neither_reach_dns_nor_offer_udp_dns() -> None:
    async with users() as (ann, bob), peer(echoes=True) as server:
        async with Exposing(ann, "udp/dns", Address("127.0.0.1", server.port), Traffic(ann)):
            with pytest.raises(DeniedError, match="no rule allows the service dns"):
                await bob.open_connection("dns")
        with pytest.raises(DeniedError, match="the relay does not allow this user to listen"):
            await bob.start_server(lambda reader, writer: None, "udp/dns")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("forward", "unix:/tmp/a:db:1", "unix:/tmp/a:db:2"), "have the same local socket, which can lead to one"),
        (("forward", "8000-8002:db:1-3", "8001:db:9"), "127.0.0.1:8001 -> db:2 and 127.0.0.1:8001 -> db:9 have the"),
        (("forward", "*:8001:db:9", "8000-8002:db:1-3"), "have the same local port, which can lead to one target"),
        (("expose", "udp/dns", "unix:/run/dns"), "a Unix socket carries no datagrams: name a HOST:PORT"),
        (("connect", "unix:relative"), "'relative' is not the path of a Unix socket"),
    ],
)
def test_mistakes_are_explained(words: tuple[str, ...], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*words, "--relay", "http://127.0.0.1:1", "--insecure-http"]) == USAGE
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("mode", ["", "8", "999", "1777", "0o600", "rw"])
def test_modes_of_sockets_are_octal(mode: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["forward", f"--socket-mode={mode}", "unix:/tmp/a:db:1"])
    assert "is not a mode: write three octal digits, such as 660" in capsys.readouterr().err
