"""The rules of imports between modules, as data, and a check of one source file against them.

The check reads the syntax tree; nothing is imported.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["FOLDERS", "import_violations", "imported_names", "is_sans_io", "is_within", "module_name", "project_files"]

# The folders whose modules keep these rules. The folders of the relay and of the client hold one package each:
# names of their modules begin with the package.
FOLDERS = ("client", "loadtests", "servlet", "tests", "tunnel")
PACKAGE_OF = {"client": "tunnel_client", "servlet": "tunnel_servlet"}
TOP_LEVEL = ("loadtests", "tests", "tunnel", "tunnel_client", "tunnel_servlet")

# Packages of tunnel, and one module, that are not part of its public interface.
INSIDE = ("analysis", "carriers", "core", "driver", "exchange", "traces", "wire")

_SANS_IO_RELAY = ("tunnel.wire", "tunnel.exchange", "tunnel.traces.record", "tunnel.ground")

# From each area to those that its modules may import, besides the area itself. An area is a dotted prefix; a module
# belongs to the longest one that fits. "face" is the public interface: tunnel itself, and what is not INSIDE it. After
# "!", only the modules at the root of a package may be imported, without its folders.
ALLOWED: dict[str, tuple[str, ...]] = {
    "tunnel": ("face", *(f"tunnel.{name}" for name in INSIDE if name != "analysis")),
    "tunnel.ground": (),
    "tunnel.system": (),
    "tunnel.wire": (),
    "tunnel.core": ("tunnel.wire", "tunnel.traces.record"),
    "tunnel.exchange": ("tunnel.wire", "tunnel.ground"),
    "tunnel.turns.shares": (),
    "tunnel.carriers": ("tunnel.wire", "tunnel.exchange", "tunnel.ground", "tunnel.system"),
    "tunnel.driver": (
        *("tunnel.wire", "tunnel.core", "tunnel.exchange", "tunnel.carriers", "tunnel.traces"),
        "tunnel.system",
    ),
    "tunnel.traces": ("tunnel.traces.record", "tunnel.system"),
    "tunnel.traces.record": (),
    "tunnel.messages": ("face",),
    "tunnel.analysis": ("tunnel.wire", "tunnel.traces", "tunnel.ground", "tunnel.system", "tunnel.process"),
    "tunnel_servlet.switch": _SANS_IO_RELAY,
    "tunnel_servlet.access": ("tunnel_servlet.switch.decisions", *_SANS_IO_RELAY),
    "tunnel_servlet.settings": (),
    "tunnel_servlet.config": (
        *(f"tunnel_servlet.{name}" for name in ("access", "settings", "switch")),
        *_SANS_IO_RELAY,
    ),
    "tunnel_servlet.audit": ("tunnel_servlet.access", "tunnel_servlet.settings", "face"),
    "tunnel_servlet.exit": ("tunnel_servlet.access", "face"),
    "tunnel_servlet.web": (
        *(f"tunnel_servlet.{name}" for name in ("access", "audit", "config", "exit", "switch")),
        *("face", "tunnel.wire", "tunnel.exchange", "tunnel.traces"),
        "tunnel.carriers.halves",
    ),
    "tunnel_servlet": ("tunnel_servlet", "face"),
    "tunnel_servlet.command": ("tunnel_servlet", "face", "tunnel.wire"),
    "tunnel_client": ("tunnel_client", "face"),
    "tunnel_client.borrowed": (),
    "tunnel_client.sockets": ("tunnel_client.borrowed", "!tunnel_client", "face"),
    "tunnel_client.messages": ("tunnel_client.sockets", "!tunnel_client", "face"),
    "tunnel_client.forward": ("!tunnel_client", "face"),
    "tunnel_client.proxy": ("tunnel_client.forward", "!tunnel_client", "face"),
    "tunnel_client.doctor": ("!tunnel_client", "face", "tunnel.carriers"),
    "tunnel_client.cli": ("tunnel_client", "face"),
    "loadtests": TOP_LEVEL,
    "tests": TOP_LEVEL,
}

# Its tests run the servers of the tests of single clients, which are fixtures there.
BORROWS_FIXTURES = ("tests.real.test_clients_recipes",)

# Libraries that only these areas may use; loadtests and tests may use any library.
RESTRICTED: dict[str, tuple[str, ...]] = {
    "aiohttp": ("tunnel.carriers", "tunnel_servlet.web"),
    "duckdb": ("tunnel.analysis",),
    "pyspark": ("tunnel.analysis",),
    "locust": (),
    "nats": (),
}

# All libraries outside the standard library that a sans-I/O part may use.
SANS_IO_LIBRARIES = frozenset({"crc32c", "msgspec", "xxhash"})
SANS_IO_AREAS = (
    *("tunnel.ground", "tunnel.wire", "tunnel.core", "tunnel.exchange", "tunnel.traces.record", "tunnel.turns.shares"),
    *(f"tunnel_servlet.{name}" for name in ("switch", "access", "config", "settings")),
)


def project_files(root: Path) -> Iterator[Path]:
    """Yield every Python file of the project below `root`, in a fixed order, relative to it."""
    for top in FOLDERS:
        for path in sorted((root / top).rglob("*.py")):
            yield path.relative_to(root)


def module_name(path: Path) -> str:
    """Return the dotted name of a file given relative to the root of the project."""
    parts = path.with_suffix("").parts
    if parts[1:2] == (PACKAGE_OF.get(parts[0]),):
        parts = parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(module: str, prefix: str) -> bool:
    """Return whether the dotted name is the prefix, or lies below it."""
    return module == prefix or module.startswith(f"{prefix}.")


def is_sans_io(module: str) -> bool:
    """Return whether this module must do without clock, I/O and randomness of its own."""
    return any(is_within(module, area) for area in SANS_IO_AREAS)


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield each import as (line, module, name that it imports from the module or "")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name


def import_violations(tree: ast.AST, module: str, is_module: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """Yield the forbidden imports of `module`. `is_module` says whether a dotted name is a module of the project."""
    for line, source, name in imported_names(tree):
        # `from tunnel import wire` imports tunnel.wire, but `from tunnel import attach` the public interface.
        target = f"{source}.{name}" if name and is_module(f"{source}.{name}") else source
        top = target.split(".")[0]
        if target.startswith("."):
            yield line, "relative import: absolute ones say where a name lives"
        elif top in PACKAGE_OF:
            yield line, f"{target}: the package is {PACKAGE_OF[top]}; its folder would import it a second time"
        elif top == "tests" and target.rpartition(".")[2].startswith("test_") and module not in BORROWS_FIXTURES:
            yield line, f"{target} contains tests: what several of them need stays in a rig.py"
        elif top in TOP_LEVEL:
            if not may_import(module, target):
                yield line, f"{module} must not import {target}"
        else:
            yield from library_violations(line, module, top)


def library_violations(line: int, module: str, library: str) -> Iterator[tuple[int, str]]:
    homes = RESTRICTED.get(library)
    if homes is not None and not any(is_within(module, home) for home in (*homes, "loadtests", "tests")):
        yield line, f"{library} stays in {', '.join(homes) or 'loadtests'}"
    elif is_sans_io(module) and library not in sys.stdlib_module_names and library not in SANS_IO_LIBRARIES:
        yield line, f"{module} is sans-I/O and must not import {library}"


def may_import(module: str, target: str) -> bool:
    """Return whether a module of the project may import another one, or a name of it."""
    area = home(module)
    return home(target) == area or any(allows(allowed, target) for allowed in ALLOWED[area])


def allows(allowed: str, target: str) -> bool:
    """Return whether one entry of ALLOWED covers the target."""
    if allowed == "face":
        return is_face(target)
    if allowed.startswith("!"):  # the modules at the root of a package, without its folders
        return home(target) == allowed[1:]
    return is_within(target, allowed)


def home(module: str) -> str:
    """Return the area of a module: the longest prefix that fits."""
    return max((area for area in ALLOWED if is_within(module, area)), key=len)


def is_face(target: str) -> bool:
    top, *rest = target.split(".")
    return top == "tunnel" and not (rest and rest[0] in INSIDE)
