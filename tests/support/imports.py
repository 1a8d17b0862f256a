"""Who may import whom: the borders of the house, as data, and a check of one source file against them.

The check reads the syntax tree; nothing is imported.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

__all__ = ["SERVLET_SHELL", "import_violations", "imported_names", "is_sans_io", "module_name", "project_files"]

TOP_LEVEL = ("client", "loadtests", "servlet", "tests", "tunnel")

# Files of servlet that may await, open and read the clock. Every other one is sans-I/O.
# pyproject.toml exempts the same files from ruff's banned-api rule.
SERVLET_SHELL = frozenset(
    f"servlet.{name}"
    for name in (
        "__main__ admin app cli commands datagrams exit host link relay running server store users_command"
    ).split()
)

# Packages of tunnel, and the one module, that are not part of its public face.
INSIDE = ("analysis", "carriers", "core", "driver", "exchange", "traces", "wire")

# An area is a dotted prefix; the longest one that fits a module decides. It may import itself and what lies within one
# of these; "face" stands for the public face: tunnel itself and what is not INSIDE it.
ALLOWED: dict[str, tuple[str, ...]] = {
    "tunnel": ("face", *(f"tunnel.{name}" for name in INSIDE if name != "analysis")),
    "tunnel.wire": (),
    "tunnel.core": ("tunnel.wire", "tunnel.traces.record"),
    "tunnel.exchange": ("tunnel.wire",),
    "tunnel.carriers": ("tunnel.wire", "tunnel.exchange"),
    "tunnel.driver": ("tunnel.wire", "tunnel.core", "tunnel.exchange", "tunnel.carriers", "tunnel.traces"),
    "tunnel.traces": ("tunnel.traces.record",),
    "tunnel.traces.record": (),
    "tunnel.messages": ("face",),
    "tunnel.analysis": ("tunnel.traces", "tunnel.shell"),
    "servlet": ("tunnel.wire", "tunnel.exchange", "tunnel.traces.record"),
    "servlet shell": ("face", "servlet", "tunnel.wire", "tunnel.exchange", "tunnel.traces"),
    "client": ("client", "face"),
    "client.doctor": ("client", "face", "tunnel.carriers"),
    "loadtests": TOP_LEVEL,
    "tests": TOP_LEVEL,
}

# Libraries that stay where they are; loadtests and tests may use anything.
RESTRICTED: dict[str, tuple[str, ...]] = {
    "aiohttp": ("tunnel.carriers", "servlet"),
    "pyspark": ("tunnel.analysis",),
    "locust": (),
}

# All that a sans-I/O part needs from outside the standard library.
SANS_IO_LIBRARIES = frozenset({"crc32c", "msgspec", "xxhash"})
SANS_IO_AREAS = ("tunnel.wire", "tunnel.core", "tunnel.exchange", "tunnel.traces.record", "servlet")


def project_files(root: Path) -> Iterator[Path]:
    """Every Python file of the project below `root`, in a fixed order, relative to it."""
    for top in TOP_LEVEL:
        for path in sorted((root / top).rglob("*.py")):
            yield path.relative_to(root)


def module_name(path: Path) -> str:
    """The dotted name of a file given relative to the root of the project."""
    parts = path.with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def is_within(module: str, prefix: str) -> bool:
    return module == prefix or module.startswith(f"{prefix}.")


def is_sans_io(module: str) -> bool:
    """Whether this module must do without clock, I/O and randomness of its own."""
    return module not in SERVLET_SHELL and any(is_within(module, area) for area in SANS_IO_AREAS)


def imported_names(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Each import as (line, module, name imported from it or "")."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.lineno, "." * node.level + (node.module or ""), alias.name


def import_violations(tree: ast.AST, module: str, is_module: Callable[[str], bool]) -> Iterator[tuple[int, str]]:
    """The imports that `module` must not have. `is_module` says whether a dotted name is a module of the project."""
    for line, source, name in imported_names(tree):
        # `from tunnel import wire` imports tunnel.wire, `from tunnel import attach` the public face.
        target = f"{source}.{name}" if name and is_module(f"{source}.{name}") else source
        if target.startswith("."):
            yield line, "relative import: absolute ones say where a name lives"
        elif target.split(".")[0] in TOP_LEVEL:
            if not may_import(module, target):
                yield line, f"{module} must not import {target}"
        else:
            yield from library_violations(line, module, target.split(".")[0])


def library_violations(line: int, module: str, library: str) -> Iterator[tuple[int, str]]:
    homes = RESTRICTED.get(library)
    if homes is not None and not any(is_within(module, home) for home in (*homes, "loadtests", "tests")):
        yield line, f"{library} stays in {', '.join(homes) or 'loadtests'}"
    elif is_sans_io(module) and library not in sys.stdlib_module_names and library not in SANS_IO_LIBRARIES:
        yield line, f"{module} is sans-I/O and must not import {library}"


def may_import(module: str, target: str) -> bool:
    """Whether a module of the project may import another one, or a name of it."""
    area = home(module)
    if home(target) == area:
        return True
    return any(is_face(target) if allowed == "face" else is_within(target, allowed) for allowed in ALLOWED[area])


def home(module: str) -> str:
    """The area of a module: the longest prefix that fits."""
    if module in SERVLET_SHELL:
        return "servlet shell"
    return max((area for area in ALLOWED if is_within(module, area)), key=len)


def is_face(target: str) -> bool:
    top, *rest = target.split(".")
    return top == "tunnel" and not (rest and rest[0] in INSIDE)
