"""The rules of an exit in a process of its own, which change with their file."""

import asyncio
import signal
from dataclasses import replace
from functools import partial
from pathlib import Path

import structlog

from tunnel_servlet.access.rules import Ruleset
from tunnel_servlet.command.files import Overrides, load_config
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.web.parts import Parts
from tunnel_servlet.web.reloading import Reloading

__all__ = ["ExitRules", "load_rules"]

_log = structlog.get_logger("exit")


_NO_GROUPS = (
    "an exit does not learn the groups of users, so rules under [groups] have no effect here: list under [everyone], "
    "or with --allow, what this exit may dial for users of an identity provider; the relay checks their groups itself"
)


def load_rules(file: str, overrides: Overrides) -> RelayConfig:
    """Return the configuration of an exit, without the rules of groups: the relay tells an exit the user alone.

    Raise ConfigError if it is invalid, or would let the exit dial nothing. The file may be the relay's own, so groups
    in it are no error as long as there are other rules.
    """
    config = load_config(file, overrides)
    groups = sorted(config.grants.groups)
    grants = config.grants.without_groups()
    if grants.is_empty:
        own = "an exit without rules would dial nothing: name a file with -c, or targets with --allow"
        raise ConfigError(_NO_GROUPS if groups else own)
    if groups:
        _log.warning("groups_without_effect", groups=groups, text=_NO_GROUPS)
    return replace(config, grants=grants)


class ExitRules:
    """The present rules of an exit. Between `watch` and `stop`, changes of the file hold for open connections, too."""

    def __init__(self, config: RelayConfig, file: str, overrides: Overrides) -> None:
        self._grants = config.grants
        self._dialer: Dialer | None = None
        self._parts = Parts()
        load = partial(load_rules, file, overrides)
        self._reloading = Reloading(load if file else None, self._apply, [Path(file)] if file else [])

    def rules_of(self, user: str) -> Ruleset:
        """Return the rules for the targets of a user."""
        return self._grants.rules_of(user)

    def watch(self, dialer: Dialer) -> None:
        """Read the file again when it has changed, and on SIGHUP, and end connections that are no longer allowed."""
        self._dialer = dialer
        self._reloading.watch.start()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self._reloading.reload)

    def stop(self) -> None:
        """Stop watching."""
        self._reloading.watch.stop()
        asyncio.get_running_loop().remove_signal_handler(signal.SIGHUP)

    def _apply(self, config: RelayConfig) -> None:
        self._grants = config.grants
        if self._dialer is not None:
            self._parts.start(self._dialer.recheck())
        _log.info("reloaded", users=len(self._grants.users))
