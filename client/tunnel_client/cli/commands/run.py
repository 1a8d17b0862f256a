"""`tunnel run -- CMD`: run a command; the sockets of every Python process that it starts use one tunnel."""

import argparse
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tunnel.ground.exit_codes import USAGE
from tunnel.process.command_line import CommandAdder, tell
from tunnel_client.borrowed.hosts import Hosts
from tunnel_client.cli.attaching import QUIET_S, told_of_waiting
from tunnel_client.cli.bypasses import Bypasses, Noticing, program_name
from tunnel_client.cli.options import add_relay_options, relay_settings
from tunnel_client.cli.run_summary import RunSummary
from tunnel_client.errors import UsageError
from tunnel_client.proposals import given_options, with_options

__all__ = ["add"]

_SITE = Path(__file__).parents[2] / "borrowed" / "site"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_LOADED = (
    "tunnel: {program} (process {pid}) has loaded {client}, which connects in C and so bypasses the tunnel{unless}: "
    "let it connect to a port of `tunnel forward` instead"
)


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "run",
        "run a command; the sockets of its Python programs connect through the tunnel",
        "tunnel run --hosts '*.internal' -- python app.py",
    )
    add_relay_options(parser)
    parser.add_argument(
        "--hosts",
        action="append",
        default=[],
        metavar="PATTERN",
        help="host to reach through the tunnel: a name, *.domain, an address or a network; repeatable (default: every "
        "host except this machine)",
    )
    parser.add_argument(
        "--quiet",
        "-q",
        action="store_true",
        help="do not say how many connections used the tunnel, nor which bypassed it: for scripts that read the "
        "standard error of the command",
    )
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command to run, with its arguments"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tunnel_client.sockets.lender import Lender
    from tunnel_client.sockets.runtime import Runtime

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command is given: write tunnel run -- CMD ...")
    hosts = Hosts(arguments.hosts or ["*"])
    settings = relay_settings(arguments)
    runtime = Runtime(settings)
    telling = partial(told_of_waiting, who=settings.url, quiet_s=QUIET_S)
    summary = RunSummary(os.path.basename(command[0]), hosts.patterns)
    clients = _Clients(summary, hosts, tells=not arguments.quiet)
    with Lender(runtime, summary.command, clients.on_loaded, telling) as lender:
        process = _start(command, environment(lender.path, hosts.patterns))
        if process is None:
            code = USAGE
        else:
            noticing = Noticing(Bypasses(process.pid, lambda: lender.greeted, hosts), tells=not arguments.quiet)
            with _signals_for(process), noticing:
                code = process.wait()
            summary.opened, summary.failed, summary.has_python = lender.opened, lender.failed, bool(lender.greeted)
            summary.certain, summary.possible, summary.first = noticing.certain, noticing.possible, noticing.first
            if not arguments.quiet:
                tell(with_options(str(summary), given_options(arguments)))
    runtime.close()
    return 128 - code if code < 0 else code


class _Clients:
    """Says once of each client in C that it bypasses the tunnel, and adds it to the summary."""

    def __init__(self, summary: RunSummary, hosts: Hosts, *, tells: bool) -> None:
        self._summary = summary
        self._unless = "" if hosts.patterns == ["*"] else " if it connects to one of your --hosts"
        self._tells = tells

    def on_loaded(self, client: str, pid: int) -> None:
        if client in self._summary.clients:
            return
        self._summary.clients.append(client)
        if self._tells:
            tell(_LOADED.format(program=program_name(pid), pid=pid, client=client, unless=self._unless))


def environment(path: str, patterns: list[str]) -> dict[str, str]:
    """Return the environment of the command. It names the lender's socket, and makes Python load our sitecustomize.

    The command does not get the token: its sockets borrow the tunnel of this process.
    """
    made = {**os.environ, "TUNNEL_RUN_SOCKET": path, "TUNNEL_RUN_HOSTS": ",".join(patterns)}
    made.pop("TUNNEL_TOKEN", None)
    made["PYTHONPATH"] = os.pathsep.join(filter(None, [str(_SITE), os.environ.get("PYTHONPATH", "")]))
    if "*" in patterns:
        # A proxy that the environment names leads out of this network, as the tunnel does. The command must not reach
        # that proxy through the tunnel.
        return {name: value for name, value in made.items() if name.lower() not in _PROXIES}
    direct = [pattern.removeprefix("*") for pattern in patterns]
    for name in ("no_proxy", "NO_PROXY"):
        made[name] = ",".join(filter(None, [os.environ.get(name, ""), *direct]))
    return made


def _start(command: list[str], variables: dict[str, str]) -> subprocess.Popen[bytes] | None:
    """Start the command. If that is impossible, say why, and return None."""
    try:
        return subprocess.Popen(command, env=variables)
    except OSError as error:
        tell(f"tunnel: {command[0]}: {error.strerror}: check the command")
        return None


@contextmanager
def _signals_for(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """Leave signals to the command: pass SIGTERM and SIGHUP on, and ignore SIGINT and SIGQUIT, which a terminal sends
    to the command as well."""
    passed = {
        signal.SIGTERM: lambda *_: process.send_signal(signal.SIGTERM),
        signal.SIGHUP: lambda *_: process.send_signal(signal.SIGHUP),
        signal.SIGINT: lambda *_: None,
        signal.SIGQUIT: lambda *_: None,
    }
    before = {number: signal.signal(number, handler) for number, handler in passed.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
