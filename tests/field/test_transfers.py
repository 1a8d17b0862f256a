"""The transfers, against the real target and against targets that break in one way each."""

import asyncio
import contextlib

import pytest

from tests.field import target
from tests.field.rig import serving
from tests.field.transfers import BrokenError, Echoes, download, echo_p50_ms, pour, upload
from tests.support.loops import in_loop

SIZE = 600_000
PLENTY_S = 30.0


async def nothing() -> None:
    pass


@in_loop
async def test_bytes_move_both_ways() -> None:
    async with serving(target.serve) as port:
        assert await upload(port, SIZE, PLENTY_S) > 0
        assert await download(port, SIZE, PLENTY_S) > 0


@in_loop
async def test_echoes_are_measured() -> None:
    async with serving(target.serve) as port, Echoes(port) as echoes:
        assert await echo_p50_ms(echoes, 5, PLENTY_S) > 0
        assert await echoes.once(PLENTY_S) > 0


@in_loop
async def test_fewer_echoes_are_measured_if_they_take_too_long() -> None:
    async with serving(target.serve) as port, Echoes(port) as echoes:
        calls = 0

        async def once(seconds: float) -> float:
            nonlocal calls
            calls += 1
            return 7.0

        echoes.once = once  # type: ignore[method-assign]
        assert await echo_p50_ms(echoes, 100, 0.0) == 7.0
        assert calls == 1


@in_loop
async def test_a_stream_in_both_directions_is_interrupted_once() -> None:
    calls: list[None] = []

    async def interrupt() -> None:
        calls.append(None)

    async with serving(target.serve) as port:
        assert await pour(port, SIZE, interrupt, PLENTY_S) >= 0
    assert len(calls) == 1


async def close_early(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readline()
    writer.close()


async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while await reader.read(1 << 16):
            pass
    writer.close()


async def say_noise(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer every command with wrong bytes, of the right length."""
    await reader.readline()
    writer.write(b"x" * SIZE + b"\nwrong digest\n")
    with contextlib.suppress(ConnectionError):  # the client resets the connection when it has seen enough
        while await reader.read(1 << 16):
            pass
    writer.close()


@in_loop
async def test_an_early_end_is_named() -> None:
    async with serving(close_early) as port:
        for moving in (upload(port, SIZE, PLENTY_S), download(port, SIZE, PLENTY_S)):
            with pytest.raises(BrokenError, match=r"(ended|reset) after .* of 0\.6 MiB"):
                await moving
        with pytest.raises(BrokenError, match=r"(ended|reset) after .* of 0\.6 MiB"):
            await pour(port, SIZE, nothing, PLENTY_S)


@in_loop
async def test_silence_is_named() -> None:
    async with serving(stay_silent) as port:
        with pytest.raises(BrokenError, match=r"of 0\.6 MiB written in 0 s"):
            await upload(port, SIZE, 0.3)
        with pytest.raises(BrokenError, match=r"0\.0 of 0\.6 MiB in 0 s"):
            await download(port, SIZE, 0.05)
        async with Echoes(port) as echoes:
            with pytest.raises(BrokenError, match="no echo in 0 s"):
                await echoes.once(0.05)


@in_loop
async def test_wrong_bytes_are_noticed() -> None:
    async with serving(say_noise) as port:
        with pytest.raises(BrokenError, match="other bytes arrived in place of the digest"):
            await upload(port, SIZE, PLENTY_S)
        with pytest.raises(BrokenError, match="the digests differ"):
            await download(port, SIZE, PLENTY_S)
        with pytest.raises(BrokenError, match="the digests differ"):
            await pour(port, SIZE, nothing, PLENTY_S)
        async with Echoes(port) as echoes:
            with pytest.raises(BrokenError, match="changed"):
                await echoes.once(PLENTY_S)
