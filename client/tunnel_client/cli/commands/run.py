"""`tunnel run -- CMD`: run a command; the sockets of every Python process that it starts use one tunnel."""

import argparse
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tunnel.command_line import CommandAdder
from tunnel.exit_codes import USAGE
from tunnel_client.cli.bypasses import Bypasses, Noticing
from tunnel_client.cli.options import add_relay_options, relay_settings
from tunnel_client.errors import UsageError

__all__ = ["add"]

_SITE = Path(__file__).parents[2] / "borrowed" / "site"
_PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_NO_PYTHON = (
    "tunnel: {command} started no Python process that could use the tunnel, so its connections bypassed the tunnel "
    "({command} is not a Python program, or Python ran with -I, -E or -S): for such programs use `tunnel forward`, or "
    "`tunnel proxy 1080` and HTTPS_PROXY=http://127.0.0.1:1080"
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
        "command", nargs=argparse.REMAINDER, metavar="-- CMD ...", help="the command to run, with its arguments"
    )
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from tunnel_client.borrowed.hosts import Hosts
    from tunnel_client.sockets.lender import Lender
    from tunnel_client.sockets.runtime import Runtime

    command = arguments.command[1:] if arguments.command[:1] == ["--"] else arguments.command
    if not command:
        raise UsageError("no command is given: write tunnel run -- CMD ...")
    hosts = Hosts(arguments.hosts or ["*"])
    runtime = Runtime(relay_settings(arguments))
    with Lender(runtime, os.path.basename(command[0])) as lender:
        code, has_noticed = _wait_for(
            command, environment(lender.path, hosts.patterns), lambda pid: Bypasses(pid, lambda: lender.greeted, hosts)
        )
        if not lender.greeted and not has_noticed and code != USAGE:
            print(_NO_PYTHON.format(command=command[0]), file=sys.stderr)
    runtime.close()
    return code


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


def _wait_for(
    command: list[str], variables: dict[str, str], make_bypasses: Callable[[int], Bypasses]
) -> tuple[int, bool]:
    """Run the command to its end. Return its exit code, and whether a connection was seen to bypass the tunnel."""
    try:
        process = subprocess.Popen(command, env=variables)
    except OSError as error:
        print(f"tunnel: {command[0]}: {error.strerror}: check the command", file=sys.stderr)
        return USAGE, False
    with _signals_for(process), Noticing(make_bypasses(process.pid)) as noticing:
        code = process.wait()
    return 128 - code if code < 0 else code, noticing.has_noticed


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
