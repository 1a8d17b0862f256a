"""The endpoint in `node`, written from docs/PROTOCOL.md alone, against the relay and the endpoint in Python."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import IO

import pytest

import tunnel_client
from tests.interop.node_rig import LOOPBACK, PATHS, WAIT_S, NodeWorld, installed_node_endpoint

pytestmark = [pytest.mark.real("node", "npm", "nginx"), pytest.mark.timeout(240)]

PAYLOAD = Random(3).randbytes(1_500_000)
HALF = len(PAYLOAD) // 2
on_every_path = pytest.mark.parametrize(("carrier", "path"), PATHS)
on_every_carrier = pytest.mark.parametrize("carrier", ["poll", "link", "auto"])


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeWorld]:
    with NodeWorld(tmp_path_factory.mktemp("node")) as running:
        yield running


def echoed(runtime: tunnel_client.Runtime, name: str, payload: bytes) -> bytes:
    """Send the payload to an echoing service from one thread, read it back in another, and end both directions."""
    with tunnel_client.create_connection(name, timeout=WAIT_S, runtime=runtime) as sock:
        writer = threading.Thread(target=send_and_end, args=(sock, payload))
        writer.start()
        found = bytearray()
        while chunk := sock.recv(65536):
            found += chunk
        writer.join()
    return bytes(found)


def send_and_end(sock: socket.socket, payload: bytes) -> None:
    sock.sendall(payload)
    sock.shutdown(socket.SHUT_WR)


def write(pipe: IO[bytes], payload: bytes, *, end: bool) -> None:
    pipe.write(payload)
    if end:
        pipe.close()
    else:
        pipe.flush()


# Each direction, on each path


@on_every_path
def test_node_reaches_a_target_through_an_exit(world: NodeWorld, carrier: str, path: str) -> None:
    done = world.connect(carrier, path, f"{LOOPBACK}:{world.echo_port}", PAYLOAD)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == PAYLOAD


@on_every_path
def test_node_reaches_a_service_in_python(world: NodeWorld, carrier: str, path: str) -> None:
    name = f"python-{carrier}-{path}"
    with world.expose(name):
        done = world.connect(carrier, path, f"service:{name}", PAYLOAD)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == PAYLOAD


@on_every_path
def test_python_reaches_a_service_in_node(world: NodeWorld, carrier: str, path: str) -> None:
    name = f"node-{carrier}-{path}"
    with world.serve(carrier, path, name), world.runtime("poll", "direct") as runtime:
        assert echoed(runtime, name, PAYLOAD) == PAYLOAD


@on_every_path
def test_node_reaches_a_service_in_node(world: NodeWorld, carrier: str, path: str) -> None:
    name = f"both-{carrier}-{path}"
    with world.serve(carrier, path, name):
        done = world.connect(carrier, path, f"service:{name}", PAYLOAD)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == PAYLOAD


@on_every_carrier
def test_several_connections_share_one_endpoint(world: NodeWorld, carrier: str) -> None:
    name = f"shared-{carrier}"
    with world.serve(carrier, "direct", name), world.runtime(carrier, "direct") as runtime:
        found: dict[int, bytes] = {}
        parts = [PAYLOAD[index * 100_000 : (index + 1) * 100_000] for index in range(8)]
        threads = [
            threading.Thread(target=lambda index=index: found.update({index: echoed(runtime, name, parts[index])}))
            for index in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(WAIT_S)
        assert [found.get(index) for index in range(8)] == parts


# Pull intervals


def test_node_pulls_at_an_interval(world: NodeWorld) -> None:
    done = world.connect("poll", "direct", f"{LOOPBACK}:{world.echo_port}", PAYLOAD[:HALF], "--pull-interval", "0.3")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout == PAYLOAD[:HALF]


@pytest.mark.parametrize("carrier", ["poll", "auto"])
def test_node_asks_for_held_pulls_while_a_connection_lasts(world: NodeWorld, carrier: str) -> None:
    command = world.command("connect", carrier, "direct", "--pull-interval", "0.5", f"{LOOPBACK}:{world.echo_port}")
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as node, ended(node):
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stderr is not None
        found = b""
        for part in (PAYLOAD[:1000], PAYLOAD[1000:2000], PAYLOAD[2000:3000]):
            write(node.stdin, part, end=False)
            found += node.stdout.read(1000)
            node.send_signal(signal.SIGUSR2)  # OPTION asks for the other interval; the relay and the peer take it
        node.stdin.close()
        assert node.stdout.read() == b""
        assert found == PAYLOAD[:3000]
        assert (node.wait(WAIT_S), node.stderr.read()) == (0, b"")


# The relay dies


@on_every_carrier
def test_a_connection_from_node_survives_a_restart_of_the_relay(world: NodeWorld, carrier: str) -> None:
    name = f"resumed-{carrier}"
    command = world.command("connect", carrier, "direct", f"service:{name}")
    pipe = subprocess.PIPE
    with (
        world.expose(name),
        subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe) as node,
        ended(node),
    ):
        assert node.stdin is not None
        assert node.stdout is not None
        assert node.stderr is not None
        writer = threading.Thread(target=write, args=(node.stdin, PAYLOAD[:HALF]), kwargs={"end": False})
        writer.start()
        found = node.stdout.read(HALF // 2)
        world.replace_relay()
        found += node.stdout.read(HALF - HALF // 2)
        writer.join()
        writer = threading.Thread(target=write, args=(node.stdin, PAYLOAD[HALF:]), kwargs={"end": True})
        writer.start()
        found += node.stdout.read()
        writer.join()
        assert found == PAYLOAD
        assert (node.wait(WAIT_S), node.stderr.read()) == (0, b"")


@on_every_carrier
def test_a_connection_to_node_survives_a_restart_of_the_relay(world: NodeWorld, carrier: str) -> None:
    name = f"resuming-{carrier}"
    with world.serve(carrier, "direct", name), world.runtime("poll", "direct") as runtime:
        with tunnel_client.create_connection(name, timeout=WAIT_S, runtime=runtime) as sock:
            writer = threading.Thread(target=send_and_end, args=(sock, PAYLOAD))
            writer.start()
            found = bytearray(sock.recv(65536))
            world.replace_relay()
            while chunk := sock.recv(65536):
                found += chunk
            writer.join()
        assert bytes(found) == PAYLOAD
        with tunnel_client.create_connection(name, timeout=WAIT_S, runtime=runtime) as sock:
            sock.sendall(b"the service is announced again")
            assert sock.recv(4) == b"the "


@contextlib.contextmanager
def ended(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Kill the process at the end of the block, whatever happened."""
    try:
        yield
    finally:
        process.kill()


# Ends and errors


@on_every_carrier
def test_a_refusal_is_one_line_and_exit_code_1(world: NodeWorld, carrier: str) -> None:
    with world.closed_port() as port:
        done = world.connect(carrier, "direct", f"{LOOPBACK}:{port}", b"")
    assert done.returncode == 1
    assert re.fullmatch(rb"[^\n]*refused[^\n]*\n", done.stderr)
    done = world.connect(carrier, "direct", "service:absent", b"")
    assert done.returncode == 1
    assert re.fullmatch(rb"[^\n]*absent[^\n]*\n", done.stderr)


def test_wrong_usage_is_exit_code_2() -> None:
    main = installed_node_endpoint() / "main.mjs"
    done = subprocess.run(["node", str(main), "connect"], capture_output=True, timeout=WAIT_S, check=False)
    assert done.returncode == 2
    assert done.stderr


@pytest.mark.parametrize("way", [["--relay", "http://relay.invalid"], ["--relay", "http://127.0.0.1.invalid:1"]])
def test_two_users_a_token_does_not_cross_a_network_unencrypted(way: list[str]) -> None:
    """The other user is anyone on the network, who could read the token there."""
    main = installed_node_endpoint() / "main.mjs"
    command = ["node", str(main), "connect", *way, "127.0.0.1:22"]
    environment = {**os.environ, "TUNNEL_TOKEN": "tnl_x"}
    done = subprocess.run(command, capture_output=True, timeout=WAIT_S, check=False, env=environment)
    assert done.returncode == 2
    assert b"unencrypted" in done.stderr


@on_every_carrier
def test_a_service_that_is_stopped_resets_its_connections(world: NodeWorld, carrier: str) -> None:
    name = f"stopped-{carrier}"
    with world.serve(carrier, "direct", name) as process, world.runtime("poll", "direct") as runtime:
        with tunnel_client.create_connection(name, timeout=WAIT_S, runtime=runtime) as sock:
            sock.sendall(b"x")
            assert sock.recv(1) == b"x"
            process.signal(signal.SIGTERM)
            with pytest.raises(ConnectionResetError):
                sock.recv(1)
        assert process.wait(WAIT_S) == 0


def test_the_tests_of_the_node_endpoint_pass() -> None:
    folder: Path = installed_node_endpoint()
    done = subprocess.run(["npm", "test"], cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
    assert re.search(r"^# pass [1-9]", done.stdout, re.MULTILINE)
