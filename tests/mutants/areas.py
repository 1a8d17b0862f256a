"""Which modules are changed, and which tests must notice it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Module", "choose", "pytest_arguments"]

SWITCH = (
    "attachments budget context deadlines edge_ledger forwarding frames links mailbox openings policy presence registry"
    " route_queue routes services stats switch switch_config"
).split()
"""servlet/switch.py and what it consists of."""

# The tests that mirror a source. What draws many examples or counts steps is left out: what only those tests notice no
# test promises by its name, and every mutant would pay for them.
TESTS = {
    "core": ("tests/core", "tests/scripted/test_scripts.py"),
    "exchange": ("tests/exchange", "tests/servlet"),
    "switch": ("tests/servlet",),
}
LEFT_OUT = (
    "tests/core/test_hostile.py",
    "tests/core/test_idle.py",
    "tests/core/test_pair.py",
    "tests/core/test_windows.py",
    "tests/exchange/test_goals.py",
    "tests/exchange/test_properties.py",
    "tests/servlet/test_hostile.py",
    # These start processes or listen.
    "tests/servlet/test_app.py",
    "tests/servlet/test_cli.py",
    "tests/servlet/test_exit.py",
    "tests/servlet/test_host.py",
    "tests/servlet/test_link.py",
    "tests/servlet/test_running.py",
    "tests/servlet/test_server.py",
    "tests/servlet/test_store.py",
)


@dataclass(frozen=True, slots=True, order=True)
class Module:
    """One source file; `name` is short: core.rtt, exchange.lanes, switch.mailbox."""

    area: str
    stem: str

    @property
    def name(self) -> str:
        return f"{self.area}.{self.stem}"

    @property
    def dotted(self) -> str:
        return f"servlet.{self.stem}" if self.area == "switch" else f"tunnel.{self.area}.{self.stem}"

    @property
    def path(self) -> Path:
        return Path(*self.dotted.split(".")).with_suffix(".py")

    @property
    def own_tests(self) -> str:
        """What the files start with that mirror this module."""
        folder = "servlet" if self.area == "switch" else self.area
        return f"tests/{folder}/test_{self.stem}"


def every_module(root: Path) -> list[Module]:
    """All that can be chosen, in order."""
    found = []
    for area in ("core", "exchange"):
        for path in sorted((root / "tunnel" / area).glob("*.py")):
            if path.stem != "__init__":
                found.append(Module(area, path.stem))
    return found + [Module("switch", stem) for stem in SWITCH]


def choose(root: Path, words: Iterable[str]) -> list[Module]:
    """The modules that are meant by names of areas (core) and of modules (core.rtt); ValueError for an unknown one."""
    known = every_module(root)
    chosen: list[Module] = []
    for word in words:
        meant = [module for module in known if word in (module.area, module.name, module.dotted)]
        if not meant:
            raise ValueError(f"no module {word}; as in: core, exchange.lanes, switch.mailbox")
        chosen += [module for module in meant if module not in chosen]
    return chosen or known


def pytest_arguments(modules: Iterable[Module]) -> list[str]:
    """Arguments for pytest."""
    folders = {folder: None for module in modules for folder in TESTS[module.area]}
    return [*folders, *(f"--ignore={path}" for path in LEFT_OUT)]
