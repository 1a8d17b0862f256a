"""`tunnel forward` as local programs see it. It runs in the test's process; ../test_serving.py runs the command."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Callable

import pytest
import uvloop
from structlog.testing import capture_logs

from tests.client.cli.commands.rig import LOOPBACK, Waiting, echo, open_rig, target
from tests.servlet.rig import until
from tests.support.loops import in_loop, run
from tunnel.process.command_line import configure_log

PAYLOAD = bytes(range(256)) * 4000


def reset_at_close(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


async def both_ways() -> None:
    async with target(echo) as port, open_rig() as rig:
        reader, writer = await rig.connect(await rig.forward(LOOPBACK, port))
        writer.write(PAYLOAD)  # before the target is reached
        writer.write_eof()
        assert await reader.read(-1) == PAYLOAD
        writer.close()
        await until(lambda: rig.traffic.report().connections_open == 0)
        report = rig.traffic.report()
        assert (report.connections, report.connections_failed) == (1, 0)
        assert report.bytes_up == report.bytes_down == len(PAYLOAD)


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
def test_bytes_and_ends_of_file_go_both_ways(new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    run(both_ways(), new_loop)


@in_loop
async def test_a_target_may_speak_and_end_first() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write_eof()
        heard.set_result(await reader.read(-1))

    async with target(greet) as port, open_rig() as rig:
        reader, writer = await rig.connect(await rig.forward(LOOPBACK, port))
        assert await reader.read(-1) == b"220 hello\r\n"
        writer.write(b"QUIT\r\n")
        writer.close()
        assert await heard == b"QUIT\r\n"


@in_loop
async def test_a_denied_target_is_a_reset_and_the_log_says_what_to_do() -> None:
    configure_log("info")
    async with open_rig() as rig:
        reader, writer = await rig.connect(await rig.forward("10.0.0.1", 22))
        with capture_logs() as logs, pytest.raises(ConnectionResetError):
            await reader.read()
        (entry,) = [log for log in logs if log["event"] == "not_connected"]
        assert entry["target"] == "10.0.0.1:22"
        assert "no rule allows 10.0.0.1:22" in entry["text"]
        assert "ask the operator of the relay for a rule" in entry["text"]
        assert rig.traffic.report().connections_failed == 1
        writer.close()


@in_loop
async def test_resets_are_passed_on_both_ways() -> None:
    outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        word = await reader.readexactly(1)
        writer.write(word)
        if word == b"r":
            reset_at_close(writer)
            return
        try:
            outcome.set_result(await reader.read())
        except ConnectionError as error:
            outcome.set_result(error)

    async with target(wait) as port, open_rig() as rig:
        local = await rig.forward(LOOPBACK, port)
        reader, writer = await rig.connect(local)
        writer.write(b"r")
        with pytest.raises(ConnectionResetError):
            await reader.read()
        reader, writer = await rig.connect(local)
        writer.write(b"w")
        assert await reader.readexactly(1) == b"w"
        reset_at_close(writer)
        writer.transport.abort()
        assert isinstance(await outcome, ConnectionResetError)


@in_loop
async def test_a_lost_tunnel_is_a_reset_not_an_end_of_stream() -> None:
    async with target(echo) as port, open_rig() as rig:
        reader, writer = await rig.connect(await rig.forward(LOOPBACK, port))
        writer.write(b"x")
        assert await reader.readexactly(1) == b"x"
        await rig.running.close()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await until(lambda: rig.traffic.report().connections_open == 0)
        assert rig.traffic.report().connections_failed == 1


@in_loop
async def test_stopping_the_forward_resets_its_connections() -> None:
    wait = Waiting()
    async with target(wait) as port, open_rig() as rig:
        reader, writer = await rig.connect(await rig.forward(LOOPBACK, port))
        assert await reader.readexactly(4) == b"half"
        await rig.forwarding.__aexit__()
        with pytest.raises(ConnectionResetError):
            await reader.read()
        assert isinstance(await wait.outcome, ConnectionResetError)
        writer.close()


@in_loop
async def test_a_stalled_connection_does_not_stall_the_others() -> None:
    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:  # until the reset
            writer.write(bytes(1 << 16))
            await writer.drain()

    async with target(flood) as still_port, target(echo) as port, open_rig() as rig:
        still_reader, still = await rig.connect(await rig.forward(LOOPBACK, still_port))
        await still_reader.readexactly(1)
        still.transport.pause_reading()  # type: ignore[attr-defined]  # and reading is never resumed
        local = await rig.forward(LOOPBACK, port)
        for _ in range(3):
            reader, writer = await rig.connect(local)
            writer.write(PAYLOAD)
            writer.write_eof()
            assert await reader.read(-1) == PAYLOAD
            writer.close()
        reset_at_close(still)


@in_loop
async def test_many_connections_are_forwarded_at_once() -> None:
    async def talk(port: int, number: int) -> bool:
        reader, writer = await asyncio.open_connection(LOOPBACK, port)
        words = number.to_bytes(4, "big") * 2500
        writer.write(words)
        writer.write_eof()
        heard = await reader.read(-1)
        writer.close()
        return heard == words

    async with target(echo) as port, open_rig() as rig:
        local = await rig.forward(LOOPBACK, port)
        assert all(await asyncio.gather(*(talk(local, number) for number in range(60))))


@in_loop
async def test_a_service_is_reached_by_its_name_and_a_missing_one_is_a_reset() -> None:
    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.connect(await rig.forward("reports"))
        writer.write(PAYLOAD)
        writer.write_eof()
        assert await reader.read(-1) == PAYLOAD
        writer.close()
        reader, writer = await rig.connect(await rig.forward("nowhere"))
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()
