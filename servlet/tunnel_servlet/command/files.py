"""Reads and writes the relay's files: configuration and tokens."""

import argparse
import contextlib
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, TypeVar

import msgspec

from tunnel.system.private_files import is_open_to_others, require_trusted, write_private
from tunnel_servlet.access.grants import OPEN_USER
from tunnel_servlet.access.rules import Rule, parse_rule
from tunnel_servlet.access.tokens import Key, TokenTable
from tunnel_servlet.config import (
    ConfigError,
    RelayConfig,
    TokensFile,
    parse_config,
    parse_listen,
    parse_tokens,
    render_users,
    require_safe,
    require_users,
)
from tunnel_servlet.web.tokens.files import use_folder

__all__ = [
    "DEFAULT_FILE",
    "Overrides",
    "config_file",
    "load_config",
    "parse_allow",
    "read_tokens",
    "reload_config",
    "tokens_path",
    "watched_files",
    "write_users",
]

DEFAULT_FILE = "relay.toml"
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """Settings from the command line, which override or extend those of the file."""

    listen: tuple[str, ...] = ()
    allow: tuple[str, ...] = ()
    is_open: bool = False
    exit: Literal["inline", "none", ""] = ""
    admin: str = ""
    trace: str = ""


def config_file(arguments: argparse.Namespace) -> str:
    """Return the file that -c names, else relay.toml if it exists, else an empty string."""
    if arguments.config:
        return str(arguments.config)
    return DEFAULT_FILE if Path(DEFAULT_FILE).exists() else ""


def load_config(file: str, overrides: Overrides | None = None) -> RelayConfig:
    """Return the configuration from a file and the command line. Raise ConfigError if either is invalid.

    An empty `file` stands for the defaults. File names in the configuration are relative to its folder. An open relay
    without a file allows all services and, unless `--allow` lists targets, all targets that an open relay may allow.
    """
    overrides = overrides or Overrides()
    config = _load_file(file) if file else RelayConfig()
    rules = parse_allow(overrides.allow)
    is_open = overrides.is_open
    grants = config.grants.with_rules(
        rules, is_open=is_open, allows_services=is_open and not file, allows_all=is_open and not rules and not file
    )
    if is_open and not grants.allows_anything(OPEN_USER):
        raise ConfigError(
            f'--open: {file} allows the clients of an open relay nothing: add connect = ["HOST:PORT"] under '
            "[everyone], or name targets with --allow; without a file, --open allows everything"
        )
    return replace(
        config,
        listen=_parse(parse_listen, overrides.listen, "--listen") or config.listen,
        grants=grants,
        is_open=overrides.is_open,
        exit=overrides.exit or config.exit,
        admin=_parse(parse_listen, (overrides.admin,), "--admin")[0] if overrides.admin else config.admin,
        trace=overrides.trace or config.trace,
    )


def parse_allow(texts: Iterable[str]) -> tuple[Rule, ...]:
    """Return the rules that the option --allow gives. Raise ConfigError if a text is none."""
    return _parse(parse_rule, texts, "--allow")


def reload_config(file: str, overrides: Overrides | None = None) -> RelayConfig:
    """Return the configuration for a relay that is running. Raise ConfigError if it must go on with the present one.

    It must do so if the files are damaged, or if `serve` would not start with them. The only exception: without a
    token `serve` does not start, but a relay that is running goes on when all tokens are revoked.
    """
    config = load_config(file, overrides)
    require_users(config)
    require_safe(config, file, needs_tokens=False)
    return config


def _load_file(file: str) -> RelayConfig:
    path = Path(file)
    text = _read(path)
    config = parse_config(text, file)
    tokens = path.parent / config.tokens_file
    found = read_tokens(tokens)
    tls = config.tls
    if tls is not None:
        files = ("certificate", "key", "client_ca")
        names = {name: str(path.parent / getattr(tls, name)) for name in files if getattr(tls, name)}
        tls = msgspec.structs.replace(tls, **names)
    audit = config.audit
    if audit is not None:
        audit = msgspec.structs.replace(audit, file=str(path.parent / audit.file))
    return replace(
        config,
        audit=audit,
        tokens=TokenTable(found.users),
        admin_secret=found.admin_secret,
        tokens_file=str(tokens),
        token_use=str(use_folder(tokens)),
        tls=tls,
        trace=str(path.parent / config.trace) if config.trace else "",
    )


def tokens_path(file: str) -> Path:
    """Return the path of the tokens file that this configuration names."""
    path = Path(file)
    return path.parent / parse_config(_read(path), file).tokens_file


def read_tokens(path: Path) -> TokensFile:
    """Return the content of the tokens file; no users and no admin secret if the file does not exist.

    Raise ConfigError if it is invalid, or if other users can read the admin secret in it. Hashes may be readable.
    """
    with contextlib.suppress(PermissionError, NotADirectoryError):  # `_read` explains these
        if not path.exists():
            return TokensFile({})
    found = parse_tokens(_read(path), str(path))
    if found.admin_secret and is_open_to_others(path.stat()):
        raise ConfigError(
            f"{path} holds the admin secret and is open to other users: run `chmod 600 {shlex.quote(str(path))}`; if "
            "one may have seen the secret, remove its line: the next `tunnel-relay user add` or `rotate` writes another"
        )
    return found


def write_users(path: Path, users: Mapping[str, Iterable[Key]], admin_secret: str = "") -> None:
    """Replace the tokens file atomically; only its owner can read the new one.

    Raise ConfigError if that fails, for example because the disk is full. The old file is then unchanged.
    """
    try:
        write_private(path, render_users(users, admin_secret).encode())
    except OSError as error:
        text = f"{path} cannot be written: {error.strerror}: nothing was changed; check the disk and its permissions"
        raise ConfigError(text) from None


def watched_files(file: str, config: RelayConfig) -> list[Path]:
    """Return the files that a running relay reads again when they change."""
    return [Path(file), *map(Path, config.named_files)] if file else []


def _read(path: Path) -> str:
    try:
        require_trusted(path)
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file: run `tunnel-relay init {shlex.quote(str(path))}`, or name another with -c"
        ) from None
    except (OSError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or error
        text = f"{path} cannot be read ({reason}): check the path and its permissions, or name another file with -c"
        raise ConfigError(text) from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _parse(check: Callable[[str], _T], texts: Iterable[str], flag: str) -> tuple[_T, ...]:
    try:
        return tuple(check(text) for text in texts)
    except ValueError as error:
        raise ConfigError(f"{flag}: {error}") from None
