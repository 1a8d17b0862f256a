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
from loadtests.bench.peers import journey
from loadtests.bench.peers import weather as weathers
from loadtests.bench.peers.__main__ import main, survive
from loadtests.bench.peers.contenders import CONTENDERS, LOOPBACK, Contender, Front, Started
from loadtests.bench.peers.costs import cost
from loadtests.bench.peers.journey import End, Journey, Outcome
from loadtests.bench.peers.weather import WEATHERS
from loadtests.harness.processes import Process, python_command

MIB = 1024 * 1024
SIZE = "24MiB"  # takes 3 s at the pace of a journey
CUT_AGE_S = 1.0  # less than that; and a slow machine connects, and moves some bytes, in this time
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
def test_a_plain_forwarder_survives_only_good_weather(
    weather: str, ends: set[End], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weathers, "CUT_AGE_S", CUT_AGE_S)
    outcome = survive(BARE, BY_NAME[weather], 24 * MIB)
    assert outcome.end in ends
    assert (outcome.share == 1) == (outcome.end is End.WHOLE)
    assert outcome.share > 0


@pytest.mark.timeout(900)
def test_the_tunnel_survives_cuts_and_a_killed_server(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(weathers, "CUT_AGE_S", CUT_AGE_S)
    monkeypatch.setattr(journey, "STAND_S", 120.0)  # a slow machine starts a relay in more than 10 s
    arguments = [
        "--only",
        "tunnel-poll",
        "--weather",
        "cuts,kill -9",
        "--size",
        SIZE,
        "--runs",
        "0",
        "--connections",
        "0",
        "--json",
    ]
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


def test_an_early_end_of_stream_is_distinguished_from_an_error() -> None:
    def end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write_eof()

    def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        writer.transport.abort()

    assert travel(end).end is End.ENDED
    assert travel(reset).end is End.FAILED


def test_altered_bytes_are_detected() -> None:
    async def lie(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(MIB)
        writer.write(bytes(MIB))

    assert travel(lie).end is End.WRONG


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--only", "nobody"], "unknown: nobody"),
        (["--weather", "snow"], "unknown: snow"),
        (["--size", "x"], "x"),
        (["--svg", "x.svg", "--connections", "0"], "--connections 0"),
    ],
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
    assert main(["--only", name, "--weather", "direct", "--size", "1KiB", "--runs", "0", "--connections", "0"]) == 2
    assert "is not installed: " in capsys.readouterr().err


def test_a_program_that_ends_at_once_is_an_error() -> None:
    with Process(python_command("this")) as process:
        process.wait()
        with pytest.raises(programs.MissingPeerError, match="ended: The Zen"):
            programs.wait_listening(process, 1)


def test_the_processor_time_of_all_processes_is_counted() -> None:
    found = cost(BARE, 64 * MIB, 500, 50)
    assert all(value is not None and value > 0 for value in (found.up_s_per_gib, found.down_s_per_gib, found.echo_us))
    assert found.connection_us is not None
