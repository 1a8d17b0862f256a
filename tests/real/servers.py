"""Real programs for tests: each is started with its own configuration and port, answers when the `with` block begins,
and is killed at its end, also when the test fails or is killed.

    with hold_port() as relay, start_nginx(tmp_path, "nginx-defaults.conf", relay=relay) as nginx:
        ...  # nginx.url leads to the relay

    with start_server(lambda port: ["redis-server", "--port", str(port), "--save", ""]) as redis:
        ...  # redis.port
"""

import contextlib
import os
import shutil
import socket
import string
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import READY_S, NotReadyError, Process
from tests.support.programs import search_path

__all__ = [
    "CONFIG",
    "STARTED",
    "Server",
    "as_nobody",
    "open_directory",
    "render",
    "start_apache",
    "start_caddy",
    "start_haproxy",
    "start_nginx",
    "start_server",
    "start_squid",
]

CONFIG = Path(__file__).parent / "config"
STARTED: list[str] = []
"""The configurations of the proxies that were started, in this order; a fixture empties the list before each test."""
_LOOK_S = 0.02  # between checks whether the program answers
_NOBODY, _NOGROUP = 65534, 65534  # as on Debian
_SHARED_PORT_TRIES = 5

MakeCommand = Callable[[int], Sequence[str]]  # given the port
IsUp = Callable[[int], bool]


class _ConfigTemplate(string.Template):
    """A template with `@{name}` as placeholders: none of these programs uses that syntax itself."""

    delimiter = "@"


class Server(Process):
    """A program that listens on `port` of 127.0.0.1. It is ready when `is_up(port)`; by default, when it takes
    connections."""

    def __init__(
        self,
        command: Sequence[str],
        port: int,
        *,
        is_up: IsUp | None = None,
        ready: Callable[[str], bool] | None = None,
        environment: Mapping[str, str] | None = None,
        directory: Path | None = None,
    ) -> None:
        places = {"PATH": search_path(), **(environment or {})}
        super().__init__(command, ready=ready, environment=places, directory=directory)
        self.port = port
        self._is_up = is_up or _takes_connections

    @property
    def url(self) -> str:
        """The URL, for programs that speak HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def wait_ready(self, seconds: float = READY_S) -> "Server":
        """Return when the program answers. Raise NotReadyError, with its last lines, if it ends or is too slow."""
        super().wait_ready(seconds)
        until = time.monotonic() + seconds
        while not self._is_up(self.port):
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.wait(_LOOK_S)
            if not self.is_running:
                raise NotReadyError(f"{' '.join(self.command)}: ended\n{self.output}")
            if time.monotonic() > until:
                raise NotReadyError(f"{' '.join(self.command)}: not up within {seconds:.0f} s\n{self.output}")
        return self


@contextlib.contextmanager
def start_server(
    make_command: MakeCommand,
    *,
    is_up: IsUp | None = None,
    ready: Callable[[str], bool] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
    reuses_addresses: bool = True,
) -> Iterator[Server]:
    """Start a program that listens where `make_command(port)` says; it is killed at the end of the block.

    The port stays reserved, so that the program may be killed and started again: nginx, haproxy, Apache, squid,
    PostgreSQL, redis, sshd and NATS reuse addresses and can bind it. With `reuses_addresses=False` the port is only
    likely to be free; if it was not, another is tried.
    """
    options: dict[str, Any] = {"is_up": is_up, "ready": ready, "environment": environment, "directory": directory}
    if reuses_addresses:
        with hold_port() as port, Server(make_command(port), port, **options) as server:
            yield server
        return
    with _on_a_free_port(make_command, options) as server:
        yield server


def _on_a_free_port(make_command: MakeCommand, options: dict[str, Any]) -> Server:
    for tries_left in reversed(range(_SHARED_PORT_TRIES)):
        with hold_port() as port:
            pass
        server = Server(make_command(port), port, **options)
        server.start()
        try:
            server.wait_ready()
        except BaseException as error:
            server.kill()
            if not isinstance(error, NotReadyError) or not tries_left or "in use" not in str(error):
                raise
        else:
            return server
    raise AssertionError("the last try returns or raises")


def _takes_connections(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=READY_S):
            return True
    except OSError:
        return False


# --- configurations


def render(template: str, **values: object) -> str:
    """Return a committed configuration with its `@{name}`s filled in. Raise KeyError if one has no value."""
    return _ConfigTemplate((CONFIG / template).read_text()).substitute({name: str(v) for name, v in values.items()})


@contextlib.contextmanager
def start_nginx(directory: Path, template: str, **values: object) -> Iterator[Server]:
    """Start nginx in one process, with its files in `directory`; its access log is `directory/access.log`."""
    common = (CONFIG / "nginx-common.conf").read_text()
    head = _ConfigTemplate(common).substitute(directory=directory)
    user = "user root;\n" if os.geteuid() == 0 else ""  # the user `nobody` cannot write in root's directory
    file = directory / "nginx.conf"

    def make_command(port: int) -> list[str]:
        body = render(template, port=port, directory=directory, **values)
        file.write_text(f"{user}{head}http {{\n{_HTTP.substitute(directory=directory)}{body}}}\n")
        return ["nginx", "-p", str(directory), "-c", str(file), "-e", "stderr"]

    with start_server(make_command) as server:
        STARTED.append(template)
        yield server


_HTTP = _ConfigTemplate(
    """\
client_body_temp_path @{directory}/body;
proxy_temp_path @{directory}/proxy;
fastcgi_temp_path @{directory}/fastcgi;
uwsgi_temp_path @{directory}/uwsgi;
scgi_temp_path @{directory}/scgi;
log_format short '$status $request_length $upstream_status $upstream_cache_status';
access_log @{directory}/access.log short;
"""
)


@contextlib.contextmanager
def start_haproxy(directory: Path, template: str, **values: object) -> Iterator[Server]:
    """Start haproxy in one process, in the foreground."""
    file = directory / "haproxy.cfg"

    def make_command(port: int) -> list[str]:
        file.write_text(render(template, port=port, **values))
        return ["haproxy", "-db", "-f", str(file)]

    with start_server(make_command) as server:
        STARTED.append(template)
        yield server


@contextlib.contextmanager
def start_caddy(directory: Path, template: str, **values: object) -> Iterator[Server]:
    """Start Caddy; it keeps its files in `directory`."""
    file = directory / "Caddyfile"
    home = {name: str(directory) for name in ("HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME")}

    def make_command(port: int) -> list[str]:
        file.write_text(render(template, port=port, **values))
        return ["caddy", "run", "--config", str(file), "--adapter", "caddyfile"]

    with start_server(make_command, environment=home, reuses_addresses=False) as server:
        STARTED.append(template)
        yield server


@contextlib.contextmanager
def start_apache(directory: Path, template: str, **values: object) -> Iterator[Server]:
    """Start Apache httpd in one process, with its files in a directory of its own."""
    user = "User nobody\nGroup nogroup" if os.geteuid() == 0 else ""
    with open_directory() as own:
        file = own / "httpd.conf"

        def make_command(port: int) -> list[str]:
            _hand_over(file, render(template, port=port, directory=own, user=user, **values))
            return ["apache2", "-X", "-d", str(own), "-f", str(file)]

        with start_server(make_command, directory=directory) as server:
            STARTED.append(template)
            yield server


@contextlib.contextmanager
def start_squid(template: str, files: Mapping[str, str] | None = None, **values: object) -> Iterator[Server]:
    """Start squid in one process, as the user `nobody`: it refuses to run as root. `files` lie in @{directory}."""
    with open_directory() as directory:
        for name, text in (files or {}).items():
            _hand_over(directory / name, text)

        def make_command(port: int) -> list[str]:
            text = render(template, port=port, directory=directory, **values)
            _hand_over(directory / "squid.conf", text)
            return as_nobody(["squid", "-N", "-d", "1", "-n", f"test{port}", "-f", str(directory / "squid.conf")])

        with start_server(make_command, directory=directory) as server:
            STARTED.append(template)
            yield server


# --- programs that refuse to run as root


def as_nobody(command: Sequence[str]) -> list[str]:
    """Return the command that runs this one as the user `nobody` if we are root. It still dies with its parent."""
    if os.geteuid() != 0:
        return list(command)
    ids = [f"--reuid={_NOBODY}", f"--regid={_NOGROUP}", "--clear-groups", "--pdeathsig=KILL"]
    return ["setpriv", *ids, "--", *command]


@contextlib.contextmanager
def open_directory() -> Iterator[Path]:
    """A temporary directory of the user that `as_nobody` runs as: pytest's own are closed to other users."""
    directory = Path(tempfile.mkdtemp(prefix="tunnel-"))
    try:
        directory.chmod(0o700)
        if os.geteuid() == 0:
            os.chown(directory, _NOBODY, _NOGROUP)
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _hand_over(file: Path, text: str) -> None:
    file.write_text(text)
    if os.geteuid() == 0:
        os.chown(file, _NOBODY, _NOGROUP)
