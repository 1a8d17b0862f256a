"""Reads a configuration again while a process uses it, and keeps the old one while the files cannot be used."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import structlog

from tunnel.system.file_watch import FileWatch
from tunnel_servlet.config import ConfigError, RelayConfig

__all__ = ["Reloading", "Reloads"]

_log = structlog.get_logger("reload")


class Reloads(msgspec.Struct):
    """Counts how often the files were read again, and holds the present error."""

    applied: int = 0
    failed: int = 0  # the files could not be used, and what was read before stayed in force
    error: str = ""  # why the files, as they are now, cannot be used


class Reloading:
    """Watches the files of a configuration. `load` reads them, or raises ConfigError, and `apply` gets the result.

    `config` is the present configuration. If a new one names other files for tokens or TLS than it, those are watched
    instead.
    """

    def __init__(
        self,
        load: Callable[[], RelayConfig] | None,
        apply: Callable[[RelayConfig], None],
        files: list[Path],
        config: RelayConfig | None = None,
        state: Reloads | None = None,
    ) -> None:
        self.state = state or Reloads()
        self.watch = FileWatch(files, self.reload, partial(self.reload, is_repeat=True))
        self._load = load
        self._apply = apply
        self._files = files
        self._named = [] if config is None else config.named_files

    def reload(self, *, is_repeat: bool = False) -> bool:
        """Read the files again and apply them. Return False if they cannot be used.

        The error is then logged and counted; the error of a repeated attempt only if it is a new one.
        """
        if self._load is None:
            return True
        state = self.state
        try:
            config = self._load()
            self._apply(config)
        except Exception as error:  # whatever it is, the process goes on, and so does the watch
            is_known = isinstance(error, ConfigError)
            text = str(error) if is_known else f"{type(error).__name__}: {error}"
            if not is_repeat or text != state.error:
                state.failed += 1
                state.error = text
                effect = "what was read before stays in force until the files are right"
                _log.error("not_reloaded", text=text, effect=effect, exc_info=not is_known)
            return False
        state.applied += 1
        state.error = ""
        if self._named and config.named_files != self._named:
            kept = [path for path in self._files if str(path) not in self._named]
            self._named = config.named_files
            self._files = [*kept, *map(Path, self._named)]
            self.watch.follow(self._files)
        return True
