"""The compared programs, each started as its documentation shows, from a local port to a target."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from uuid import uuid4

import msgspec

from loadtests.bench.programs import find_peer, start_peer
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process

__all__ = ["CONTENDERS", "Contender", "Front", "Started"]

LOOPBACK = "127.0.0.1"
Front = Callable[[int], AbstractContextManager[int]]
"""Starts an intermediary in front of a server; takes the server's port and yields the port for clients."""


class Started(msgspec.Struct):
    """A contender whose processes run. `server` may be killed and started again; `others` are its other processes."""

    local_port: int
    server: Process
    others: tuple[Process, ...] = ()


class Contender(msgspec.Struct, frozen=True):
    """A program to compare. `start` starts its server, an intermediary and its client, for a target at a local port."""

    name: str
    what: str
    start: Callable[[ExitStack, int, Front], Started]


def _tunnel(carrier: str, *, inline_exit: bool = False) -> Callable[[ExitStack, int, Front], Started]:
    """Return the function that starts the tunnel. The exit is on the open side and has a direct link to the relay, or
    it is a part of the relay's process, so that there are two processes, as of other programs."""

    def start(stack: ExitStack, target: int, front: Front) -> Started:
        relay = stack.enter_context(RelayProcess(inline_exit=inline_exit))
        exits = () if inline_exit else (stack.enter_context(exit_process(relay)),)
        url = f"http://{LOOPBACK}:{stack.enter_context(front(relay.port))}"
        local = stack.enter_context(hold_port())
        options = ("--relay", url, "--proxy", "", "--carrier", carrier, f"{local}:{LOOPBACK}:{target}")
        forward = Process(
            python_command("tunnel_client", "forward", *options),
            ready=says_event("listening"),
            environment={"TUNNEL_TOKEN": relay.tokens["client"]},
        )
        stack.enter_context(forward)
        return Started(local, relay.process, (*exits, forward))

    return start


def _chisel(stack: ExitStack, target: int, front: Front) -> Started:
    program = find_peer("chisel", "go install github.com/jpillora/chisel@latest")
    port, local = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    server = start_peer(stack, [program, "server", "--host", LOOPBACK, "--port", str(port)], port)
    url = f"http://{LOOPBACK}:{stack.enter_context(front(port))}"
    client = start_peer(stack, [program, "client", url, f"{LOOPBACK}:{local}:{LOOPBACK}:{target}"], local)
    return Started(local, server, (client,))


def _wstunnel(stack: ExitStack, target: int, front: Front) -> Started:
    program = find_peer("wstunnel", "https://github.com/erebe/wstunnel/releases")
    port, local = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    server = start_peer(stack, [program, "server", f"ws://{LOOPBACK}:{port}"], port)
    url = f"ws://{LOOPBACK}:{stack.enter_context(front(port))}"
    forward = f"tcp://{LOOPBACK}:{local}:{LOOPBACK}:{target}"
    client = start_peer(stack, [program, "client", "-L", forward, url], local)
    return Started(local, server, (client,))


def _gost(stack: ExitStack, target: int, front: Front) -> Started:
    program = find_peer("gost", "go install github.com/go-gost/gost/cmd/gost@latest")
    port, local = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    server = start_peer(stack, [program, "-L", f"relay+ws://{LOOPBACK}:{port}"], port)
    url = f"relay+ws://{LOOPBACK}:{stack.enter_context(front(port))}"
    forward = f"tcp://{LOOPBACK}:{local}/{LOOPBACK}:{target}"
    client = start_peer(stack, [program, "-L", forward, "-F", url], local)
    return Started(local, server, (client,))


def _xray(stack: ExitStack, target: int, front: Front) -> Started:
    """Start XHTTP in the mode that asks the least of intermediaries: bytes up in POSTs, down in one long GET."""
    program = find_peer("xray", "https://github.com/XTLS/Xray-core/releases")
    directory = Path(stack.enter_context(TemporaryDirectory(prefix="tunnel-xray-")))
    port, local = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    user = {"id": str(uuid4())}
    stream = {"network": "xhttp", "xhttpSettings": {"path": "/x", "mode": "packet-up"}}

    def command(name: str, inbound: dict[str, Any], outbound: dict[str, Any]) -> list[str]:
        config = {"log": {"loglevel": "error"}, "inbounds": [{"listen": LOOPBACK, **inbound}], "outbounds": [outbound]}
        file = directory / f"{name}.json"
        file.write_text(json.dumps(config), encoding="utf-8")
        return [program, "run", "-c", str(file)]

    vless = {"port": port, "protocol": "vless", "settings": {"clients": [user], "decryption": "none"}}
    server = start_peer(stack, command("server", {**vless, "streamSettings": stream}, {"protocol": "freedom"}), port)
    door = {
        "port": local,
        "protocol": "dokodemo-door",
        "settings": {"address": LOOPBACK, "port": target, "network": "tcp"},
    }
    there = {"address": LOOPBACK, "port": stack.enter_context(front(port)), "users": [{**user, "encryption": "none"}]}
    outbound = {"protocol": "vless", "settings": {"vnext": [there]}, "streamSettings": stream}
    client = start_peer(stack, command("client", door, outbound), local)
    return Started(local, server, (client,))


def _httptunnel(stack: ExitStack, target: int, front: Front) -> Started:
    server_program = find_peer("hts", "apt-get install httptunnel")
    client_program = find_peer("htc", "apt-get install httptunnel")
    port, local = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    server = start_peer(stack, [server_program, "-w", "-F", f"{LOOPBACK}:{target}", f"{LOOPBACK}:{port}"], port)
    front_port = stack.enter_context(front(port))
    client = start_peer(stack, [client_program, "-w", "-F", str(local), f"{LOOPBACK}:{front_port}"], local)
    return Started(local, server, (client,))


CONTENDERS: tuple[Contender, ...] = (
    Contender("tunnel", "tunnel forward =auto= relay =link= exit", _tunnel("auto")),
    Contender("tunnel-2", "tunnel forward =auto= relay with its inline exit", _tunnel("auto", inline_exit=True)),
    Contender("tunnel-poll", "tunnel forward =poll= relay =link= exit", _tunnel("poll")),
    Contender("chisel", "chisel client =WebSocket, SSH= chisel server", _chisel),
    Contender("wstunnel", "wstunnel client =WebSocket= wstunnel server", _wstunnel),
    Contender("gost", "gost =relay over WebSocket= gost", _gost),
    Contender("xray", "Xray =XHTTP, packet-up= Xray", _xray),
    Contender("httptunnel", "htc =HTTP= hts", _httptunnel),
)
