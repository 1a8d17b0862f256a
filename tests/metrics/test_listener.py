"""The listener of --metrics: what it answers, to whom, and what it costs when others ask."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from tests.metrics.rig import get
from tests.support.loops import in_loop
from tunnel.metrics import listener as module
from tunnel.metrics.listener import MetricsListener, parse_metrics_address


@asynccontextmanager
async def listening(page: bytes = b"a 1\n", *, ready: bool = True) -> AsyncIterator[MetricsListener]:
    served = MetricsListener(("127.0.0.1", 0), lambda: page, lambda: ready)
    await served.start()
    try:
        yield served
    finally:
        await served.close()


@in_loop
async def test_the_paths() -> None:
    async with listening() as served:
        assert await get(served.address, "/metrics") == (200, "a 1\n")
        assert await get(served.address, "/livez") == (200, "live\n")
        assert await get(served.address, "/readyz?x=1") == (200, "ready\n")
        assert (await get(served.address, "/"))[0] == 404
    async with listening(ready=False) as served:
        assert await get(served.address, "/readyz") == (503, "no relay\n")
        assert (await get(served.address, "/livez"))[0] == 200


@pytest.mark.parametrize(
    "lines",
    [
        ("Host: evil.example",),
        ("Host: localhost", "Origin: http://evil.example"),
        ("Host: localhost", "Origin: null"),
        ("Host: 127.0.0.1.evil.example:9081",),
    ],
    ids=str,
)
@in_loop
async def test_two_users_a_web_page_gets_no_answer(lines: tuple[str, ...]) -> None:
    async with listening() as served:
        for path in ("/metrics", "/livez", "/readyz"):
            assert (await get(served.address, path, *lines))[0] == 403


@in_loop
async def test_what_is_no_request_is_refused() -> None:
    async with listening() as served:
        assert (await get(served.address, "/metrics", "Host: localhost", "X" * 40_000))[0] == 400
        assert (await get(served.address, " /metrics"))[0] == 400


@in_loop
async def test_two_users_connections_that_say_nothing_are_few_and_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_CONNECTIONS_MAX", 2)
    monkeypatch.setattr(module, "_REQUEST_S", 0.3)
    async with listening() as served:
        silent = [await asyncio.open_connection(*served.address) for _ in range(5)]
        for reader, writer in silent:
            async with asyncio.timeout(30):
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
            writer.close()
        assert (await get(served.address, "/livez"))[0] == 200


def test_addresses() -> None:
    assert parse_metrics_address("9081") == ("127.0.0.1", 9081)
    assert parse_metrics_address("localhost:9081") == ("localhost", 9081)
    assert parse_metrics_address("0.0.0.0:9081") == ("0.0.0.0", 9081)
    assert parse_metrics_address("[::1]:9081") == ("::1", 9081)
    for text in ("", "x", "host.example:9081", "127.0.0.1:", "127.0.0.1:70000", "1.2.3:4"):
        with pytest.raises(argparse.ArgumentTypeError, match="write PORT"):
            parse_metrics_address(text)
