"""Calls a function with a module when the module is imported, or at once if it is imported already.

This file needs only the standard library and Python 3.8: programs that borrow a tunnel load it by its path.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
import threading
from contextlib import suppress
from typing import Any, Callable  # noqa: UP035 - Python 3.8

__all__ = ["Late"]


class Late(importlib.abc.MetaPathFinder):
    """Watches for the import of certain modules, from `watch` to `stop`."""

    def __init__(self) -> None:
        self._calls: dict[str, Callable[[Any], None]] = {}
        self._finding: set[tuple[int, str]] = set()  # threads, and the modules that other finders look for there

    def watch(self, name: str, call: Callable[[Any], None]) -> None:
        """Call `call` once with the module: now if it is imported, otherwise when it is.

        Wait for another thread that is importing the module. If this thread is importing it, the call never comes.
        """
        if _is_initialising(sys.modules.get(name)):
            with suppress(Exception):  # a failure occurs in the other thread, too, where the program learns of it
                importlib.import_module(name)  # waits until the other thread has imported it
        module = sys.modules.get(name)
        if module is not None and not _is_initialising(module):
            call(module)
            return
        if not self._calls:
            sys.meta_path.insert(0, self)
        self._calls[name] = call

    def stop(self) -> None:
        """Stop watching: modules that are imported from now on are not passed on."""
        self._calls.clear()
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> Any:
        """Find the module as the other finders do, and arrange the call for the time after its execution.

        A program may look for a module without importing it.
        """
        here = (threading.get_ident(), fullname)
        if fullname not in self._calls or here in self._finding:
            return None
        self._finding.add(here)
        try:
            spec = importlib.util.find_spec(fullname)
        finally:
            self._finding.discard(here)
        if spec is not None and spec.loader is not None:
            spec.loader = _Executing(spec.loader, lambda module: self._pass_on(fullname, module))
        return spec

    def _pass_on(self, name: str, module: Any) -> None:
        call = self._calls.pop(name, None)
        if not self._calls and self in sys.meta_path:
            sys.meta_path.remove(self)
        if call is not None:
            call(module)


def _is_initialising(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "_initializing", False) is True


class _Executing(importlib.abc.Loader):
    """Wraps a loader, and makes the call once the module has been executed."""

    def __init__(self, loader: Any, call: Callable[[Any], None]) -> None:
        self._loader = loader
        self._call = call

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__spec__.loader = module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._call(module)
