"""`tunnel connect`, called as ssh calls it, with a file, a pipe, a socket or a terminal as standard input; its exit
codes."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import pty
import signal
import socket
import struct
from pathlib import Path

import pytest

from tests.client.rig import Rig, connect, echo, greet
from tunnel_client.cli.main import main

_WAIT_S = 60.0


def test_bytes_and_the_end_of_file_pass_both_ways(rig: Rig, home: Path) -> None:
    data = os.urandom(3 << 20)
    file = home / "data"
    file.write_bytes(data)
    with file.open("rb") as source, connect(rig, f"127.0.0.1:{rig.serve(echo)}", stdin=source.fileno()) as child:
        out, err = child.communicate(timeout=_WAIT_S)
    assert hashlib.sha256(out).digest() == hashlib.sha256(data).digest()
    assert (child.returncode, err) == (0, b"")


def test_standard_input_is_still_sent_after_the_targets_end_of_file(rig: Rig, home: Path) -> None:
    """Half-close by the target: data that we send later still arrives."""
    heard: list[bytes] = []

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\n")
        writer.write_eof()
        heard.append(await reader.read())
        writer.close()

    with connect(rig, f"127.0.0.1:{rig.serve(listen)}") as child:
        assert child.stdout is not None
        assert child.stdin is not None
        assert child.stdout.read() == b"hello\n"
        child.stdin.write(b"and now?")
        child.stdin.close()
        assert child.wait(_WAIT_S) == 0
    assert heard == [b"and now?"]


def test_one_socket_can_be_standard_input_and_output(rig: Rig, home: Path) -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs, connect(rig, f"127.0.0.1:{rig.serve(echo)}", stdin=theirs.fileno(), stdout=theirs.fileno()) as c:
        theirs.close()
        ours.settimeout(_WAIT_S)
        ours.sendall(b"hello")
        assert ours.recv(100) == b"hello"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(100) == b""
        assert c.wait(_WAIT_S) == 0


def test_on_a_terminal_the_targets_end_of_file_ends_the_command(rig: Rig, home: Path) -> None:
    leader, follower = pty.openpty()
    with connect(rig, f"127.0.0.1:{rig.serve(greet)}", stdin=follower) as child:
        out, err = child.communicate(timeout=_WAIT_S)
    os.close(leader)
    os.close(follower)
    assert (out, err, child.returncode) == (b"hello\n", b"", 0)


def test_a_reset_is_an_error(rig: Rig, home: Path) -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.transport.abort()

    with connect(rig, f"127.0.0.1:{rig.serve(reset)}") as child:
        assert child.stdin is not None
        child.stdin.write(b"x")
        child.stdin.flush()
        assert child.wait(_WAIT_S) == 6
        assert child.stderr is not None
        assert b"tunnel: 127.0.0.1:" in child.stderr.read()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_command_and_resets_the_target(rig: Rig, home: Path, number: signal.Signals) -> None:
    ended = rig.loop.create_future()

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        try:
            await reader.read()
            ended.set_result(None)
        except ConnectionResetError as error:
            ended.set_result(error)
        writer.close()

    async def outcome() -> object:
        return await ended

    with connect(rig, f"127.0.0.1:{rig.serve(listen)}") as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        child.send_signal(number)
        assert child.wait(_WAIT_S) == 130
    assert isinstance(rig.call(outcome()), ConnectionResetError)


def test_closing_standard_output_ends_the_command(rig: Rig, home: Path) -> None:
    async def chatter(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError):
            while True:
                writer.write(b"x" * 4096)
                await writer.drain()
        writer.close()

    with connect(rig, f"127.0.0.1:{rig.serve(chatter)}") as child:
        assert child.stdout is not None
        assert child.stdout.read(1) == b"x"
        child.stdout.close()
        assert child.wait(_WAIT_S) == 1


def test_a_target_that_does_not_answer_is_exit_code_6(known: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full:
        host, port = full.getsockname()
        fillers = [socket.socket() for _ in range(3)]
        for filler in fillers:  # Linux drops connections for which the backlog has no room
            filler.setblocking(False)
            filler.connect_ex((host, port))
        assert main(["connect", f"{host}:{port}", "--timeout", "0.5"]) == 6
        for filler in fillers:
            filler.close()
    assert f"no answer within 0.5 s: try again, or see what `tunnel doctor {host}:{port}`" in capsys.readouterr().err


def test_an_invalid_target_is_a_usage_error(known: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["connect", "db:http"]) == 2
    assert "write HOST:PORT" in capsys.readouterr().err
