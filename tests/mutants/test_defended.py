"""The lines of defended.txt still fit the source."""

import ast
from collections.abc import Iterator

from tests.mutants.__main__ import DEFENDED, ROOT
from tests.mutants.areas import Module, every_module
from tests.mutants.verdicts import read_defended, tokens_of


def test_the_tokens_of_each_defence_are_in_its_function_so_that_moved_code_takes_its_defences_along() -> None:
    modules = {module.name: module for module in every_module(ROOT)}
    known: dict[str, dict[str, list[str]]] = {}
    stale = []
    for line in read_defended(DEFENDED.read_text()):
        where, _, change = line.partition(": ")
        name, _, function = where.partition(" ")
        if name in modules and name not in known:
            known[name] = dict(_functions(modules[name]))
        words = known.get(name, {}).get(function, [])
        old, number = f"{change.partition(' => ')[0]} ", int(change.rpartition("#")[2])
        if sum(" ".join([*words[at:], ""]).startswith(old) for at in range(len(words))) < number:
            stale.append(line)
    assert not stale


def _functions(module: Module) -> Iterator[tuple[str, list[str]]]:
    """The tokens of each function, by its name or Class.method."""
    text = (ROOT / module.path).read_text()
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        for inner in node.body if isinstance(node, ast.ClassDef) else [node]:
            if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                name = f"{node.name}.{inner.name}" if isinstance(node, ast.ClassDef) else inner.name
                yield name, tokens_of("".join(lines[inner.lineno - 1 : inner.end_lineno]))
