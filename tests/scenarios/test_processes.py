"""Processes that are killed, stopped, and short of descriptors, disk and memory (scenarios 24, 25, 26, 29, 30, 31)."""

import asyncio
import os
import signal
import socket
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, cpu_seconds, relay_command
from tests.real.transfers import until
from tests.scenarios.rig import (
    MIB,
    an_exit,
    client,
    echo_digest,
    peak_resident_bytes,
    python_client,
    relay_process,
    target,
)
from tests.support.loops import in_loop
from tunnel import ResetError, StreamReader, StreamWriter

CLIENT = """
import asyncio, os, sys, tunnel
async def main():
    url, port, carrier = sys.argv[1:]
    async with tunnel.attach(url, token=os.environ["TUNNEL_TOKEN"], proxy=None, carrier=carrier, user_timeout=1) as a:
        reader, writer = await a.open_connection("127.0.0.1", int(port))
        writer.write(b"hello")
        await reader.readexactly(5)
        print("attached to the target", flush=True)
        await reader.read()
asyncio.run(main())
"""
STOPPED_S = 1.2  # long enough for every timer of a transfer on loopback to fire


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionResetError):  # from an exit that was killed
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


async def echo_back(reader: StreamReader, writer: StreamWriter) -> None:
    """Echo as `echo` does, for a service."""
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


@in_loop
async def test_24_streams_of_a_killed_exit_end_with_an_error(tmp_path: Path) -> None:
    """The streams end as soon as the exit is back, and their bytes never mix with those of new streams."""
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port),
            an_exit(port) as exit_,
            target(echo) as there,
            client(port) as attachment,
        ):
            reader, writer = await attachment.open_connection("127.0.0.1", there, timeout=40)
            await echo_digest(reader, writer, 100_000)
            exit_.kill()
            writer.write(b"into the void")
            exit_.start()
            await exit_.ready()
            with pytest.raises(ResetError):
                await reader.read()
            writer.close()
            reader, writer = await attachment.open_connection("127.0.0.1", there, timeout=40)
            await echo_digest(reader, writer, 100_000)
            writer.close()
            await writer.wait_closed()


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_25_a_killed_client_is_a_reset_for_its_target(tmp_path: Path, carrier: str) -> None:
    """The target sees a reset, not an end of stream, once the relay has forgotten the client."""
    seen: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readexactly(5))
        try:
            seen.set_result(await reader.read())
        except ConnectionError as error:
            seen.set_result(error)
        writer.close()

    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, exits="inline", attachment_timeout_us=1_000_000, settle_us=1),
            target(serve) as there,
            python_client(CLIENT, port, str(there), carrier) as killed,
        ):
            killed.kill()
            assert isinstance(await seen, ConnectionResetError)


@pytest.mark.parametrize("who", ["relay", "exit"])
@in_loop
async def test_26_a_transfer_survives_a_stopped_process(tmp_path: Path, who: str) -> None:
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port) as relay,
            an_exit(port) as exit_,
            target(echo) as there,
            client(port) as attachment,
        ):
            stops = [2 * MIB]

            async def stop(received: int) -> None:
                if stops and received >= stops[0]:
                    stops.pop(0)
                    process = relay if who == "relay" else exit_
                    process.signal(signal.SIGSTOP)
                    await asyncio.sleep(STOPPED_S)  # the scenario: the process misses all that happens meanwhile
                    process.signal(signal.SIGCONT)

            reader, writer = await attachment.open_connection("127.0.0.1", there, timeout=40)
            await echo_digest(reader, writer, 4 * MIB, stop)
            assert not stops
            writer.close()
            await writer.wait_closed()


@pytest.mark.real("prlimit")
@in_loop
async def test_29_a_relay_that_is_out_of_file_descriptors_keeps_its_streams(tmp_path: Path) -> None:
    """With a crowd of unauthenticated clients, open streams go on, users still get in, and the relay does not spin."""

    with hold_port() as port, ExitStack() as crowd:
        async with (
            relay_process(tmp_path, port, before=("prlimit", "--nofile=64")) as relay,
            client(port, "ann", carrier="link") as service,
            client(port, carrier="link") as attachment,
        ):
            await service.start_server(echo_back, "echo")
            reader, writer = await attachment.open_connection("echo", timeout=40)
            await echo_digest(reader, writer, 100_000)
            used = len(os.listdir(f"/proc/{relay.pid}/fd"))
            for number in range(100):
                source = (f"127.0.0.{2 + number // 10}", 0)
                crowd.enter_context(socket.create_connection(("127.0.0.1", port), 30, source))
            # Unauthenticated clients may have 24 connections: half of three quarters of the 64 descriptors.
            await until(lambda: len(os.listdir(f"/proc/{relay.pid}/fd")) >= used + 20)
            used_s = cpu_seconds(relay.pid)
            for _ in range(5):
                await echo_digest(reader, writer, 100_000)
                await asyncio.sleep(0.2)  # a spinning loop would use CPU time here
            assert cpu_seconds(relay.pid) - used_s < 0.7
            async with client(port) as another:
                assert another.is_attached
            crowd.close()
            writer.close()
            await writer.wait_closed()


@pytest.mark.real("prlimit")
@in_loop
async def test_30_a_stream_survives_when_its_trace_fills_the_disk(tmp_path: Path) -> None:
    """A limit of 4 KiB for each file stands for a full disk: the stream goes on."""
    with hold_port() as port:
        full = relay_process(tmp_path, port, before=("prlimit", "--fsize=4096"), more=("--trace", str(tmp_path / "t")))
        async with full, client(port, "ann", carrier="link") as service, client(port) as attachment:
            await service.start_server(echo_back, "echo")
            reader, writer = await attachment.open_connection("echo", timeout=40)
            await echo_digest(reader, writer, 2 * MIB)
            writer.close()
            await writer.wait_closed()
    assert all(file.stat().st_size <= 4096 for file in (tmp_path / "t").iterdir())


@pytest.mark.real("prlimit")
def test_30_a_token_file_on_a_full_disk_stays_as_it_was(tmp_path: Path) -> None:
    """A file that cannot be written whole is not written at all."""
    made = Process(relay_command("init", "relay.toml"), directory=tmp_path)
    with made:
        assert made.wait(60) == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with Process(["prlimit", "--fsize=150", *relay_command("user", "add", "bob")], directory=tmp_path) as adding:
        assert adding.wait(60) == 2
        assert "relay.tokens.toml cannot be written: File too large: nothing was changed" in adding.output
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before


@in_loop
async def test_31_a_relay_with_a_small_memory_budget_loses_nothing(tmp_path: Path) -> None:
    """Many writers whose readers have stopped: the budget causes back-pressure, and no stream loses a byte."""
    readers_go_on = asyncio.Event()
    connections, size, cap = 16, MIB, 4 * MIB

    async def wait_and_count(reader: StreamReader, writer: StreamWriter) -> None:
        await readers_go_on.wait()
        total = 0
        while data := await reader.read(1 << 18):
            total += len(data)
        writer.write(total.to_bytes(8, "big"))
        writer.close()

    caps: dict[str, Any] = dict.fromkeys(
        ("mailbox_bytes_max", "user_bytes_max", "process_bytes_max", "exit_mailbox_bytes_max"), cap
    )
    with hold_port() as port:
        async with (
            relay_process(tmp_path, port, **caps) as relay,
            client(port, "ann") as service,
            client(port) as attachment,
        ):
            await service.start_server(wait_and_count, "wait")
            await service.start_server(echo_back, "echo")
            before = peak_resident_bytes(relay.pid)
            streams = [await attachment.open_connection("wait", timeout=40) for _ in range(connections)]
            for _, writer in streams:
                writer.write(bytes(size))
                writer.write_eof()
            reader, writer = await attachment.open_connection("echo", timeout=40)
            await echo_digest(reader, writer, 100_000)
            readers_go_on.set()
            for theirs, _ in streams:
                assert int.from_bytes(await theirs.readexactly(8), "big") == size
            assert peak_resident_bytes(relay.pid) - before < cap + 48 * MIB
            for _, ours in [*streams, (reader, writer)]:
                ours.close()
