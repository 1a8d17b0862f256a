"""The paths that `loadtests.bench.road` compares: the processes between a client and its target."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

import msgspec

from loadtests.bench.programs import find_peer, start_peer
from loadtests.harness.compiled import COMPILED
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tunnel.encryption.keys import KeyFile
from tunnel_servlet.access.tokens import Key, make_token
from tunnel_servlet.command.files import write_users

__all__ = ["ROADS", "Road", "Way", "bare", "start_target"]

_PEER = "loadtests.bench.road_peer"

_CONFIG = """\
listen = ["127.0.0.1:0"]
exit = "none"
tokens = "relay.tokens.toml"
[users.client]
connect = ["127.0.0.1:{target}"]
[users.exit]
exit = true
"""


class Way(msgspec.Struct, frozen=True):
    """How a client reaches the target: arguments of `road_peer client`, a token, and environment variables."""

    arguments: tuple[str, ...]
    token: str = ""
    environment: dict[str, str] = {}


class Road(msgspec.Struct, frozen=True):
    """A path to measure. `start` starts its processes, which end with the stack.

    `hops` selects the bare path for the comparison: it has this number of forwarders.
    """

    name: str
    topology: str
    hops: int
    start: Callable[[ExitStack], Way]
    share: int = 1  # divides the size, so that slow paths move less
    echo_share: int = 1  # divides the echoes: with a round trip of 100 ms, a thousand take minutes


def _peer(stack: ExitStack, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Start a role; return the address that it announced when it was ready."""
    command = python_command(_PEER, *arguments)
    process = Process(command, ready=lambda line: line.startswith("ready "), environment=environment)
    return stack.enter_context(process).ready_line.split()[1]


def _program(stack: ExitStack, name: str, *arguments: str, port: int) -> None:
    """Start a third-party program, and wait until it listens at `port`."""
    found = find_peer(name, "apt-get install socat httptunnel")
    start_peer(stack, [found, *arguments], port)


def start_target(stack: ExitStack) -> str:
    """Start the target of the clients; return its port."""
    return _peer(stack, "target")


def bare(hops: int) -> Callable[[ExitStack], Way]:
    """Return the function that starts a path with this number of bare forwarders: the limit of the machine."""

    def start(stack: ExitStack) -> Way:
        port = _peer(stack, "target")
        for _ in range(hops):
            port = _peer(stack, "forward", "--port", port)
        return Way(("--port", port))

    return start


def _socat(stack: ExitStack) -> Way:
    target = _peer(stack, "target")
    port = stack.enter_context(hold_port())
    listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,nodelay"
    _program(stack, "socat", "-b", "262144", listen, f"TCP:127.0.0.1:{target},nodelay", port=port)
    return Way(("--port", str(port)))


def _httptunnel(stack: ExitStack) -> Way:
    target = _peer(stack, "target")
    server, client = stack.enter_context(hold_port()), stack.enter_context(hold_port())
    _program(stack, "hts", "-w", "-F", f"127.0.0.1:{target}", f"127.0.0.1:{server}", port=server)
    _program(stack, "htc", "-w", "-F", str(client), f"127.0.0.1:{server}", port=client)
    return Way(("--port", str(client)))


def _relay(stack: ExitStack, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Start a relay as a user would; return its URL."""
    command = relay_command("serve", *arguments)
    process = stack.enter_context(Process(command, ready=says_event("listening"), environment=environment))
    return str(msgspec.json.decode(process.ready_line)["url"])


def _service(
    carrier: str, delay_ms: int = 0, *, traced: bool = False, compiled: bool = False
) -> Callable[[ExitStack], Way]:
    def start(stack: ExitStack) -> Way:
        trace = ("--trace", stack.enter_context(TemporaryDirectory())) if traced else ()
        environment = COMPILED if compiled else {}
        url = _relay(stack, "--open", "--listen", "127.0.0.1:0", "--exit", "none", *trace, environment=environment)
        _peer(stack, "service", "--relay", url, *trace, environment=environment)
        if delay_ms:
            port = url.rpartition(":")[2]
            late = _peer(stack, "forward", "--port", port, "--delay-ms", str(delay_ms))
            url = f"http://127.0.0.1:{late}"
        return Way(("--relay", url, "--carrier", carrier, *trace), environment=environment)

    return start


def _tokens(file: Path, *users: str) -> dict[str, str]:
    """Create a token for each user, and write the relay's file of tokens."""
    made: dict[str, tuple[str, Key]] = {user: make_token(SystemRandom()) for user in users}
    write_users(file, {user: (key,) for user, (_, key) in made.items()})
    return {user: token for user, (token, _) in made.items()}


def _exit(carrier: str, *, encrypted: bool = False) -> Callable[[ExitStack], Way]:
    def start(stack: ExitStack) -> Way:
        target = _peer(stack, "target")
        directory = stack.enter_context(TemporaryDirectory())
        file = f"{directory}/relay.toml"
        tokens = _tokens(Path(directory) / "relay.tokens.toml", "client", "exit")
        Path(file).write_text(_CONFIG.format(target=target), encoding="utf-8")
        url = _relay(stack, "-c", file)
        key = f"{directory}/exit.pem"
        keys = ("--key", key, "--encryption", "require") if encrypted else ()
        command = relay_command("exit", "--relay", url, "--allow", f"127.0.0.1:{target}", *keys)
        environment = {"TUNNEL_TOKEN": tokens["exit"]}
        attached = Process(command, ready=lambda line: line.startswith("attached"), environment=environment)
        stack.enter_context(attached)
        peer_key = ("--peer-key", KeyFile(Path(key)).fingerprint) if encrypted else ()
        return Way(("--relay", url, "--carrier", carrier, "--port", target, *peer_key), tokens["client"])

    return start


ROADS: tuple[Road, ...] = (
    Road("bare-1", "client - uvloop forwarder - target", 1, bare(1)),
    Road("bare-2", "client - 2 uvloop forwarders - target", 2, bare(2)),
    Road("socat", "client - socat - target", 1, _socat),
    Road("httptunnel", "client - htc - hts - target", 2, _httptunnel),
    Road("link-service", "client =link= relay =link= service", 1, _service("link")),
    Road("link-traced", "the same, with all three processes tracing every packet", 1, _service("link", traced=True)),
    Road("link-compiled", "client =link= relay =link= service, all compiled", 1, _service("link", compiled=True)),
    Road("link-exit", "client =link= relay =link= exit - target", 2, _exit("link")),
    Road("link-exit-encrypted", "the same, encrypted from client to exit", 2, _exit("link", encrypted=True)),
    Road("poll-service", "client =poll= relay =link= service", 1, _service("poll")),
    Road("poll-compiled", "client =poll= relay =link= service, all compiled", 1, _service("poll", compiled=True)),
    Road("poll-exit", "client =poll= relay =link= exit - target", 2, _exit("poll")),
    Road("poll-exit-encrypted", "the same, encrypted from client to exit", 2, _exit("poll", encrypted=True)),
    Road("poll-100ms", "client =poll= 50 ms each way - relay =link= service", 1, _service("poll", 50), 4, 20),
)
