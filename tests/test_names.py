"""Names of methods say what they are, as CONTRIBUTING.md demands. A bare participle, such as `answered`, can be a
command, a predicate or a notification."""

import ast
import re
from collections import Counter
from pathlib import Path

from tests.support.imports import module_name, project_files

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("tunnel", "servlet", "client")
IRREGULAR = frozenset("begun chosen drawn found gone heard held kept left lost made met said sent spent".split())
NO_PARTICIPLE = frozenset({"embed", "exceed", "feed", "need", "proceed", "seed", "shed", "speed"})

# The number of methods with such a name, by package. A number may only fall; a new method gets a better name. What is
# left belongs to applications (`tunnel.status`, `Server`), and to a semaphore that has the names of asyncio.
CAPS = {
    "tunnel.logs": 3,
    "tunnel.messages": 1,
    "tunnel.status": 3,
    "tunnel.streams": 1,
    "tunnel_client.cli": 3,
    "tunnel_client.doctor": 1,
}


def is_bare_participle(name: str) -> bool:
    return name in IRREGULAR or (re.fullmatch(r"[a-z]+ed", name) is not None and name not in NO_PARTICIPLE)


def package_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def participles(source: str) -> list[str]:
    """Return `Class.method` for each method whose public name is a bare participle."""
    return [
        f"{node.name}.{method.name}"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.ClassDef)
        for method in node.body
        if isinstance(method, ast.FunctionDef | ast.AsyncFunctionDef) and is_bare_participle(method.name)
    ]


def found_in_product() -> dict[str, list[str]]:
    found = {
        module_name(path): participles((ROOT / path).read_text())
        for path in project_files(ROOT)
        if path.parts[0] in PRODUCT
    }
    return {module: names for module, names in found.items() if names}


def test_no_package_gets_more_bare_participles() -> None:
    by_package: dict[str, list[str]] = {}
    for module, names in found_in_product().items():
        by_package.setdefault(package_of(module), []).extend(f"{module}: {name}" for name in names)
    too_many = {package: names for package, names in by_package.items() if len(names) > CAPS.get(package, 0)}
    assert too_many == {}


def test_the_caps_are_not_above_what_is_there() -> None:
    """Lower a cap in the commit that lowers its number."""
    found = Counter(package_of(module) for module, names in found_in_product().items() for _ in names)
    assert {package: cap for package, cap in CAPS.items() if cap > found[package]} == {}


def test_bare_participles_are_found() -> None:
    source = "class A:\n    def {}(self): ..."
    for name in ("answered", "lost", "chosen", "attached"):
        assert participles(source.format(name)) == [f"A.{name}"]
    for name in ("answer", "is_attached", "handle_lost", "on_failed", "_lost", "connection_lost", "feed", "exceed"):
        assert participles(source.format(name)) == []
    assert participles("def answered(): ...") == []
