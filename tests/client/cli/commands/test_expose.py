"""`tunnel expose`: local services under names at the relay. In this process; the command is in test_serving.py."""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from loadtests.harness.ports import hold_port
from tests.client.cli.commands.rig import echo, open_rig, target
from tests.servlet.rig import until
from tests.support.loops import in_loop
from tunnel import DeniedError, LostError
from tunnel.command_line import configure_log


@in_loop
async def test_a_local_service_is_reached_by_its_name() -> None:
    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read(-1) == b"hello"
        writer.close()
        await writer.wait_closed()
        await until(lambda: rig.traffic.report().connections_open == 0)
        assert rig.traffic.report().connections == 1


@in_loop
async def test_a_local_service_that_is_not_there_is_a_reset_and_the_log_says_so() -> None:
    configure_log("info")
    async with open_rig() as rig:
        with hold_port() as port:
            await rig.expose("reports", port)
            with capture_logs() as logs:
                reader, writer = await rig.attachment.open_connection("reports")
                with pytest.raises(LostError):
                    await reader.read()
            writer.close()
        (entry,) = [log for log in logs if log["event"] == "not_connected"]
        assert entry["service"] == "reports"
        assert "start the service, or check its address" in entry["text"]


@in_loop
async def test_a_name_that_no_rule_allows() -> None:
    async with target(echo) as port, open_rig() as rig:
        with pytest.raises(DeniedError, match="does not allow this user to listen"):
            await rig.expose("payroll", port)


@in_loop
async def test_who_stops_the_service_cuts_and_does_not_end() -> None:
    outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"half")
        try:
            outcome.set_result(await reader.read())
        except ConnectionError as error:
            outcome.set_result(error)

    async with target(wait) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        assert await reader.readexactly(4) == b"half"
        await rig.stack.aclose()
        with pytest.raises(LostError):
            await reader.read()
        assert isinstance(await outcome, ConnectionResetError)
        writer.close()


@in_loop
async def test_a_connection_that_is_lost_is_a_reset_for_the_local_service() -> None:
    configure_log("info")
    outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        try:
            outcome.set_result(await reader.read())
        except ConnectionError as error:
            outcome.set_result(error)

    async with target(wait) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        assert await reader.readexactly(1) == b"x"
        with capture_logs() as logs:
            writer.transport.abort()
            assert isinstance(await outcome, ConnectionResetError)
            await until(lambda: rig.traffic.failed == 1)
        assert [log["service"] for log in logs if log["event"] == "lost"] == ["reports"]


@in_loop
async def test_who_leaves_before_the_local_service_answers_leaves_nothing_behind() -> None:
    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port)
        _, writer = await rig.attachment.open_connection("reports")
        writer.transport.abort()
        reader, writer = await rig.attachment.open_connection("reports")
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read(-1) == b"hello"
        writer.close()
