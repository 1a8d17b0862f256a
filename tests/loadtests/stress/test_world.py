"""The processes of the stress suite: the target, the losses, and a small run of Locust with limits on its measures."""

import asyncio
import json
import os
import socket
import subprocess
from pathlib import Path
from typing import Any

import pytest
import xxhash

from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.objects import TOLERANCE, left_over
from loadtests.stress.processinfo import look_at, open_descriptors
from loadtests.stress.target import PATTERN, digest_of_pattern, serve
from loadtests.stress.world import READY_S
from tests.support.loops import in_loop
from tunnel import attach

ROOT = Path(__file__).resolve().parent.parent.parent.parent
RUN_S = 600  # a bound for one run


@in_loop
async def test_the_first_byte_tells_the_target_what_to_do() -> None:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)

    async def ask(data: bytes) -> bytes:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writer.write(data)
        writer.write_eof()
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
        return answer

    async with server:
        assert await ask(b"ehello") == b"hello"
        swallowed = await ask(b"s" + b"x" * 100_000)
        assert swallowed == (100_000).to_bytes(8) + xxhash.xxh3_128(b"x" * 100_000).digest()
        sent = await ask(b"d" + (70_000).to_bytes(8))
        assert sent[:-16] == PATTERN + PATTERN[: 70_000 - len(PATTERN)]
        assert sent[-16:] == xxhash.xxh3_128(sent[:-16]).digest() == digest_of_pattern(70_000)
        assert await ask(b"r\0\0\0\3abc\0\0\0\1z") == b"\0\0\0\3cba\0\0\0\1z"
        assert await ask(b"r\x7f\0\0\0") == b""
        assert await ask(b"?") == b""
        assert await ask(b"") == b""


def test_process_figures_come_from_the_kernel() -> None:
    info = look_at(os.getpid())
    assert info is not None
    assert info.rss_bytes > 1 << 20
    assert info.descriptors > 2
    assert info.cpu_s > 0
    assert look_at(2**22 + 1) is None  # beyond the largest pid


def test_open_descriptors_are_named() -> None:
    before = open_descriptors()
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()) as client:
        now = open_descriptors()
        new = {number: what for number, what in now.items() if number not in before}
        assert new == {
            server.fileno(): f"AF_INET {server.getsockname()}",
            client.fileno(): f"AF_INET {client.getsockname()} to {server.getsockname()}",
        }
    assert open_descriptors() == before


async def order(port: int, line: bytes) -> dict[str, Any]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    writer.write(line + b"\n")
    found: dict[str, Any] = json.loads(await reader.readline())
    writer.close()
    await writer.wait_closed()
    return found


@in_loop
async def test_the_world_obeys_orders_on_its_control_port() -> None:
    world = Process(python_command("loadtests.stress.world"), ready=says_event("ready")).start()
    async with world:
        await world.ready(READY_S)
        where = json.loads(world.ready_line)
        host, _, port = where["target"].rpartition(":")
        before = await order(where["control"], b"{}")
        assert set(before["processes"]) == {"exit", "proxy", "relay", "target"}
        async with attach(
            where["relay"], token=where["token"], proxy=None, carrier="poll", attach_timeout=60
        ) as attachment:
            reader, writer = await attachment.open_connection(host, int(port), timeout=60)
            writer.write(b"ehello")
            assert await reader.readexactly(5) == b"hello"
            state = await order(where["control"], b'{"loss": "0.1"}')
            assert (state["loss_counts"]["share"], state["relay"]["switch"]["routes"]) == (0.1, 1)
            writer.close()
            await writer.wait_closed()
        after = await order(where["control"], b'{"restart": "relay", "blackhole": 0.05}')
        assert after["processes"]["relay"]["pid"] != before["processes"]["relay"]["pid"]
        assert after["loss_counts"]["share"] == 0.1  # the loss setting outlives the relay
        assert "not a loss" in (await order(where["control"], b'{"loss": "x"}'))["error"]
        assert "error" in await order(where["control"], b'{"restart": "nobody"}')
        assert "error" in await order(where["control"], b"[]")


@in_loop
async def test_the_world_counts_the_objects_of_relay_and_exit() -> None:
    world = Process(python_command("loadtests.stress.world"), ready=says_event("ready")).start()
    async with world:
        await world.ready(READY_S)
        where = json.loads(world.ready_line)
        before = (await order(where["control"], b'{"count": true}'))["objects"]
        host, _, port = where["target"].rpartition(":")
        async with attach(
            where["relay"], token=where["token"], proxy=None, carrier="poll", attach_timeout=60
        ) as attachment:
            pairs = [await attachment.open_connection(host, int(port), timeout=60) for _ in range(TOLERANCE + 1)]
            during = (await order(where["control"], b'{"count": false}'))["objects"]
            for _, writer in pairs:
                writer.close()
                await writer.wait_closed()
    assert set(before) == set(during) == {"relay", "exit"}
    for name in before:
        left = left_over(before[name], during[name])
        assert any(kind.startswith("tunnel") for kind in left), (name, left)


def small_run(measures: Path, *options: str, relay: str = "") -> tuple[subprocess.CompletedProcess[str], Any]:
    """Run the suite, and return the process and what it found.

    The run uses processes of its own: Locust replaces threads with gevent's. A slow machine needs more than 18 s to
    know how memory grows.
    """
    environment = os.environ | ({"STRESS_RELAY": relay} if relay else {})
    for seconds in (18, 60, 200):
        command = python_command("loadtests.stress", "--crowd", "4", "--losses", "0,0.05", "--json", *options)
        command += ["--seconds", str(seconds), "--measures", str(measures / str(seconds))]
        run = subprocess.run(
            command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=RUN_S, check=False
        )
        assert run.stdout, run.stderr
        found = json.loads(run.stdout.splitlines()[-1])
        if not any("s with the same load" in gate["found"] for gate in found["gates"]):
            break
    return run, found


@pytest.mark.timeout(3 * RUN_S)
def test_a_small_run_holds_its_gates(tmp_path: Path) -> None:
    run, found = small_run(tmp_path, "--each", "3")
    assert run.returncode == 0, run.stdout + run.stderr
    assert found["summary"]["actions"] > 0
    assert (found["summary"]["failures"], found["summary"]["wrong"]) == (0, 0)
    assert {step["loss"] for step in found["steps"]} <= {"0", "0.05"}
    gates = {gate["name"]: gate for gate in found["gates"]}
    for process in ("users", "relay", "exit", "proxy", "target"):
        assert "% per minute" in gates[f"memory of {process}"]["found"]
    for process in ("users", "relay", "exit"):
        assert gates[f"objects left in {process}"]["found"] != "not measured"
    (page,) = list(tmp_path.glob("*/stress.html"))[-1:]
    assert page.stat().st_size > 1000


@pytest.mark.timeout(3 * RUN_S)
def test_a_relay_that_leaks_fails_the_run(tmp_path: Path) -> None:
    """It keeps memory and objects for every packet that it passes, and routes that have ended."""
    run, found = small_run(
        tmp_path, "--only", "EchoUser,RequestUser,ChurnUser", relay="tests.loadtests.stress.leakyrelay"
    )
    assert run.returncode == 1, run.stdout + run.stderr
    assert {gate["name"] for gate in found["gates"] if not gate["ok"]} == {
        "memory of relay",
        "objects left in relay",
        "descriptors left in relay",
    }


def test_a_run_with_servers_of_somebody_else_is_refused() -> None:
    """Their memory could not be measured."""
    environment = {**os.environ, "TUNNEL_RELAY": "http://127.0.0.1:9", "STRESS_TARGET": "127.0.0.1:9"}
    command = python_command("loadtests.stress", "--seconds", "1")
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert run.returncode == 2
    assert "TUNNEL_RELAY and STRESS_TARGET name running servers" in run.stderr


def test_a_run_without_users_is_refused() -> None:
    command = python_command("loadtests.stress", "--crowd", "0")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stderr) == (
        2,
        "stress: a run needs users, seconds and at least one loss, as in: --losses 0,0.01,0.05\n",
    )
