"""The comparison with other tunnels: the meaning of "survived", the weather (that is, which faults occur on the path),
and small runs between real processes."""

import asyncio
import contextlib
import json
import socket
from collections.abc import Awaitable, Callable
from contextlib import ExitStack

import pytest

from loadtests.bench import programs
from loadtests.bench.peers import journey as journeys
from loadtests.bench.peers.__main__ import main, survive
from loadtests.bench.peers.contenders import CONTENDERS, LOOPBACK, Contender, Front, Started
from loadtests.bench.peers.journey import End, Journey, Outcome
from loadtests.bench.peers.weather import WEATHERS
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command

MIB = 1024 * 1024
BY_NAME = {weather.name: weather for weather in WEATHERS}
Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


def forwarder(stack: ExitStack, target: int, front: Front) -> Started:
    """Start a contender that repeats nothing."""
    command = python_command("loadtests.bench.road_peer", "forward", "--port", str(target))
    server = stack.enter_context(Process(command, ready=lambda line: line.startswith("ready ")))
    port = int(server.ready_line.split()[1])
    return Started(stack.enter_context(front(port)), server)


BARE = Contender("bare", "a forwarder", forwarder)


@pytest.mark.parametrize(
    ("weather", "ends"),
    [
        ("direct", {End.WHOLE}),
        ("cuts", {End.FAILED, End.ENDED}),
        ("kill -9", {End.FAILED, End.ENDED}),
    ],
)
def test_a_plain_forwarder_survives_only_good_weather(weather: str, ends: set[End]) -> None:
    outcome = survive(BARE, BY_NAME[weather], 12 * MIB)
    assert outcome.end in ends
    assert (outcome.share == 1) == (outcome.end is End.WHOLE)
    assert outcome.share > 0.1


def test_the_tunnel_survives_cuts_and_a_killed_server(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--only", "tunnel-poll", "--weather", "cuts,kill -9", "--size", "12MiB", "--runs", "0", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    ends = {kind: outcome["end"] for kind, outcome in found["survived"]["tunnel-poll"].items()}
    assert ends == {"cuts": "whole", "kill -9": "whole"}
    assert found["fast"] == []


def travel(handler: Handler, size_bytes: int = MIB) -> Outcome:
    """Make a journey to a target that runs this handler."""

    writers: list[asyncio.StreamWriter] = []

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        handled = handler(reader, writer)
        if handled is not None:
            await handled

    async def run() -> Outcome:
        async with await asyncio.start_server(connected, LOOPBACK, 0) as server:
            outcome = await Journey(size_bytes).travel(server.sockets[0].getsockname()[1])
            for writer in writers:
                writer.transport.abort()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
            return outcome

    return asyncio.run(run())


def test_waiting_for_a_stalled_journey_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journeys, "STAND_S", 0.2)
    outcome = travel(lambda reader, writer: None)
    assert (outcome.end, outcome.share) == (End.STOOD, 0)


def test_an_early_end_of_stream_is_distinguished_from_an_error() -> None:
    def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()

    def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    assert travel(end).end is End.ENDED
    assert travel(reset).end is End.FAILED


def test_a_journey_to_a_closed_port_has_failed() -> None:
    with hold_port() as port:
        assert asyncio.run(Journey(1).travel(port)).end is End.FAILED


def test_altered_bytes_are_detected() -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(MIB)
        writer.write(bytes(MIB))

    assert travel(lie).end is End.WRONG


def test_an_outcome_is_shown_in_words() -> None:
    assert str(Outcome(End.WHOLE, 1.0, 4.04)) == "whole, 4.0 s"
    assert str(Outcome(End.ENDED, 0.121, 1.0)) == "ends early at 12%"


@pytest.mark.parametrize(
    ("arguments", "why"),
    [(["--only", "nobody"], "unknown: nobody"), (["--weather", "snow"], "unknown: snow"), (["--size", "x"], "x")],
)
def test_wrong_arguments_are_refused(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    "name", [contender.name for contender in CONTENDERS if not contender.name.startswith("tunnel")]
)
def test_a_missing_program_is_an_error(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "which", lambda name: None)
    assert main(["--only", name, "--weather", "direct", "--size", "1KiB", "--runs", "0"]) == 2
    assert "is not installed: " in capsys.readouterr().err


def test_a_program_that_ends_at_once_is_an_error() -> None:
    with Process(python_command("this")) as process:
        process.wait()
        with pytest.raises(programs.MissingPeerError, match="ended: The Zen"):
            programs.wait_listening(process, 1)


def test_the_table_explains_the_weather_and_the_contenders(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = [
        "--only",
        "tunnel-poll",
        "--weather",
        "direct",
        "--size",
        "64KiB",
        "--fast-size",
        "64KiB",
        "--runs",
        "1",
    ]
    assert main([*arguments, "--echoes", "5"]) == 0
    out = capsys.readouterr().out
    assert "direct    nothing in between" in out
    assert "tunnel-poll  whole, " in out
    assert "tunnel forward =poll= relay =link= exit" in out
    assert "bare-2" in out
