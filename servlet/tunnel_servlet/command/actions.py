"""The commands `tunnel-relay serve`, `check`, `rule`, `drain` and `state`."""

import argparse
import asyncio
import http.client
import shlex
from functools import partial

import msgspec
import structlog
from msgspec.structs import replace

from tunnel import UnreachableError
from tunnel.command_line import show, show_json, tell
from tunnel.event_loops import new_event_loop
from tunnel.exit_codes import DENIED, LOST, OK
from tunnel.printable import printable
from tunnel.rates import show_rate
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.grants import OPEN_USER, user_table
from tunnel_servlet.access.rules import UDP_RULE, UDP_TARGET, read_host
from tunnel_servlet.command.files import (
    DEFAULT_FILE,
    Overrides,
    config_file,
    load_config,
    reload_config,
    watched_files,
)
from tunnel_servlet.command.users import similar_name
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, parse_address, require_safe
from tunnel_servlet.exit.resolver import resolve
from tunnel_servlet.switch.decisions import Deny
from tunnel_servlet.web.admin import ADMIN_HEADER
from tunnel_servlet.web.running import serve
from tunnel_servlet.web.tls import contexts

__all__ = ["check", "drain", "run_relay", "state", "try_rule"]

_log = structlog.get_logger("relay")
_STOP_S = 3.0  # time for a relay to stop after it has drained
_ANSWER_S = 5.0  # time for the admin listener to answer
_ANSWER_BYTES_MAX = 1 << 24
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def run_relay(arguments: argparse.Namespace) -> int:
    """Run a relay until a signal or `tunnel-relay drain` stops it; return the exit code."""
    file = config_file(arguments)
    config = load_config(file, _overrides(arguments))
    _require_safe(config, file)
    for note in _notes(config, file):
        _log.warning("note", text=note)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        load = partial(reload_config, file, _overrides(arguments))
        return runner.run(serve(config, load, watched_files(file, config)))


def check(arguments: argparse.Namespace) -> int:
    """Check whether `serve` would start with these arguments; raise ConfigError if not."""
    file = config_file(arguments)
    config = load_config(file, _overrides(arguments))
    _require_safe(config, file)
    contexts(config)
    is_plain = {address: config.tls is None or address.tls is False for address in config.listen}
    without = [str(address) for address in config.listen if is_plain[address] and not address.is_loopback]
    for note in _notes(config, file):
        tell(f"note: {note}")
    if arguments.json:
        found = {"ok": True, "tokens": len(config.tokens), "users": config.grants.users, "without_tls": without}
        show_json(found)
        return OK
    show(f"ok: {len(config.tokens)} token(s), rules for {len(config.grants.users)} user(s)")
    for address in without:
        show(f"note: no TLS on {address}: put a TLS proxy in front of it, or configure [tls]")
    return OK


def _notes(config: RelayConfig, file: str) -> list[str]:
    """Return notes about settings that are valid, but that the operator probably did not intend."""
    grants = config.grants
    if config.is_open and grants.users:
        users = ", ".join(grants.users)
        return [f"with --open, the rules of {users} are not used: only [everyone] and --allow count for all clients"]
    known = config.tokens.users
    return [
        f"{user} has rules but no token: {similar_name(user, [name for name in known if name not in grants.users])}"
        f"run `tunnel-relay user add {user} -c {shlex.quote(file)}`, or remove {user_table(user)}"
        for user in grants.users
        if user not in known and not config.is_open
    ]


def try_rule(arguments: argparse.Namespace) -> int:
    """Print whether a user may reach a target; with --resolve, also check the addresses that the name has here.

    It decides as a relay with the same file, --allow and --open would.
    """
    if arguments.open and arguments.name != OPEN_USER:
        raise ConfigError(
            f"--open: every client of an open relay is the user {OPEN_USER}: "
            f"run `tunnel-relay rule check {OPEN_USER} {arguments.target} --open`"
        )
    file = config_file(arguments)
    config = load_config(file, Overrides(allow=tuple(arguments.allow), is_open=arguments.open))
    target = _read_target(arguments.target)
    users = dict.fromkeys([*config.tokens.users, *config.grants.users])
    if arguments.name not in users and arguments.name != OPEN_USER:
        if not file:
            raise ConfigError(
                f"no user {arguments.name} is known, because there is no {DEFAULT_FILE} here: name the relay's "
                "configuration with -c"
            )
        names = f"the users are {', '.join(users)}" if users else "there are no users yet"
        advice = f"{similar_name(arguments.name, users)}{names}"
        raise ConfigError(f"no user {arguments.name} has a token or rules in {file}: {advice}")
    is_udp = target.host.startswith(UDP_TARGET)
    host = target.host.removeprefix(UDP_TARGET)
    decision = config.grants.authorise(arguments.name, target)
    allowed, text = (
        (False, decision.text) if isinstance(decision, Deny) else (True, _allowed(config, arguments.name, target))
    )
    rows = [(arguments.target, allowed, text)]
    if allowed and arguments.resolve and target.kind is TargetKind.TCP and isinstance(read_host(host), str):
        rules = config.grants.rules_of(arguments.name)
        rules = rules.datagrams if is_udp else rules
        try:
            addresses = asyncio.run(resolve(host, target.port))
        except OSError as error:
            text = (
                f"{host} cannot be resolved on this machine ({error.strerror}): check the name, or leave out --resolve"
            )
            raise UnreachableError(text) from None
        verdicts = [(address, rules.check_address(address, target.port, host)) for address in addresses]
        for address, verdict in verdicts:
            missing = "" if verdict.allowed else rules.missing_address_rule(address, target.port, host)
            line = f"; {config.grants.line_for(arguments.name, 'connect', missing)}" if missing else ""
            line += "" if verdict.allowed else rules.resolving_clause(address, target.port, host)
            rows.append((str(address), verdict.allowed, verdict.text + line))
        allowed = any(verdict.allowed for _, verdict in verdicts)
    if arguments.json:
        found = [{"target": name, "allowed": good, "reason": why} for name, good, why in rows]
        show_json(found)
    else:
        for name, good, why in rows:
            show(f"{'allowed' if good else 'denied'}\t{printable(name)}\t{printable(why)}")
    return OK if allowed else DENIED


def _allowed(config: RelayConfig, user: str, target: Target) -> str:
    """Return the word for an allowed target, with the rates that limit its connections."""
    rates = config.grants.rates_of(user, target).items()
    limits = [f"{show_rate(rate)} {f'by the rate of {rule}' if rule else 'for the user'}" for rule, rate in rates]
    return f"allowed, in each direction {' and '.join(limits)} at most" if limits else "allowed"


def drain(arguments: argparse.Namespace) -> int:
    """Tell a running relay to drain, and wait until it has stopped."""
    address, secret = _admin(arguments)
    timeout = arguments.timeout
    _ask(address, secret, "POST", f"/drain{f'?timeout={timeout}' if timeout is not None else ''}", 202)
    tell(f"draining the relay whose admin listener is {address}")
    return asyncio.run(_until_stopped(address, timeout))


def state(arguments: argparse.Namespace) -> int:
    """Print the state of a running relay as JSON."""
    address, secret = _admin(arguments)
    body = _ask(address, secret, "GET", "/state", 200)
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        raise ConfigError(f"{address} answered something other than JSON: is this the admin listener?") from None
    show_json(found, is_indented=True)
    return OK


def _read_target(text: str) -> Target:
    """Parse a target as users write it. Raise ConfigError if the text is not one."""
    host, colon, port = text.rpartition(":")
    is_udp = host.startswith(UDP_RULE)
    host = host.removeprefix(UDP_RULE).removeprefix("[").removesuffix("]")
    try:
        if not colon:
            return Target(TargetKind.SERVICE, port)
        if port.isascii() and port.isdigit() and host:
            return Target(TargetKind.TCP, (UDP_TARGET if is_udp else "") + host, int(port))
    except ValueError as error:
        reason = "" if isinstance(error, UnicodeError) else f" ({error})"
    else:
        reason = ""
    raise ConfigError(f"{text!r} is not a target{reason}: write HOST:PORT, or the name of a service")


async def _until_stopped(address: ListenAddress, seconds: int | None) -> int:
    """Wait until the relay has stopped: its admin listener keeps this connection open for as long as it runs.

    Return LOST if that takes longer than `seconds` plus `_STOP_S`.
    """
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
        tell("the relay is still running although its time to drain is over")
        return LOST
    except ConnectionError:
        return OK
    finally:
        writer.close()


def _ask(address: ListenAddress, secret: str, method: str, path: str, expected: int) -> bytes:
    """Return the body of the answer. Raise an error with advice if its status is not the expected one."""
    connection = http.client.HTTPConnection(address.host, address.port, timeout=_ANSWER_S)
    try:
        connection.request(method, path, headers={"Host": "localhost", ADMIN_HEADER: secret})
        answer = connection.getresponse()
        body = answer.read(_ANSWER_BYTES_MAX)
    except (OSError, http.client.HTTPException) as error:
        text = f"no relay answers at {address}: {error}: is it running, and is this its admin listener?"
        raise UnreachableError(text) from None
    finally:
        connection.close()
    if answer.status != expected:
        raise ConfigError(f"{address} answered {answer.status}: {body[:1000].decode(errors='replace').strip()}")
    return body


def _admin(arguments: argparse.Namespace) -> tuple[ListenAddress, str]:
    """Return the address at which this machine reaches the admin listener, and the secret to show there."""
    file = config_file(arguments)
    config = load_config(file)
    address = config.admin
    if arguments.admin:
        try:
            address = parse_address(arguments.admin)
        except ValueError as error:
            raise ConfigError(f"--admin: {error}") from None
    if address is None:
        raise ConfigError(
            f"{file or f'there is no {DEFAULT_FILE} here'}: no admin listener is known: "
            "set admin in the configuration, name the listener with --admin, or send SIGTERM to the relay"
        )
    if address.host in _ANY:
        address = replace(address, host=_ANY[address.host])
    if not address.is_loopback:  # the secret would cross a network unencrypted, and the relay would not accept it
        raise ConfigError(
            f"{address} is not an address of loopback, and the admin secret is sent nowhere else: let admin listen on "
            "127.0.0.1 or 0.0.0.0, and run this command on the relay's machine; or send SIGTERM to the relay"
        )
    return address, config.admin_secret


# --- inside


def _require_safe(config: RelayConfig, file: str) -> None:
    if not file and not config.is_open:
        raise ConfigError(
            f"there is no {DEFAULT_FILE} here: create one with `tunnel-relay init {DEFAULT_FILE}`, name one with -c, "
            "or try the relay on loopback with --open"
        )
    require_safe(config, file)


def _overrides(arguments: argparse.Namespace) -> Overrides:
    return Overrides(
        listen=tuple(arguments.listen),
        allow=tuple(arguments.allow),
        is_open=arguments.open,
        exit=arguments.exit,
        admin=arguments.admin,
        trace=arguments.trace,
    )
