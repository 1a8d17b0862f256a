"""Forbids code in sans-I/O parts that uses a clock, I/O, randomness of its own, or the values of hashes.

The check reads the syntax tree.
"""

import ast
from collections.abc import Iterator

from tests.support.imports import imported_names
from tests.support.set_order import set_order_violations

__all__ = ["BANNED_MODULES", "purity_violations"]

BANNED_MODULES = frozenset(
    "asyncio concurrent datetime http io logging multiprocessing os pathlib queue sched secrets select selectors "
    "shutil signal socket socketserver ssl subprocess sys tempfile threading time urllib uuid _thread".split()
)
BANNED_BUILTINS = frozenset({"__import__", "breakpoint", "eval", "exec", "hash", "id", "input", "open", "print"})

# Methods of Random that return floats or may differ between versions of Python; only getrandbits is allowed.
BANNED_DRAWS = frozenset(
    "betavariate choice choices expovariate gauss normalvariate randbytes randint random randrange sample seed shuffle "
    "triangular uniform".split()
)


def purity_violations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield every violation in a module of a sans-I/O part, as (line, what)."""
    for line, module, name in imported_names(tree):
        if module.split(".")[0] in BANNED_MODULES:
            yield line, f"{module} in a sans-I/O part"
        elif module == "random" and name not in ("", "Random"):
            yield line, f"random.{name} in a sans-I/O part: a Random is injected"
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from call_violations(node)
    yield from set_order_violations(tree)


def call_violations(call: ast.Call) -> Iterator[tuple[int, str]]:
    name = last_name(call.func)
    owner = last_name(call.func.value) if isinstance(call.func, ast.Attribute) else ""
    if isinstance(call.func, ast.Name) and name in BANNED_BUILTINS:
        yield call.lineno, f"{name}() in a sans-I/O part"
    elif name in ("Random", "SystemRandom"):
        yield call.lineno, f"{name}() in a sans-I/O part: a Random is injected"
    elif "random" in owner and name in BANNED_DRAWS:
        yield call.lineno, f"{owner}.{name}() in a sans-I/O part: of a Random, only getrandbits"


def last_name(node: ast.expr) -> str:
    """Return the last name of a dotted expression, "" if the expression does not end in a name."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
