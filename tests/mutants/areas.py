"""Which modules are changed, and which tests must notice it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.support.imports import is_within, module_name

__all__ = ["Module", "choose", "pytest_arguments"]

SOURCES = {
    "core": Path("tunnel/core"),
    "exchange": Path("tunnel/exchange"),
    "switch": Path("servlet/tunnel_servlet/switch"),
}
NOT_CHANGED = ("__init__", "invariants")
"""What nothing depends on: names that are exported, and checks that only tests call."""

# The tests that mirror a source. What draws many examples or counts steps is left out: what only those tests notice no
# test promises by its name, and every mutant would pay for them.
TESTS = {
    "core": ("tests/core", "tests/scripted/test_scripts.py"),
    "exchange": ("tests/exchange", "tests/servlet/switch"),
    "switch": ("tests/servlet/switch",),
}
LEFT_OUT = (
    "tests/core/test_hostile.py",
    "tests/core/test_idle.py",
    "tests/core/test_pair.py",
    "tests/core/test_windows.py",
    "tests/exchange/test_goals.py",
    "tests/exchange/test_properties.py",
    "tests/servlet/switch/test_hostile.py",
)


@dataclass(frozen=True, slots=True, order=True)
class Module:
    """One source file. `name` is short: core.send.rtt, exchange.lanes, switch.mailbox."""

    area: str
    inner: str
    """Its dotted name within the area: send.rtt."""

    @property
    def name(self) -> str:
        return f"{self.area}.{self.inner}"

    @property
    def path(self) -> Path:
        return SOURCES[self.area].joinpath(*self.inner.split(".")).with_suffix(".py")

    @property
    def dotted(self) -> str:
        return module_name(self.path)

    @property
    def own_tests(self) -> str:
        """What the files start with that mirror this module."""
        *folders, stem = self.inner.split(".")
        return "/".join((TESTS[self.area][0], *folders, f"test_{stem}"))


def every_module(root: Path) -> list[Module]:
    """All that can be chosen, in order."""
    return [
        Module(area, ".".join(path.relative_to(root / source).with_suffix("").parts))
        for area, source in SOURCES.items()
        for path in sorted((root / source).rglob("*.py"))
        if path.stem not in NOT_CHANGED
    ]


def choose(root: Path, words: Iterable[str]) -> list[Module]:
    """The modules that are meant by names of areas (core), folders (core.send) and modules (core.send.rtt). ValueError
    for an unknown name."""
    known = every_module(root)
    chosen: list[Module] = []
    for word in words:
        meant = [module for module in known if is_within(module.name, word) or is_within(module.dotted, word)]
        if not meant:
            raise ValueError(f"no module {word}; as in: core, core.send, exchange.lanes, switch.mailbox")
        chosen += [module for module in meant if module not in chosen]
    return chosen or known


def pytest_arguments(modules: Iterable[Module]) -> list[str]:
    """Arguments for pytest."""
    folders = {folder: None for module in modules for folder in TESTS[module.area]}
    return [*folders, *(f"--ignore={path}" for path in LEFT_OUT)]
