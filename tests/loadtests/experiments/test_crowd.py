"""A small crowd of connections through real processes; its checks and its report."""

import asyncio
import json

import msgspec
import pytest

from loadtests.experiments.crowd import Crowd, Report, main, standing_still, summary
from loadtests.harness.echo import Echo
from tests.support.loops import in_loop

REPORT = Report(
    connections=10,
    size_kib=4,
    rounds=1,
    carrier="auto",
    starts_s=[0.5, 0.75, 2.0],
    moved_bytes=4 << 20,
    checked=20,
    seconds=2.0,
    alone_p50_s=1.0,
    alone_p99_s=2.0,
    beside_p50_s=1.0,
    beside_p99_s=2.5,
)


@pytest.mark.timeout(300)
def test_every_digest_is_right(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.experiments.crowd.STARTS", 1)
    code = main(["--connections", "40", "--size-kib", "64", "--rounds", "1", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["wrong"], report["failure"]) == (0, 0, "")
    assert report["checked"] == 2 * 40
    assert report["moved_bytes"] == 2 * 2 * 40 * 64 * 1024
    assert len(report["starts_s"]) == 1


@in_loop
async def test_echoed_bytes_are_compared_even_next_to_a_stalled_connection() -> None:
    class Liar(Echo):
        def data_received(self, data: bytes) -> None:
            super().data_received(b"!" + data[1:])

    loop = asyncio.get_running_loop()
    report = msgspec.structs.replace(REPORT, moved_bytes=0, checked=0)
    async with await loop.create_server(Echo, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with standing_still(port):
            assert len(await Crowd(port, report).round(10)) == 10
        assert (report.wrong, report.checked, report.moved_bytes) == (0, 10, 2 * 10 * 4096)
    async with await loop.create_server(Liar, "127.0.0.1", 0) as server:
        await Crowd(server.sockets[0].getsockname()[1], report).round(1)
    assert (report.wrong, "bytes that were sent" in report.failure) == (1, True)


@pytest.mark.parametrize("change", [{"checked": 0}, {"checked": 19}, {"connections": 0, "checked": 0}, {"rounds": 0}])
def test_a_crowd_that_was_not_checked_is_no_success(change: dict[str, int]) -> None:
    report = msgspec.structs.replace(REPORT, **change)
    assert REPORT.is_right
    assert not report.is_right
    assert "connections were checked, so the run proves nothing" in summary(report)
