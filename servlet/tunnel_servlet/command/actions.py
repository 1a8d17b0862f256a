"""What `tunnel-relay serve`, `exit`, `check`, `rule` and `drain` do."""

import argparse
import asyncio
import contextlib
import http.client
import os
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tunnel import Attachment, TraceWriter, UnreachableError, attach
from tunnel.event_loops import new_event_loop
from tunnel.exit_codes import DENIED, LOST, OK
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.rules import UDP_RULE, UDP_TARGET, read_host
from tunnel_servlet.command.files import Overrides, load_config, watched_files
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, parse_address, require_safe
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.exit.resolver import resolve
from tunnel_servlet.switch.decisions import Deny
from tunnel_servlet.web.admin import ADMIN_HEADER
from tunnel_servlet.web.running import open_traces, serve
from tunnel_servlet.web.server import contexts

__all__ = ["DEFAULT_FILE", "check", "drain", "run_exit", "run_relay", "try_rule"]

DEFAULT_FILE = "relay.toml"
_LOOK_S = 1.0  # between looks whether the relay still wants this exit, or what is wrong
_log = structlog.get_logger("exit")
_STOP_S = 3.0  # for a relay to stop once it has drained
_ANSWER_S = 5.0  # of the admin listener


def run_relay(arguments: argparse.Namespace) -> int:
    """Serve until told to stop."""
    file = _config_file(arguments)
    load = partial(load_config, file, _overrides(arguments))
    config = load()
    _require_safe(config, file)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(serve(config, load, watched_files(file, config)))
    return OK


def check(arguments: argparse.Namespace) -> int:
    """Whether `serve` would start."""
    file = _config_file(arguments)
    config = load_config(file, _overrides(arguments))
    _require_safe(config, file)
    contexts(config)
    without = [str(address) for address in config.listen if not address.is_loopback and not (config.tls or address.tls)]
    if arguments.json:
        found = {"ok": True, "tokens": len(config.tokens), "users": config.grants.users, "without_tls": without}
        print(msgspec.json.encode(found).decode())
        return OK
    print(f"ok: {len(config.tokens)} token(s), rules for {len(config.grants.users)} user(s)")
    for address in without:
        print(f"note: no TLS on {address}: put a proxy that speaks TLS before it")
    return OK


def try_rule(arguments: argparse.Namespace) -> int:
    """Whether a user may reach a target; with --resolve, as this machine resolves it."""
    config = load_config(_config_file(arguments))
    host, colon, port = arguments.target.rpartition(":")
    is_udp = host.startswith(UDP_RULE)
    host = host.removeprefix(UDP_RULE).removeprefix("[").removesuffix("]")
    if not colon:
        target = Target(TargetKind.SERVICE, port)
    elif port.isascii() and port.isdigit() and host:
        target = Target(TargetKind.TCP, (UDP_TARGET if is_udp else "") + host, int(port))
    else:
        raise ConfigError(f"{arguments.target!r} is no target: write HOST:PORT, or the name of a service")
    decision = config.grants.authorise(arguments.name, target)
    allowed, text = (False, decision.text) if isinstance(decision, Deny) else (True, "allowed")
    rows = [(arguments.target, allowed, text)]
    if allowed and arguments.resolve and target.kind is TargetKind.TCP and isinstance(read_host(host), str):
        rules = config.grants.rules_of(arguments.name)
        rules = rules.datagrams if is_udp else rules
        try:
            addresses = asyncio.run(resolve(host, target.port))
        except OSError as error:
            raise UnreachableError(f"{host}: {error.strerror}") from None
        verdicts = [(str(address), rules.check_address(address, target.port, host)) for address in addresses]
        rows += [(address, verdict.allowed, verdict.text) for address, verdict in verdicts]
        allowed = any(verdict.allowed for _, verdict in verdicts)
    if arguments.json:
        found = [{"target": name, "allowed": good, "reason": why} for name, good, why in rows]
        print(msgspec.json.encode(found).decode())
    else:
        for name, good, why in rows:
            print(f"{'allowed' if good else 'denied'}\t{name}\t{why}")
    return OK if allowed else DENIED


def drain(arguments: argparse.Namespace) -> int:
    """Tell a running relay to drain, and wait until it has."""
    address = _admin_address(arguments)
    timeout = arguments.timeout
    _ask(address, "POST", f"/drain{f'?timeout={timeout}' if timeout is not None else ''}", 202)
    print(f"draining the relay whose admin listener is {address}", file=sys.stderr)
    return asyncio.run(_until_stopped(address, timeout))


async def _until_stopped(address: ListenAddress, seconds: int | None) -> int:
    """Its admin listener keeps a connection open for as long as it runs."""
    try:
        reader, writer = await asyncio.open_connection(address.host, address.port)
    except OSError:
        return OK
    try:
        async with asyncio.timeout(None if seconds is None else seconds + _STOP_S):
            while True:
                writer.write(b"GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
                if not await reader.read(4096):
                    return OK
                await asyncio.sleep(0.2)
    except TimeoutError:
        print("the relay still runs", file=sys.stderr)
        return LOST
    except ConnectionError:
        return OK
    finally:
        writer.close()


def _ask(address: ListenAddress, method: str, path: str, expected: int) -> None:
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, headers={ADMIN_HEADER: "1"})
        answer = connection.getresponse()
        text = answer.read(1000).decode(errors="replace").strip()
    except (OSError, http.client.HTTPException) as error:
        text = f"no relay answers at {address}: {error}: is it running, and is this its admin listener?"
        raise UnreachableError(text) from None
    finally:
        connection.close()
    if answer.status != expected:
        raise ConfigError(f"{address} answered {answer.status}: {text}")


def _admin_address(arguments: argparse.Namespace) -> ListenAddress:
    if arguments.admin:
        try:
            return parse_address(arguments.admin)
        except ValueError as error:
            raise ConfigError(f"--admin: {error}") from None
    file = _config_file(arguments)
    address = load_config(file).admin
    if address is None:
        raise ConfigError(
            f"{file or DEFAULT_FILE}: no admin listener: set admin, name it with --admin, or send SIGTERM"
        )
    return address


# --- tunnel-relay exit


def run_exit(arguments: argparse.Namespace) -> int:
    """Dial targets for a relay elsewhere, by the rules of this machine's file."""
    config = load_config(_config_file(arguments), Overrides(allow=tuple(arguments.allow)))
    if config.grants.is_empty:
        raise ConfigError("an exit without rules would dial nothing: name a file with -c, or targets with --allow")
    token = _token(arguments)
    with (
        open_traces(arguments.trace or config.trace, "exit") as trace,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        runner.run(_exit(arguments, config, token, trace))
    return OK


async def _exit(
    arguments: argparse.Namespace, config: RelayConfig, token: str, trace: TraceWriter | None = None
) -> None:
    limits = config.limits
    dialer = Dialer(
        config.grants.rules_of, dial_seconds=limits.dial_seconds, connections_max=limits.exit_connections_max
    )
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    attachment = attach(
        arguments.relay,
        token=token,
        proxy=arguments.proxy,
        ca=arguments.ca,
        cert=arguments.cert,
        name=arguments.name,
        exit_handler=dialer,
        attach_timeout=None,
        trace=trace,
    )
    waiting = loop.create_task(stopped.wait())
    starting = loop.create_task(attachment.start())
    try:
        trouble = ""
        while not (await asyncio.wait([waiting, starting], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED))[0]:
            last, trouble = trouble, attachment.stats().trouble
            if trouble and trouble != last:
                _log.warning("not_attached", relay=arguments.relay, text=trouble)
        if starting.done():
            await starting
            print(f"attached to {arguments.relay} as {arguments.name or 'an exit'}", file=sys.stderr, flush=True)
            await _stopped_or_refused(stopped, attachment)
    finally:
        starting.cancel()
        waiting.cancel()
        await asyncio.gather(starting, waiting, return_exceptions=True)
        dialer.abort()
        await attachment.close()


async def _stopped_or_refused(stopped: asyncio.Event, attachment: Attachment) -> None:
    """Raises what the relay said when it wants no more of us, as when the token was revoked."""
    while attachment.refusal is None and not stopped.is_set():
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LOOK_S):
                await stopped.wait()
    if attachment.refusal is not None:
        raise attachment.refusal


def _token(arguments: argparse.Namespace) -> str:
    """From a file or the environment: the command line is seen by everybody on the machine."""
    if not arguments.token_file:
        token = os.environ.get("TUNNEL_TOKEN", "")
        if not token:
            raise ConfigError("no token: set TUNNEL_TOKEN, or name a file that holds it with --token-file")
        return token
    try:
        return Path(arguments.token_file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"--token-file {arguments.token_file}: {error}") from None


# --- inside


def _require_safe(config: RelayConfig, file: str) -> None:
    if not file and not config.is_open:
        raise ConfigError(
            f"there is no {DEFAULT_FILE} here: make one with `tunnel-relay init {DEFAULT_FILE}`, name one with -c, "
            "or try things out on loopback with --open"
        )
    require_safe(config, file)


def _config_file(arguments: argparse.Namespace) -> str:
    """The file that was named; else relay.toml, if it is there."""
    if arguments.config:
        return str(arguments.config)
    return DEFAULT_FILE if Path(DEFAULT_FILE).exists() else ""


def _overrides(arguments: argparse.Namespace) -> Overrides:
    return Overrides(
        listen=tuple(arguments.listen),
        allow=tuple(arguments.allow),
        is_open=arguments.open,
        exit=arguments.exit,
        admin=arguments.admin,
        trace=arguments.trace,
    )
