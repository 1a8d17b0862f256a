"""Running clients report their status to their own user only."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import pty
import signal
import socket
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from tests.carriers.harness import echo as echo_service
from tests.carriers.harness import say_and_hear
from tests.support.loops import in_loop
from tests.support.relays import MemoryTestRelay
from tunnel_client.cli.main import main
from tunnel_client.errors import UsageError
from tunnel_client.status import ClientReport, running_clients, serve_status, status_directory


@pytest.fixture
def runtime(home: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(home))
    return home / "tunnel"


def modes(directory: Path) -> list[int]:
    return sorted(stat.S_IMODE(path.stat().st_mode) for path in (directory, *directory.iterdir()))


def test_a_client_is_seen_while_it_runs(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    @in_loop
    async def scenario() -> None:
        async with MemoryTestRelay() as relay, relay.attach("ann") as ann, relay.attach("bob") as bob:
            await bob.start_server(echo_service, "echo")
            reader, writer = await say_and_hear(ann)
            async with serve_status(ann, "forward 1:echo"), serve_status(bob, "expose echo"):
                assert modes(runtime) == [0o600, 0o600, 0o700]
                expose, forward = sorted(await asyncio.to_thread(running_clients), key=lambda report: report.command)
                (connection,) = forward.connections
                assert (forward.pid, forward.command, forward.attached) == (os.getpid(), "forward 1:echo", True)
                assert (connection.target, connection.bytes_down) == ("echo", 5)
                assert connection.round_trip_us >= connection.srtt_us > 0
                assert expose.connections[0].target == "echo (from ann)"
                assert await asyncio.to_thread(main, ["status", "--json"]) == 0
                found = json.loads(capsys.readouterr().out)
                assert [report["command"] for report in found] == ["expose echo", "forward 1:echo"]
                assert await asyncio.to_thread(main, ["status"]) == 0
                assert "forward 1:echo  (process" in capsys.readouterr().out
            assert modes(runtime) == [0o700]
            writer.close()
            await writer.wait_closed()
            assert await reader.read() == b""

    scenario()


def test_status_says_that_no_client_is_running(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--once"]) == 0
    assert capsys.readouterr().out == "no tunnel command of yours is running\n"
    assert main(["status", "--json"]) == 0
    assert capsys.readouterr().out == "[]\n"


def test_dead_clients_are_removed_and_hanging_ones_left_out(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.status.ANSWER_S", 0.05)
    runtime.mkdir(mode=0o700)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(runtime / "1.sock"))
    with ThreadPoolExecutor(1) as asking, socket.socket(socket.AF_UNIX) as hung:
        hung.bind(str(runtime / "2.sock"))
        hung.listen()
        assert asking.submit(running_clients).result(timeout=10) == []
    assert [path.name for path in runtime.iterdir()] == ["2.sock"]


def test_the_runtime_directory_must_be_private(runtime: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runtime.mkdir()
    runtime.chmod(0o755)
    with pytest.raises(UsageError, match="not a directory that only you can use"):
        running_clients()
    assert main(["status"]) == 2
    runtime.rmdir()
    runtime.symlink_to("/")
    with pytest.raises(UsageError, match="not a directory that only you can use"):
        running_clients()


def test_a_runtime_directory_of_another_user_is_not_used(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In /tmp another user may have created it, to read our reports or to serve false ones."""
    runtime.mkdir(mode=0o700)
    inside: list[list[str]] = []

    @in_loop
    async def scenario() -> None:
        async with MemoryTestRelay() as relay, relay.attach() as ann, serve_status(ann, "proxy"):
            inside.append(os.listdir(runtime))

    us = os.geteuid()
    monkeypatch.setattr("tunnel_client.status.os.geteuid", lambda: us + 1)
    with pytest.raises(UsageError, match="not a directory that only you can use"):
        running_clients()
    scenario()
    assert inside == [[]]


@pytest.mark.parametrize("reason", ["mode", "missing", "long"])
def test_a_client_works_even_if_it_cannot_publish_its_status(
    home: Path, monkeypatch: pytest.MonkeyPatch, reason: str
) -> None:
    place = home / {"mode": "open", "missing": "file", "long": "x" * 120}[reason]
    if reason == "missing":
        place.touch()
    else:
        place.mkdir()
        (place / "tunnel").mkdir()
        (place / "tunnel").chmod(0o755 if reason == "mode" else 0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(place))
    inside: list[bool] = []

    @in_loop
    async def scenario() -> None:
        async with MemoryTestRelay() as relay, relay.attach() as ann, serve_status(ann, "proxy"):
            inside.append(ann.is_attached)

    scenario()
    assert inside == [True]


def test_the_default_runtime_directory_is_in_tmp(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", value)
        assert status_directory() == Path(f"/tmp/tunnel-{os.geteuid()}")


@pytest.mark.parametrize("variables", [{"TERM": "dumb"}, {"TERM": "xterm", "NO_COLOR": "1"}], ids=str)
def test_status_prints_one_table_where_escape_codes_are_not_wanted(variables: dict[str, str], runtime: Path) -> None:
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tunnel_client", "status"]
    ended = subprocess.run(command, stdin=follower, stdout=follower, env={**os.environ, **variables}, check=False)
    os.close(follower)
    shown = os.read(leader, 4096)
    os.close(leader)
    assert (ended.returncode, shown) == (0, b"no tunnel command of yours is running\r\n")


def test_status_on_a_terminal_refreshes_until_interrupted(runtime: Path) -> None:
    leader, follower = pty.openpty()
    variables = {name: value for name, value in os.environ.items() if name != "NO_COLOR"} | {"TERM": "xterm"}
    command = [sys.executable, "-m", "tunnel_client", "status"]
    with subprocess.Popen(command, stdin=follower, stdout=follower, env=variables) as child:
        os.close(follower)
        shown = b""
        while shown.count(b"no tunnel command of yours is running") < 2:
            shown += os.read(leader, 4096)
        child.send_signal(signal.SIGINT)
        assert child.wait(60) == 130
    os.close(leader)
    assert shown.startswith(b"\x1b[H\x1b[J")


def test_clients_are_asked_at_the_same_time(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of these answers only once all were asked: a client that is stuck must not hold up the others."""
    monkeypatch.setattr("tunnel_client.status.ANSWER_S", 30.0)
    all_asked = threading.Barrier(3)
    runtime.mkdir(mode=0o700)

    def answer(server: socket.socket, number: int) -> None:
        report = ClientReport(number, "forward", 0.0, True, "poll", "", 0, [])
        with server, server.accept()[0] as client, contextlib.suppress(threading.BrokenBarrierError):
            all_asked.wait(10)
            client.sendall(msgspec.json.encode(report))

    for number in range(3):
        server = socket.socket(socket.AF_UNIX)
        server.bind(str(runtime / f"{number}-1.sock"))
        server.listen()
        threading.Thread(target=answer, args=(server, number), daemon=True).start()
    assert [report.pid for report in running_clients()] == [0, 1, 2]
