"""The command `tunnel-relay install-unit`: systemd units that keep a relay or an exit running."""

import argparse
import os
import pwd
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

from tunnel.process.unit_files import command_words, install, is_system
from tunnel.process.units import Unit
from tunnel_servlet.command.exit_rules import load_rules
from tunnel_servlet.command.files import DEFAULT_FILE, Overrides, load_config, tokens_path
from tunnel_servlet.config import ConfigError, RelayConfig, require_safe

__all__ = ["COMMANDS", "DEFAULT", "install_unit"]

COMMANDS = ("serve", "exit")
DEFAULT = f"serve -c {DEFAULT_FILE}"
_LOW_PORT_MAX = 1023
_REFUSED = (2, 4, 5)  # settings, tokens, rules; also an exit that another one of its name has replaced


def install_unit(arguments: argparse.Namespace, parse: Callable[[list[str]], argparse.Namespace]) -> int:
    """Write or print the unit that runs `serve` or `exit`. `parse` reads the words of a command."""
    words = command_words(arguments, ConfigError) or ["serve"]
    if words[0] not in COMMANDS:
        raise ConfigError(f"a unit cannot run {words[0]!r}: name {' or '.join(COMMANDS)}, with its options")
    command = parse(words)
    if not command.config and Path(DEFAULT_FILE).exists():
        words += ["-c", DEFAULT_FILE]
        command.config = DEFAULT_FILE
    unit = _relay(arguments, command) if words[0] == "serve" else _exit(command)
    return install(arguments, unit, words, ("tunnel-relay", "tunnel_servlet"), ConfigError)


def _relay(arguments: argparse.Namespace, command: argparse.Namespace) -> Unit:
    if not command.config:
        raise ConfigError(
            f"a unit runs a relay with a configuration: create one with `tunnel-relay init {DEFAULT_FILE}`, and name "
            f"it, as in `tunnel-relay install-unit {DEFAULT}`"
        )
    overrides = Overrides(listen=tuple(command.listen), admin=command.admin, exit=command.exit, trace=command.trace)
    config = load_config(command.config, overrides)
    require_safe(config, command.config)
    file = Path(command.config).absolute()
    user = _owner(arguments, file) if is_system(arguments) else arguments.run_as
    if is_system(arguments):
        _check_owner(tokens_path(command.config), user)
    return Unit(
        name="tunnel-relay",
        what="tunnel relay: carries connections over HTTP to their targets",
        user=user,
        writes=list(_written(config, file)),
        stop_s=config.limits.drain_seconds,
        reloads=True,
        has_low_ports=_has_low_ports(config),
    )


def _exit(command: argparse.Namespace) -> Unit:
    if not command.relay or not command.token_file:
        raise ConfigError(
            "a unit of an exit needs --relay URL and --token-file FILE: it has no TUNNEL_TOKEN, which other processes "
            "of its user could read"
        )
    config = load_rules(command.config or "", Overrides(allow=tuple(command.allow)))
    audit = config.audit
    return Unit(
        name="tunnel-exit",
        what="tunnel exit: connects to targets for a relay",
        writes=[] if audit is None or audit.to != "file" else [Path(audit.file).absolute().parent],
        final_codes=_REFUSED,
    )


def _owner(arguments: argparse.Namespace, file: Path) -> str:
    if arguments.run_as:
        return str(arguments.run_as)
    owner = file.stat().st_uid
    name = ""
    try:
        name = pwd.getpwuid(owner).pw_name
    except KeyError:
        name = str(owner)
    if owner == 0:
        folder = shlex.quote(str(file.parent))
        raise ConfigError(
            f"{file} belongs to root, and a relay needs no root: run `useradd --system --shell /usr/sbin/nologin "
            f"tunnel-relay` and `chown -R tunnel-relay: {folder}`, so that the relay can read its tokens and write its "
            "audit; or name another user with --run-as"
        )
    return name


def _check_owner(path: Path, user: str) -> None:
    """Raise ConfigError if the user of the relay cannot read the tokens file, as after `user add` by another user."""
    try:
        owner = pwd.getpwnam(user).pw_uid
        found = path.stat()
    except (KeyError, OSError):  # `install` tells of a user who does not exist
        return
    if found.st_uid != owner and owner != 0:
        raise ConfigError(
            f"{path} belongs to another user than {user}, who runs the relay: run `chown {shlex.quote(user)}: "
            f"{shlex.quote(str(path))}`"
        )


def _written(config: RelayConfig, file: Path) -> Iterator[Path]:
    yield from (file.parent, Path(os.path.abspath(config.tokens_file)).parent)
    audit = config.audit
    if audit is not None and audit.to == "file":
        yield Path(os.path.abspath(audit.file)).parent
    if config.trace:
        yield Path(config.trace).absolute()
    sockets = [*config.listen, *([config.admin] if config.admin else [])]
    yield from (Path(address.host).parent for address in sockets if address.is_unix)


def _has_low_ports(config: RelayConfig) -> bool:
    addresses = [*config.listen, *config.public_http, *([config.admin] if config.admin else [])]
    ports = {address.port for address in addresses if not address.is_unix}
    return any(0 < port <= _LOW_PORT_MAX for port in ports | config.grants.public_ports)
