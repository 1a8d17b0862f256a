"""The commands `tunnel-relay serve`, `check`, `rule`, `drain` and `state`."""

import argparse
import asyncio
import shlex
import time
from functools import partial

import msgspec
import structlog

from tunnel import UnreachableError
from tunnel.ground.exit_codes import DENIED, LOST, OK
from tunnel.ground.printable import counted, printable
from tunnel.ground.rates import show_rate
from tunnel.process.command_line import show, show_json, tell
from tunnel.process.event_loops import new_event_loop
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.grants import OPEN_USER, user_table
from tunnel_servlet.access.rules import UDP_RULE, UDP_TARGET, read_host
from tunnel_servlet.command.admin_listener import admin_of, ask, ask_and_wait, read_answer, show_answer
from tunnel_servlet.command.files import (
    DEFAULT_FILE,
    Overrides,
    config_file,
    load_config,
    reload_config,
    watched_files,
)
from tunnel_servlet.command.users import similar_name
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, require_safe
from tunnel_servlet.exit.resolver import resolve
from tunnel_servlet.switch.decisions import Deny
from tunnel_servlet.web.drain_outcome import DrainOutcome
from tunnel_servlet.web.http.tls import contexts, out_of_date
from tunnel_servlet.web.running import serve
from tunnel_servlet.web.tokens.provider import require_library

__all__ = ["check", "drain", "run_relay", "state", "try_rule"]

_log = structlog.get_logger("relay")
_STOP_S = 3.0  # time for a relay to stop after it has drained


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
    if config.sso is not None:
        require_library()
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
    now_s = time.time()
    old = "" if config.tls is None else out_of_date(config.tls)
    return (
        ([old] if old else [])
        + [
            f"{user} has no token that is valid now: run `tunnel-relay user rotate {user} -c {shlex.quote(file)}`, or "
            f"`tunnel-relay user expire {user} WHEN` to give the present ones more time"
            for user in known
            if not config.is_open and not config.tokens.has_user(user, now_s) and not grants.certificates.has_user(user)
        ]
        + [
            f"{user} has rules but no token: {similar_name(user, [name for name in known if name not in grants.users])}"
            f"run `tunnel-relay user add {user} -c {shlex.quote(file)}`, or remove {user_table(user)}"
            for user in grants.users
            if user not in known and not config.is_open and not config.grants.certificates.has_user(user)
        ]
    )


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
        rulings = [(address, rules.check_address(address, target.port, host)) for address in addresses]
        for address, ruling in rulings:
            missing = "" if ruling.allowed else rules.missing_address_rule(address, target.port, host)
            line = f"; {config.grants.line_for(arguments.name, 'connect', missing)}" if missing else ""
            line += "" if ruling.allowed else rules.resolving_clause(address, target.port, host)
            rows.append((str(address), ruling.allowed, ruling.text + line))
        allowed = any(ruling.allowed for _, ruling in rulings)
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
    """Tell a running relay to drain, wait until it has stopped, and say what became of its connections."""
    address, secret = admin_of(arguments)
    timeout = arguments.timeout
    body = ask_and_wait(
        address,
        secret,
        f"/drain?wait=1{f'&timeout={timeout}' if timeout is not None else ''}",
        None if timeout is None else timeout + _STOP_S,
        lambda: tell(f"draining the relay whose admin listener is {address}"),
    )
    outcome = read_answer(address, body, DrainOutcome) if body else None  # a relay of an older version does not say it
    code = asyncio.run(_until_stopped(address, timeout))
    if outcome is not None:
        counts = f"{counted(outcome.moved, 'connection')} moved to another relay, {outcome.ended} ended"
        tell(f"{counts}, {outcome.cut} {'was' if outcome.cut == 1 else 'were'} cut")
    if arguments.json:
        unknown = {"moved": None, "ended": None, "cut": None}
        show_json({"stopped": code == OK, **(unknown if outcome is None else msgspec.structs.asdict(outcome))})
    return code or (LOST if outcome is not None and outcome.cut else OK)


def state(arguments: argparse.Namespace) -> int:
    """Print the state of a running relay as JSON."""
    address, secret = admin_of(arguments)
    show_answer(address, ask(address, secret, "GET", "/state"))
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
        if address.is_unix:
            reader, writer = await asyncio.open_unix_connection(address.host)
        else:
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
