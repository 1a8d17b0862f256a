"""A warning about objects that were made but never used: such a mistake would otherwise stay silent."""

import warnings
from collections.abc import Callable

__all__ = ["WarnsIfUnused", "let_go"]


class WarnsIfUnused:
    """A base class of objects that do nothing until they are entered or started.

    One that is dropped before that warns, as a coroutine does that was never awaited. `__init__` ends with
    `_expect_use`, so that an object whose `__init__` raised does not warn; entering or starting calls `_mark_used`.
    """

    _advice = ""  # set by the class: what was not done, and how to use the object
    _is_unused = False

    def _expect_use(self) -> None:
        self._is_unused = True

    def _mark_used(self) -> None:
        self._is_unused = False

    def __del__(self, warn: Callable[..., None] = warnings.warn) -> None:  # at exit, modules may be gone
        if self._is_unused:
            warn(f"{type(self).__name__} was dropped before it was used: {self._advice}", RuntimeWarning, stacklevel=2)


def let_go(thing: WarnsIfUnused) -> None:
    """Let `thing` be dropped unused, without a warning: it was made to see whether it can be made."""
    vars(thing)["_is_unused"] = False
