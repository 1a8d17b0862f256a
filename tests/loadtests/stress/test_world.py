"""The processes of the stress suite: the target, the losses, and a small run of Locust with limits on its measures."""

import asyncio
import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import xxhash

from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.processinfo import look_at, open_descriptors
from loadtests.stress.target import PATTERN, digest_of_pattern, serve
from tests.support.loops import in_loop
from tunnel import attach

ROOT = Path(__file__).resolve().parent.parent.parent.parent


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
    world = Process(python_command("loadtests.stress.world"), ready=says_event("ready"))
    async with world:
        where = json.loads(world.ready_line)
        host, _, port = where["target"].rpartition(":")
        before = await order(where["control"], b"{}")
        assert set(before["processes"]) == {"proxy", "relay", "target"}
        async with attach(where["relay"], proxy=None, carrier="poll", attach_timeout=60) as attachment:
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


@pytest.mark.timeout(300)
def test_a_small_run_passes_and_breaks_a_threshold_that_cannot_hold(tmp_path: Path) -> None:
    """Both runs use processes of their own: Locust replaces threads with gevent's."""
    command = python_command("loadtests.stress", "--crowd", "4", "--seconds", "6", "--losses", "0,0.05", "--json")
    command += ["--measures", str(tmp_path / "measures"), "--max-slope", "1000"]
    environment = {**os.environ, "STRESS_BULK_BYTES": "200000", "STRESS_CROWD": "3", "STRESS_CROWD_PERIOD_S": "1"}
    run = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=280, check=False)
    assert run.returncode == 0, run.stdout + run.stderr
    found = json.loads(run.stdout.splitlines()[-1])
    assert found["summary"]["actions"] > 0
    assert (found["summary"]["failures"], found["summary"]["wrong"]) == (0, 0)
    assert {step["loss"] for step in found["steps"]} <= {"0", "0.05"}
    assert (tmp_path / "measures" / "stress.html").stat().st_size > 1000
    # The same measures, judged by a threshold that cannot hold.
    judged = (
        "from pathlib import Path\n"
        "from loadtests.stress.gates import Thresholds, judge\n"
        "from loadtests.stress.outcome import read_outcome\n"
        f"outcome = read_outcome(Path({str(tmp_path / 'measures')!r}))\n"
        "findings = judge(outcome.rows, outcome.summary, Thresholds(actions=10**9), 0)\n"
        "raise SystemExit(not all(finding.ok for finding in findings))"
    )
    assert subprocess.run([sys.executable, "-c", judged], cwd=ROOT, check=False).returncode == 1


def test_a_run_without_users_is_refused() -> None:
    command = python_command("loadtests.stress", "--crowd", "0")
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert (run.returncode, run.stderr) == (
        2,
        "stress: a run needs users, seconds and at least one loss, as in: --losses 0,0.01,0.05\n",
    )
