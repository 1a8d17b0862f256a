"""`tunnel expose`: local services under names at the relay.

It runs in the test's process; ../test_serving.py runs the command.
"""

from __future__ import annotations

import asyncio

import pytest
from structlog.testing import capture_logs

from loadtests.harness.ports import hold_port
from tests.client.cli.commands.rig import Waiting, echo, open_rig, target
from tests.servlet.rig import until
from tests.support.buffers import users_who_ask
from tests.support.loops import in_loop
from tunnel import DeniedError, LostError
from tunnel.process.command_line import configure_log
from tunnel_client.cli.main import main


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
async def test_two_users_one_who_downloads_is_charged_for_large_buffers_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = users_who_ask(monkeypatch, "tunnel_client.cli.commands.expose")
    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        writer.write(bytes(1 << 18))
        assert len(await reader.readexactly(1 << 18)) == 1 << 18
        writer.close()
        await writer.wait_closed()
    assert users == ["ann"]


@in_loop
async def test_a_closed_local_port_is_a_reset_and_is_logged() -> None:
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
async def test_a_name_that_no_rule_allows_is_denied() -> None:
    async with target(echo) as port, open_rig() as rig:
        with pytest.raises(DeniedError, match="does not allow this user to listen"):
            await rig.expose("payroll", port)


@in_loop
async def test_stopping_the_service_resets_its_connections() -> None:
    wait = Waiting()
    async with target(wait) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        assert await reader.readexactly(4) == b"half"
        await rig.stack.aclose()
        with pytest.raises(LostError):
            await reader.read()
        assert isinstance(await wait.outcome, ConnectionResetError)
        writer.close()


@in_loop
async def test_a_lost_connection_is_a_reset_for_the_local_service() -> None:
    configure_log("info")
    wait = Waiting()
    async with target(wait) as port, open_rig() as rig:
        await rig.expose("reports", port)
        reader, writer = await rig.attachment.open_connection("reports")
        assert await reader.readexactly(4) == b"half"
        with capture_logs() as logs:
            writer.transport.abort()
            assert isinstance(await wait.outcome, ConnectionResetError)
            await until(lambda: rig.traffic.failed == 1)
        assert [log["service"] for log in logs if log["event"] == "lost"] == ["reports"]


@in_loop
async def test_a_client_that_aborts_before_the_local_service_answers_harms_no_other() -> None:
    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port)
        _, writer = await rig.attachment.open_connection("reports")
        writer.transport.abort()
        reader, writer = await rig.attachment.open_connection("reports")
        writer.write(b"hello")
        writer.write_eof()
        assert await reader.read(-1) == b"hello"
        writer.close()


@in_loop
async def test_a_burst_waits_for_a_short_backlog_and_none_of_it_is_refused() -> None:
    async def talk(number: int) -> None:
        reader, writer = await rig.attachment.open_connection("reports", timeout=60)
        writer.write(b"%d" % number)
        writer.write_eof()
        assert await reader.read(-1) == b"%d" % number
        writer.close()
        await writer.wait_closed()

    async with target(echo) as port, open_rig() as rig:
        await rig.expose("reports", port, backlog=2)
        await asyncio.gather(*(talk(number) for number in range(60)))
        assert rig.traffic.failed == 0


@pytest.mark.parametrize("text", ["0", "-1", "65536", "many", "1.5", "٣"])
def test_a_backlog_that_cannot_be_announced_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["expose", f"--backlog={text}", "reports", "127.0.0.1:1"])
    assert f"argument --backlog: '{text}' is not a number from 1 to 65535" in capsys.readouterr().err
