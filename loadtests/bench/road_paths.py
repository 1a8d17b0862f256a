"""The paths that `loadtests.bench.road` compares: the processes between a client and its target."""

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

import msgspec

from loadtests.bench.programs import find_peer, start_peer, wait_listening
from loadtests.harness.compiled import COMPILED
from loadtests.harness.nginx import Nginx
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tunnel.encryption.keys import KeyFile
from tunnel_servlet.access.tokens import Key, make_token
from tunnel_servlet.command.files import write_users

__all__ = ["RELAY_CONFIG", "ROADS", "Road", "Way", "bare", "start_role", "start_target", "write_tokens"]

# Starts a program in front of the relay with this URL, and returns the URL that leads through it.
_Hop = Callable[[ExitStack, str], str]

_PEER = "loadtests.bench.road_peer"

RELAY_CONFIG = """\
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

    `bare` names the path without a tunnel that this one is compared with, and `beside` a further path.
    """

    name: str
    topology: str
    bare: str
    start: Callable[[ExitStack], Way]
    share: int = 1  # divides the size, so that slow paths move less
    echo_share: int = 1  # divides the echoes: with a round trip of 100 ms, a thousand take minutes
    beside: str = ""


def start_role(stack: ExitStack, *arguments: str, environment: Mapping[str, str] | None = None) -> str:
    """Start a role of `road_peer`; return the address that it announced when it was ready."""
    command = python_command(_PEER, *arguments)
    process = Process(command, ready=lambda line: line.startswith("ready "), environment=environment)
    return stack.enter_context(process).ready_line.split()[1]


def _program(stack: ExitStack, name: str, *arguments: str, port: int) -> None:
    """Start a third-party program, and wait until it listens at `port`."""
    found = find_peer(name, "apt-get install socat httptunnel")
    start_peer(stack, [found, *arguments], port)


def start_target(stack: ExitStack) -> str:
    """Start the target of the clients; return its port."""
    return start_role(stack, "target")


def bare(hops: int, *slow: str) -> Callable[[ExitStack], Way]:
    """Return the function that starts a path with this number of bare forwarders: the limit of the machine."""

    def start(stack: ExitStack) -> Way:
        port = start_role(stack, "target")
        for _ in range(hops):
            port = start_role(stack, "forward", "--port", port, *slow)
        return Way(("--port", port))

    return start


def _socat(stack: ExitStack) -> Way:
    target = start_role(stack, "target")
    port = stack.enter_context(hold_port())
    listen = f"TCP-LISTEN:{port},bind=127.0.0.1,reuseaddr,fork,nodelay"
    _program(stack, "socat", "-b", "262144", listen, f"TCP:127.0.0.1:{target},nodelay", port=port)
    return Way(("--port", str(port)))


def _httptunnel(stack: ExitStack) -> Way:
    target = start_role(stack, "target")
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
    carrier: str, hop: _Hop | None = None, *, traced: bool = False, compiled: bool = False, warm_s: float = 0
) -> Callable[[ExitStack], Way]:
    def start(stack: ExitStack) -> Way:
        trace = ("--trace", stack.enter_context(TemporaryDirectory())) if traced else ()
        environment = COMPILED if compiled else {}
        url = _relay(stack, "--open", "--listen", "127.0.0.1:0", "--exit", "none", *trace, environment=environment)
        start_role(stack, "service", "--relay", url, *trace, environment=environment)
        if hop is not None:
            url = hop(stack, url)
        arguments = ("--relay", url, "--carrier", carrier, "--warm-s", str(warm_s), *trace)
        return Way(arguments, environment=environment)

    return start


def _late(*slow: str) -> _Hop:
    """Return the hop that is a bare forwarder with a delay, a rate, or both."""

    def start(stack: ExitStack, url: str) -> str:
        port = start_role(stack, "forward", "--port", url.rpartition(":")[2], *slow)
        return f"http://127.0.0.1:{port}"

    return start


def _nginx(http: str = "", location: str = "") -> _Hop:
    """Return the hop that is nginx with its default settings and these directives."""

    def start(stack: ExitStack, url: str) -> str:
        find_peer("nginx", "run make system-deps")
        nginx = stack.enter_context(Nginx(url, http=http, location=location))
        wait_listening(nginx.process, nginx.port)
        return nginx.url

    return start


def write_tokens(file: Path, *users: str) -> dict[str, str]:
    """Create a token for each user, and write the relay's file of tokens."""
    made: dict[str, tuple[str, Key]] = {user: make_token(SystemRandom()) for user in users}
    write_users(file, {user: (key,) for user, (_, key) in made.items()})
    return {user: token for user, (token, _) in made.items()}


def _exit(carrier: str, *, encrypted: bool = False) -> Callable[[ExitStack], Way]:
    def start(stack: ExitStack) -> Way:
        target = start_role(stack, "target")
        directory = stack.enter_context(TemporaryDirectory())
        file = f"{directory}/relay.toml"
        tokens = write_tokens(Path(directory) / "relay.tokens.toml", "client", "exit")
        Path(file).write_text(RELAY_CONFIG.format(target=target), encoding="utf-8")
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


_LATE = ("--delay-ms", "50")
_SLOW = (*_LATE, "--mb-s", "50")
_SLOW_WARM_S = 5.0
_TEN_A_SECOND = ("limit_req_zone $binary_remote_addr zone=clients:1m rate=10r/s;", "limit_req zone=clients;")

ROADS: tuple[Road, ...] = (
    Road("bare-1", "client - uvloop forwarder - target", "bare-1", bare(1)),
    Road("bare-2", "client - 2 uvloop forwarders - target", "bare-2", bare(2)),
    Road("bare-slow", "client - 50 ms each way, 50 MB/s - target", "bare-slow", bare(1, *_SLOW), 1, 20),
    Road("socat", "client - socat - target", "bare-1", _socat),
    Road("httptunnel", "client - htc - hts - target", "bare-2", _httptunnel),
    Road("link-service", "client =link= relay =link= service", "bare-1", _service("link")),
    Road("link-traced", "the same, all three processes tracing every packet", "bare-1", _service("link", traced=True)),
    Road("link-compiled", "client =link= relay =link= service, compiled", "bare-1", _service("link", compiled=True)),
    Road("link-exit", "client =link= relay =link= exit - target", "bare-2", _exit("link")),
    Road("link-exit-encrypted", "the same, encrypted from client to exit", "bare-2", _exit("link", encrypted=True)),
    Road(
        "websocket-service",
        "client =websocket= relay =link= service",
        "bare-1",
        _service("websocket"),
        beside="link-service",
    ),
    Road("poll-service", "client =poll= relay =link= service", "bare-1", _service("poll")),
    Road("poll-compiled", "client =poll= relay =link= service, compiled", "bare-1", _service("poll", compiled=True)),
    Road("poll-exit", "client =poll= relay =link= exit - target", "bare-2", _exit("poll")),
    Road("poll-exit-encrypted", "the same, encrypted from client to exit", "bare-2", _exit("poll", encrypted=True)),
    Road(
        "poll-100ms",
        "client =poll= 50 ms each way - relay =link= service",
        "bare-1",
        _service("poll", _late(*_LATE)),
        4,
        20,
    ),
    Road("poll-nginx", "client =poll= nginx - relay =link= service", "bare-2", _service("poll", _nginx())),
    Road(
        "stream-nginx",
        "client =stream= nginx - relay =link= service",
        "bare-2",
        _service("stream", _nginx()),
        beside="poll-nginx",
    ),
    Road(
        "stream-slow",
        "client =stream= 50 ms each way, 50 MB/s - relay =link= service, after 5 s",
        "bare-slow",
        _service("stream", _late(*_SLOW), warm_s=_SLOW_WARM_S),
        1,
        20,
    ),
    Road(
        "stream-10-a-second",
        "client =stream= nginx with 10 requests/s - relay =link= service, after 5 s",
        "bare-2",
        _service("stream", _nginx(*_TEN_A_SECOND), warm_s=_SLOW_WARM_S),
        4,
        20,
    ),
)
