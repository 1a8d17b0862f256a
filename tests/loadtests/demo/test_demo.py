"""A small run of the demo; its verdicts; and how it is shown."""

import asyncio
import io
import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from loadtests.demo import __main__ as command
from loadtests.demo import play as playing
from loadtests.demo.play import Play
from loadtests.demo.report import Kill, Way
from loadtests.demo.show import LiveShow, PlainShow
from loadtests.harness.processes import NotReadyError
from tests.loadtests.demo.rig import GOOD, MIB
from tests.support.loops import in_loop


@pytest.mark.timeout(300)
def test_every_byte_arrives(capsys: pytest.CaptureFixture[str]) -> None:
    code = command.main(["--size", "8MiB", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"]) == (0, "")
    assert [way["received_bytes"] for way in report["ways"]] == [8 * MIB] * 2
    assert [kill["way"] for kill in report["kills"]] == ["upload", "download"]
    assert sum(report["faults"].values()) > 0
    assert sum(report["repeats"].values()) > 0


def test_a_good_run_gets_the_verdict_ok() -> None:
    report = msgspec.structs.replace(GOOD)
    report.judge()
    assert report.verdict == (
        "OK: every byte of 40 MiB arrived once and in order, through 7 faults and 2 dead relays, in 5.0 s"
    )
    rows = dict(report.rows())
    assert rows["upload"] == "20 MiB in 2.0 s, 10.0 MiB/s, the kill included"
    assert rows["faults injected"] == "7 (drop_response 4, drop_request 3), in 100 exchanges"
    assert rows["round trip"] == "1.5 ms, retransmission timeout 1000.0 ms"
    assert "4 KiB in flight: new relay after 0.50 s, first new byte after 1.00 s" in rows["kill -9 relay"]


BAD: list[tuple[dict[str, Any], str]] = [
    (
        {"ways": [Way("upload", 2, 2, 1.0, "aa", "ab")]},
        "upload: the bytes that arrived are not those that were written",
    ),
    (
        {"ways": [Way("upload", 2, 1, 1.0, "aa", "aa")]},
        "upload: the bytes that arrived are not those that were written",
    ),
    ({"faults": {}}, "the proxy injected no fault"),
    ({"repeats": {}, "resent": {}}, "nothing had to be repeated"),
    ({"kills": [Kill("upload", 0.5, 0, 0.5, 1.0)]}, "not killed in the middle"),
    ({"kills": []}, "not killed in the middle"),
    ({"kills": [Kill("upload", 0.5, 4096, 0.5, 1.0)]}, "not killed in the middle"),
    ({"ways": []}, "no byte was moved"),
    ({"ways": [Way("upload", 0, 0, 1.0, "aa", "aa")]}, "no byte was moved"),
    ({"kills": [Kill("upload", 0.8, 1, 0.5, 1.0)]}, "not killed in the middle"),
    ({"failure": "the connection broke"}, "the connection broke"),
]


@pytest.mark.parametrize(("changes", "message"), BAD)
def test_wrong_bytes_and_runs_that_prove_nothing_get_the_verdict_failed(changes: dict[str, Any], message: str) -> None:
    report = msgspec.structs.replace(GOOD, **changes)
    report.judge()
    assert message in report.verdict
    assert report.verdict.startswith("FAILED: ")
    assert report.rows()


@in_loop
async def test_the_demo_is_drawn_on_a_terminal() -> None:
    console = Console(file=io.StringIO(), force_terminal=True, width=120, height=40)
    show = LiveShow(console)
    play = Play(4 * MIB, 1, show.said)
    async with show.watching(play):
        flow = play.acts[0].flow
        for chunk in flow.chunks():
            flow.took(bytes(chunk))
        show.said("kill -9 of the relay")
        show.said("the upload goes on")
        await asyncio.sleep(0)
    show.conclude(GOOD)
    drawn = console.file.getvalue()  # type: ignore[attr-defined]
    for words in ("fault proxy", "upload", "download", "100%", "kill -9 of the relay", "OK: every byte of 40 MiB"):
        assert words in drawn


@in_loop
async def test_the_demo_prints_lines_where_there_is_no_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("loadtests.demo.show._LINE_S", 0)
    show = PlainShow()
    play = Play(4 * MIB, 1, show.said)
    async with show.watching(play):
        play.acts[0].flow.took(bytes(next(play.acts[0].flow.chunks())))
        for _ in range(5):
            await asyncio.sleep(0)
    show.conclude(GOOD)
    told = capsys.readouterr().out
    for words in ("upload   6%", "round trip", "OK: every byte of 40 MiB"):
        assert words in told


def test_a_demo_that_cannot_start_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    def fail(*arguments: object) -> None:
        raise NotReadyError("the relay ended")

    with pytest.raises(SystemExit) as left:
        command.main(["--size", "many"])
    assert left.value.code == 2
    monkeypatch.setattr(playing, "Stage", fail)
    assert command.main([]) == 1
    assert "the demo could not start: the relay ended" in capsys.readouterr().err


@in_loop
async def test_a_connection_that_breaks_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    class NoStage:
        """A stage on whose forwarded port no process listens."""

        local_port = 0
        exchanges = 0
        faults: dict[str, int] = {}  # noqa: RUF012

        def __init__(self, *arguments: object) -> None: ...

        def __enter__(self) -> "NoStage":
            return self

        def __exit__(self, *exception: object) -> None: ...

        def traffic(self) -> Any:
            from tunnel_client.forward.traffic import TrafficReport

            return TrafficReport()

        def finish(self) -> None: ...

    monkeypatch.setattr(playing, "Stage", NoStage)
    report = await Play(4 * MIB, 1, lambda text: None).perform()
    assert report.failure.startswith("the connection broke: ")
