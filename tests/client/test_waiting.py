"""What a program hears of an attachment that gets no answer: an error soon, or a warning of Python's logging."""

import asyncio
import contextlib
import logging
import socket
from functools import partial

import pytest

from loadtests.harness.ports import hold_port
from tests.client.sockets_rig import DEADLINE_S
from tests.support.loops import in_loop
from tunnel import UnreachableError, attach
from tunnel.exchange import LaneConfig
from tunnel_client import RelaySettings, Runtime, TunnelSocket, create_connection

FOR_EVER = None


@pytest.mark.parametrize("case", ["relay", "proxy", "name"])
@in_loop
async def test_an_attachment_where_nothing_listens_raises_although_it_may_try_for_ever(case: str) -> None:
    with hold_port() as port:
        dead = f"http://127.0.0.1:{port}"
        url, proxy, reason = {
            "relay": (dead, None, "the connection was refused for 1 s: check host and port of the URL"),
            "proxy": ("http://relay.example", dead, f"through {dead}: the proxy cannot be reached (the connection was"),
            "name": ("http://relay.invalid", None, "the name relay.invalid cannot be resolved"),
        }[case]
        async with asyncio.timeout(DEADLINE_S):
            with pytest.raises(UnreachableError) as caught:
                await attach(url, proxy=proxy, attach_timeout=FOR_EVER).start()
    assert str(caught.value).startswith(f"no relay answers at {url}")
    assert reason in str(caught.value)


@in_loop
async def test_an_attachment_that_waits_outlives_a_host_where_nothing_listens() -> None:
    with hold_port() as port:
        attachment = attach(f"http://127.0.0.1:{port}", proxy=None, attach_timeout=3.0, wait=True)
        with pytest.raises(UnreachableError, match=r"within 3 s \(the connection was refused\)"):
            await attachment.start()


@pytest.mark.parametrize("status", ["404 Not Found", "200 OK"])
@in_loop
async def test_an_attachment_ends_at_a_definite_answer(status: str) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 4\r\n\r\npage".encode())

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as stranger, asyncio.timeout(DEADLINE_S):
        url = f"http://127.0.0.1:{stranger.sockets[0].getsockname()[1]}"
        with pytest.raises(UnreachableError, match=f"HTTP {status[:3]}, but not from a relay.*wait=True"):
            await attach(url, proxy=None, attach_timeout=FOR_EVER).start()


@pytest.mark.parametrize("kind", ["create_connection", "TunnelSocket"])
def test_a_socket_whose_relay_is_not_there_raises_with_the_reason(kind: str) -> None:
    with hold_port() as port:
        runtime = Runtime(RelaySettings(f"http://127.0.0.1:{port}", proxy=None))
        sock = TunnelSocket(runtime=runtime)
        connect = sock.connect if kind == "TunnelSocket" else partial(create_connection, runtime=runtime)
        with pytest.raises(UnreachableError, match="the connection was refused for 1 s: check host") as caught:
            connect(("db.internal", 5432))
        sock.close()
        runtime.close()
    assert "wait" not in str(caught.value)  # sockets have no such argument


@pytest.mark.parametrize("through_proxy", [False, True])
@in_loop
async def test_an_attachment_that_gets_no_answer_logs_whom_it_asks_and_why(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, *, through_proxy: bool
) -> None:
    monkeypatch.setattr("tunnel.waiting._QUIET_S", 1.5)
    with socket.create_server(("127.0.0.1", 0)) as silent, caplog.at_level(logging.WARNING):
        where = f"http://127.0.0.1:{silent.getsockname()[1]}"
        url = "http://relay.example" if through_proxy else where
        attachment = attach(url, proxy=where if through_proxy else None, attach_timeout=FOR_EVER)
        starting = asyncio.ensure_future(attachment.start())
        async with asyncio.timeout(DEADLINE_S):
            while len(caplog.records) < 2:  # noqa: ASYNC110 - logging has no events
                await asyncio.sleep(0.05)
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        logged = len(caplog.records)
        await asyncio.sleep(0)
    first, second = (record.getMessage() for record in caplog.records[:2])
    assert {record.name for record in caplog.records} == {"tunnel.attaching"}
    assert f"no relay has answered at {url}" in first
    assert through_proxy == (f"through {where}" in first)
    assert "for 3 s (no answer" in second
    assert logged == 2


def test_lanes_keep_trying_for_5_s_unless_an_attachment_says_otherwise() -> None:
    assert LaneConfig().away_us == 5_000_000
