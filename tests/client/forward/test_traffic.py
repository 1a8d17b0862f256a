"""The counts of failures and connections, and their reports."""

import asyncio
import io
import sys
from typing import cast

import pytest
from structlog.testing import capture_logs

from loadtests.harness.echo import Echo
from tests.servlet.rig import until
from tests.support.loops import in_loop, run
from tests.support.relays import MemoryTestRelay
from tunnel import Attachment
from tunnel.core import ConnectionStats
from tunnel.process.command_line import configure_log
from tunnel.status import AttachmentStats
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice
from tunnel_client.forward.traffic import Traffic, TrafficReport


@in_loop
async def test_failures_are_counted_by_cause_with_a_limit_on_causes() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        traffic = Traffic(attachment)
        for number in range(30):
            # `read_closed`, a method of ErrorListener, reports one failure of an exchange or a link.
            traffic.read_closed(f"Error{number}: details")
        traffic.read_closed("Error3: other details")
        failures = traffic.report().exchanges_failed
    assert len(failures) == 21
    assert failures["Error3"] == 2
    assert failures["other"] == 10


@in_loop
async def test_totals_include_open_and_ended_connections() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as service, relay.attach("bob") as client:
        traffic = Traffic(client)
        await service.create_server(Echo, "echo")
        loop = asyncio.get_running_loop()

        def ended(side: Side, error: Exception | None) -> None:
            assert isinstance(side, TunnelSide)
            traffic.on_ended(side)

        async def connect() -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            nears: asyncio.Queue[Side] = asyncio.Queue()
            server = await loop.create_server(lambda: SocketSide(nears.put_nowait), "127.0.0.1", 0)
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            _, far = await client.create_connection(lambda: TunnelSide(ended=ended), "echo")
            traffic.on_opened(far)
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
async def test_traffic_is_reported_periodically_and_at_the_end() -> None:
    configure_log("info")
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        traffic = Traffic(attachment)
        with capture_logs() as logs:
            async with traffic.report_every(0):
                pass
            assert logs == []
            async with traffic.report_every(0.001):
                await until(lambda: logs)
                told = len(logs)
        assert len(logs) == told + 1
        assert logs[-1]["event"] == "traffic"
        assert logs[-1]["connections"] == 0


class FakeStats:
    """An attachment, or one of its connections, of which only the statistics matter."""

    def __init__(self, found: object, *, is_over: bool = False) -> None:
        self.found = found
        self.is_over = is_over

    def stats(self) -> object:
        return self.found

    def add_error_listener(self, listener: object) -> None:
        """Do nothing: the test reports the failures itself."""


def attached(carrier: str = "link http://relay through proxy", *, is_attached: bool = True) -> Traffic:
    stats = AttachmentStats(is_attached, carrier, "", 0, 0, {})
    return Traffic(cast(Attachment, FakeStats(stats)))


def connection(factor: int) -> TunnelSide:
    """A connection; each of its counts is a different multiple of the factor."""
    return cast(
        TunnelSide,
        FakeStats(
            ConnectionStats(
                bytes_acknowledged=3 * factor << 20,
                bytes_delivered=5 * factor << 20,
                packets_sent=7 * factor,
                packets_spurious=11 * factor,
                resent_by_cause={"timeout": 13 * factor, f"only {factor}": 1},
                round_trip_us=17_001 * factor,
                rto_us=19_000 * factor,
            )
        ),
    )


def end(traffic: Traffic, side: TunnelSide) -> None:
    cast(FakeStats, side).is_over = True
    traffic.on_ended(side)


def test_totals_add_every_count_and_show_the_longest_times() -> None:
    traffic = attached()
    first, second, third = map(connection, (2, 1, 4))
    for side in (first, second, third):
        traffic.on_opened(side)
    end(traffic, third)
    traffic.failed = 1
    traffic.read_closed("TimeoutError: no answer: at all")
    found = traffic.report()
    assert found == TrafficReport(
        attached=True,
        carrier="link http://relay through proxy",
        connections_open=2,
        connections=3,
        connections_failed=1,
        bytes_up=21 << 20,
        bytes_down=35 << 20,
        packets_sent=49,
        resent={"timeout": 91, "only 1": 1, "only 2": 1, "only 4": 1},
        spurious=77,
        exchanges_failed={"TimeoutError": 1},
        round_trip_us=34_002,
        rto_us=38_000,
    )
    assert traffic.report() == found  # asking changes nothing
    end(traffic, first)
    end(traffic, second)
    found = traffic.report()
    assert (found.connections_open, found.connections, found.round_trip_us, found.rto_us) == (0, 3, 17_001, 19_000)
    assert found.resent["timeout"] == 91


@pytest.mark.parametrize(
    ("traffic", "start"),
    [(attached(), "attached | link | "), (attached("poll http://relay", is_attached=False), "not attached | poll | ")],
)
def test_a_line_for_a_terminal_has_all_totals(traffic: Traffic, start: str) -> None:
    side = connection(3)
    traffic.on_opened(side)
    traffic.failed = 2
    traffic.read_closed("TimeoutError: x")
    terminal = Terminal()

    async def main() -> None:
        async with traffic.report_every(3600):
            pass

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stderr", terminal)
        run(main())
    assert terminal.getvalue() == (
        f"{start}connections 1 open, 1 in all, 2 failed | up 9.0 MiB | down 15.0 MiB | RTT 51.0 ms | "
        "failed exchanges 1 | resent packets 40\n"
    )
    assert terminal.flushed


class Terminal(io.StringIO):
    flushed = False

    def flush(self) -> None:
        self.flushed = True

    def isatty(self) -> bool:
        return True


@in_loop
async def test_a_terminal_gets_a_line() -> None:
    async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
        terminal = Terminal()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "stderr", terminal)
            async with Traffic(attachment).report_every(3600):
                pass
    assert "attached | " in terminal.getvalue()
    assert "connections 0 open, 0 in all, 0 failed | up 0.0 MiB" in terminal.getvalue()


@pytest.mark.parametrize("seconds", [0.0, 3600.0])
def test_an_error_in_the_block_is_passed_on(seconds: float) -> None:
    @in_loop
    async def test() -> None:
        async with MemoryTestRelay() as relay, relay.attach("ann") as attachment:
            with pytest.raises(KeyError):
                async with Traffic(attachment).report_every(seconds):
                    raise KeyError

    test()
