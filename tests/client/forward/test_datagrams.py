"""UDP through the tunnel: forwards and SOCKS, a flow for each sender and target, and the rules for datagrams."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from typing import Any

import pytest

from tests.client.forward.rig import peer
from tests.client.rig import TOKEN
from tests.encryption.rig import key, key_file
from tests.servlet.rig import TOKENS, relay, settings
from tests.support.loops import in_loop, run
from tunnel import Attachment, DeniedError, RefusedError, attach
from tunnel_client.cli.commands.proxy import Proxying
from tunnel_client.forward.datagrams import DatagramForwarding
from tunnel_client.forward.flows import Flows
from tunnel_client.forward.listening import bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address
from tunnel_client.proxy.socks import encode_address, parse_address
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.exit.dialer import Dialer

LOOPBACK = Address("127.0.0.1", 0)


@asynccontextmanager
async def attached(*rules: str, encrypted: bool = False) -> AsyncIterator[Attachment]:
    """An attachment to a relay with an inline exit or, if `encrypted`, with another exit, which refuses clear text."""
    grants = GrantTable({"ann": Grant(connect=tuple(map(parse_rule, rules))), "exits": Grant(exit=True)})
    config = settings(exit="none" if encrypted else "inline", grants=grants)
    async with AsyncExitStack() as stack:
        running = await stack.enter_async_context(relay(config))
        url = f"http://{running.addresses[0]}"
        if encrypted:
            theirs: dict[str, Any] = {
                "exit_handler": Dialer(running.relay.rules_of),
                "key": key_file(),
                "encryption": "require",
            }
            await stack.enter_async_context(attach(url, token=TOKENS["exits"], proxy=None, **theirs))
        ours: dict[str, Any] = {"peer_key": key().fingerprint} if encrypted else {}
        yield await stack.enter_async_context(attach(url, token=TOKEN, proxy=None, carrier="poll", **ours))


either = pytest.mark.parametrize("encrypted", [False, True], ids=["clear", "encrypted"])


@either
def test_a_forward_keeps_the_boundaries_of_datagrams_and_keeps_senders_apart(encrypted: bool) -> None:
    async def scenario() -> None:
        async with (
            attached("udp/localhost:*", encrypted=encrypted) as attachment,
            peer(echoes=True) as target,
            peer() as one,
            peer() as other,
        ):
            sock = bind(LOOPBACK, socket.SOCK_DGRAM)
            port = sock.getsockname()[1]
            traffic = Traffic(attachment)
            async with DatagramForwarding(attachment, Address("localhost", target.port), sock, traffic) as forwarding:
                for number in range(5):
                    one.say(b"one %d" % number, port)
                    other.say(b"x" * 1000, port)
                    assert (await one.heard.get())[0] == b"ONE %d" % number
                    assert (await other.heard.get())[0] == b"X" * 1000
                assert len(forwarding.flows) == 2
                assert (traffic.report().connections, traffic.failed) == (2, 0)
                assert set(attachment.stats().encryption.values()) == {"verified" if encrypted else ""}
            senders = {target.heard.get_nowait()[1] for _ in range(10)}
            assert len(senders) == 2

    run(scenario())


@in_loop
async def test_an_idle_flow_ends_and_the_least_recently_used_makes_room() -> None:
    async with attached("udp/127.0.0.1:*") as attachment, peer(echoes=True) as target:
        heard: asyncio.Queue[bytes] = asyncio.Queue()
        where = Address("127.0.0.1", target.port)
        resting = Flows(attachment, Traffic(attachment), idle_seconds=0.2)
        while heard.empty():  # on a busy machine the flow may end as idle before it reaches the target
            resting.send("a", where, b"a", heard.put_nowait)
            await asyncio.sleep(0.05)
        while len(resting):  # noqa: ASYNC110 - the flow ends by itself, without an event
            await asyncio.sleep(0.01)
        heard = asyncio.Queue()
        traffic = Traffic(attachment)
        full = Flows(attachment, traffic, flows_max=2)
        for key in "abac":
            full.send(key, where, key.encode(), heard.put_nowait)
            if key != "c":
                assert await heard.get() == key.upper().encode()
        assert len(full) == 2
        assert await heard.get() == b"C"
        full.send("a", where, b"still", heard.put_nowait)
        assert await heard.get() == b"STILL"
        assert traffic.report().connections == 3  # flow a was used more recently, so c replaced flow b
        full.send("b", where, b"anew", heard.put_nowait)
        assert await heard.get() == b"ANEW"
        assert traffic.report().connections == 4
        await full.close()
        full.send("b", where, b"closed", heard.put_nowait)
        assert len(full) == 0


@in_loop
async def test_rules_for_datagrams_do_not_apply_to_connections_or_vice_versa() -> None:
    async with attached("127.0.0.1:*", "udp/127.0.0.1:53", "udp/nowhere.invalid:*") as attachment:
        for host, port, error, text in (
            ("udp:127.0.0.1", 54, DeniedError, "no rule allows udp/127.0.0.1:54"),
            ("udp:example.com", 53, DeniedError, "no rule allows udp/example.com:53"),
            ("example.com", 53, DeniedError, "no rule allows example.com:53"),
            ("udp:nowhere.invalid", 1, RefusedError, "nowhere.invalid has no address"),
        ):
            with pytest.raises(error, match=text):
                await attachment.open_connection(host, port, timeout=30)
        _, writer = await attachment.open_connection("udp:127.0.0.1", 53, timeout=30)
        writer.transport.abort()


@in_loop
async def test_datagrams_to_a_denied_target_are_dropped_without_a_new_request_for_each() -> None:
    async with attached("127.0.0.1:*") as attachment:
        traffic = Traffic(attachment)
        flows = Flows(attachment, traffic)
        for _ in range(300):
            flows.send("a", Address("127.0.0.1", 9), b"x", lambda datagram: None)
            await asyncio.sleep(0)
        while not traffic.failed:  # noqa: ASYNC110
            await asyncio.sleep(0.01)
        flows.send("a", Address("127.0.0.1", 9), b"x", lambda datagram: None)
        assert (traffic.failed, len(flows)) == (1, 1)
        await flows.close()
        assert len(flows) == 0


@either
def test_a_socks_association_carries_only_datagrams_of_its_own_client_and_ends_with_its_connection(
    encrypted: bool,
) -> None:
    run(_use_a_socks_association(encrypted))


async def _use_a_socks_association(encrypted: bool) -> None:
    async with (
        attached("udp/localhost:*", encrypted=encrypted) as attachment,
        peer(echoes=True) as target,
        peer() as client,
        peer() as stranger,
    ):
        sock = socket.create_server(("127.0.0.1", 0))
        async with Proxying(attachment, sock, Traffic(attachment)):
            reader, writer = await asyncio.open_connection(*sock.getsockname())
            writer.write(b"\x05\x01\x00\x05\x03\x00" + encode_address("0.0.0.0", 0))
            answer = await reader.readexactly(2 + 10)
            assert answer[:5] == b"\x05\x00\x05\x00\x00"
            found = parse_address(answer, 5)
            assert found is not None
            assert found[0] == "127.0.0.1"
            head = bytes(3) + encode_address("localhost", target.port)
            for bad in (b"", bytes(3) + b"\x09", b"\0\0\1" + head[3:] + b"piece", bytes(3) + encode_address("", 0)):
                client.say(bad, found[1])
            client.say(head + b"hello", found[1])
            assert (await client.heard.get())[0] == head + b"HELLO"
            stranger.say(head + b"me too", found[1])
            client.say(head + b"more", found[1])
            assert (await client.heard.get())[0] == head + b"MORE"
            assert [target.heard.get_nowait()[0] for _ in range(target.heard.qsize())] == [b"hello", b"more"]
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
            await _is_free(found[1])
            while attachment.stats().connections:  # noqa: ASYNC110 - flows end without an event
                await asyncio.sleep(0.01)


async def _is_free(port: int) -> None:
    """Wait until this UDP port can be bound, because no event tells that the proxy has closed its socket."""
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock, suppress(OSError):
            sock.bind(("127.0.0.1", port))
            return
        await asyncio.sleep(0.01)
