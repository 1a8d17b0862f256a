"""What is counted of failures and connections, and how it is told."""

import asyncio
import io
import sys

import pytest
from structlog.testing import capture_logs

from loadtests.harness.echo import Echo
from tests.servlet.rig import until
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel.command_line import configure_log
from tunnel.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.forward.traffic import Traffic


@in_loop
async def test_failures_are_counted_by_cause_and_the_rarest_together() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        traffic = Traffic(attachment)
        for number in range(30):
            traffic.read_closed(f"Error{number}: details")
        traffic.read_closed("Error3: other details")
        failures = traffic.report().exchanges_failed
    assert len(failures) == 21
    assert failures["Error3"] == 2
    assert failures["other"] == 10


@in_loop
async def test_open_connections_and_those_that_ended_are_one_sum() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        traffic = Traffic(client)
        await service.create_server(Echo, "echo")
        loop = asyncio.get_running_loop()

        def ended(side: Side, error: Exception | None) -> None:
            assert isinstance(side, TunnelSide)
            traffic.ended(side)

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            nears: asyncio.Queue[Side] = asyncio.Queue()
            server = await loop.create_server(lambda: SocketSide(nears.put_nowait), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            _, far = await client.create_connection(lambda: TunnelSide(ended=ended), "echo")
            traffic.opened(far)
            splice(await nears.get(), far)
            server.close()
            writer.write(b"hello")
            assert await reader.readexactly(5) == b"hello"
            return reader, writer

        _, first = await connect()
        first.close()
        _, second = await connect()
        await until(lambda: traffic.report().bytes_up == 10 and traffic.report().connections_open == 1)
        report = traffic.report()
        second.close()
    assert (report.connections, report.connections_open, report.bytes_down, report.bytes_up) == (2, 1, 10, 10)
    assert report.attached
    assert report.rto_us > 0


@in_loop
async def test_it_is_told_now_and_then_and_at_the_end() -> None:
    configure_log("info")
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        traffic = Traffic(attachment)
        with capture_logs() as logs:
            async with traffic.reported(0):
                pass
            assert logs == []
            async with traffic.reported(0.001):
                await until(lambda: logs)
                told = len(logs)
        assert len(logs) == told + 1
        assert logs[-1]["event"] == "traffic"
        assert logs[-1]["connections"] == 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@in_loop
async def test_a_person_gets_a_line() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        terminal = Terminal()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            async with Traffic(attachment).reported(3600):
                pass
    assert "attached | " in terminal.getvalue()
    assert "connections 0 open, 0 in all, 0 failed | up 0.0 MiB" in terminal.getvalue()


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_an_error_is_passed_on(seconds: float) -> None:
    @in_loop
    async def test() -> None:
        async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
            with pytest.raises(KeyError):
                async with Traffic(attachment).reported(seconds):
                    raise KeyError

    test()
