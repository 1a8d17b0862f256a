"""A relay with its inline exit, beside which an exit in a process of its own attaches: what it logs and who dials."""

import asyncio
import contextlib
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.encryption.rig import key
from tests.servlet.rig import ANYWHERE, TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tunnel import PeerKeyError, attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.exit.dialer import Dialer

EXITS = {"ann": ANYWHERE, "exits": Grant(exit=True)}


async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionResetError):
        writer.write(b"hello")
        await writer.drain()
        await reader.read()
    writer.close()


def said(logs: list[Any]) -> list[str]:
    return [line["event"] for line in logs if line["event"] in ("separate_exit", "inline_exit")]


@in_loop
async def test_the_log_says_once_which_exits_dial_and_again_when_the_rules_remove_the_last_one() -> None:
    rules = GrantTable(EXITS)
    dialer = Dialer(rules.rules_of)
    running = relay(settings(exit="inline", grants=rules, switch={"settle_us": 1}))
    with capture_logs() as logs:
        async with running, await asyncio.start_server(greet, "127.0.0.1", 0) as server:
            url, port = f"http://{running.addresses[0]}", server.sockets[0].getsockname()[1]
            common: dict[str, Any] = {"proxy": None, "linger": 0.1}
            async with attach(url, token=TOKENS["ann"], **common) as ann:
                async with attach(url, token=TOKENS["exits"], exit_handler=dialer, name="berlin", **common) as berlin:
                    streams = [await ann.open_connection("127.0.0.1", port, timeout=30) for _ in range(4)]
                    assert [await reader.readexactly(5) for reader, _ in streams] == [b"hello"] * 4
                    assert dialer.connections == 4
                    assert said(logs) == ["separate_exit"]
                    running.relay.reload(settings(exit="inline", grants=GrantTable({**EXITS, "exits": Grant()})))
                    await until(lambda: berlin.refusal is not None)
                assert said(logs) == ["separate_exit", "inline_exit"]
                reader, writer = await ann.open_connection("127.0.0.1", port, timeout=30)
                assert await reader.readexactly(5) == b"hello"
                assert dialer.connections == 0
                writer.close()
    (line,) = [line for line in logs if line["event"] == "separate_exit"]
    assert (line["user"], line["name"]) == ("exits", "berlin")
    assert 'exit = "none"' in line["text"]


@pytest.mark.parametrize(
    ("exit_", "grants", "is_said"),
    [("inline", EXITS, True), ("none", EXITS, False), ("inline", {"ann": ANYWHERE}, False)],
)
@in_loop
async def test_the_log_says_at_the_start_that_connections_wait_for_separate_exits(
    exit_: str, grants: dict[str, Grant], *, is_said: bool
) -> None:
    with capture_logs() as logs:
        async with relay(settings(exit=exit_, grants=GrantTable(grants))):
            pass
    assert [line["event"] for line in logs].count("expects_exits") == is_said


@pytest.mark.parametrize("options", [{"peer_key": key().fingerprint}, {"encryption": "require"}])
@in_loop
async def test_a_connection_that_must_be_encrypted_names_the_inline_exit_that_took_it(options: dict[str, Any]) -> None:
    async with (
        relay(settings(exit="inline", switch={"settle_us": 1})) as running,
        await asyncio.start_server(greet, "127.0.0.1", 0) as server,
        attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None, **options) as ann,
    ):
        with pytest.raises(PeerKeyError, match=r"inline exit.*tunnel-relay exit.*exit = \"none\""):
            await ann.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], timeout=30)


@pytest.mark.parametrize(
    ("grants", "expected"),
    [
        (EXITS, True),
        ({"ann": ANYWHERE}, False),
        ({}, False),
    ],
)
def test_only_rules_with_exit_true_let_a_relay_wait_for_exits(grants: dict[str, Grant], expected: bool) -> None:
    assert GrantTable(grants).has_separate_exits is expected
    assert GrantTable(grants, Grant(exit=True)).has_separate_exits
