"""Circular imports: modules that cannot be understood, or imported, one after the other.

Every import counts, also in functions and under TYPE_CHECKING. `LAZY` names the packages whose `__init__` imports
names on first use, and the modules that import the rest of `tunnel` only when an attachment needs it. Callers leave
these out: their imports under TYPE_CHECKING never run.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping

from tests.support.imports import imported_names

__all__ = ["LAZY", "circles", "imported_modules"]

LAZY = ("tunnel", "tunnel.attaching", "tunnel.attachment", "tunnel.messages", "tunnel_client")


def imported_modules(tree: ast.AST, modules: Iterable[str]) -> set[str]:
    """Return the project's modules that a source imports: those it names, and those from which it imports names."""
    known = set(modules)
    found = set()
    for _, source, name in imported_names(tree):
        inner = f"{source}.{name}"
        found.add(inner if name and inner in known else source)
    return found & known


def circles(imports: Mapping[str, Iterable[str]]) -> Iterator[list[str]]:
    """Yield each group of modules that import each other, directly or not (Tarjan's strongly connected components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    for start in imports:
        if start in order:
            continue
        work = [(start, iter(sorted(imports[start])))]
        order[start] = lowest[start] = len(order)
        stack.append(start)
        while work:
            module, rest = work[-1]
            following = next(rest, None)
            if following is None:
                work.pop()
                if work:
                    lowest[work[-1][0]] = min(lowest[work[-1][0]], lowest[module])
                if lowest[module] == order[module]:
                    group = stack[stack.index(module) :]
                    del stack[stack.index(module) :]
                    if len(group) > 1 or module in imports.get(module, ()):
                        yield sorted(group)
            elif following not in order:
                order[following] = lowest[following] = len(order)
                stack.append(following)
                work.append((following, iter(sorted(imports.get(following, ())))))
            elif following in stack:
                lowest[module] = min(lowest[module], order[following])
