"""Rules that mypyc, the compiler, imposes on the sources; each rule is shown to catch its violations.

The compiler drops the options of a class, which are keywords and decorators. It checks casts at run time. It makes new
tuples and numbers wherever they pass to code that is not compiled, so that `is` cannot compare them.
"""

import ast
import enum
import importlib
import inspect
import re
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.rig import FILES, ROOT
from tests.support.imports import module_name, project_files

CHECKED_CASTS = frozenset("bool bytearray bytes dict float frozenset int list memoryview set str tuple".split())


def objections(source: str) -> Iterator[str]:
    tree = ast.parse(source)
    tuples = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(node.value, ast.Tuple)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and (node.keywords or node.decorator_list):
            yield f"{node.lineno}: {node.name} has options"
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "cast":
            wanted = ast.unparse(node.args[0]).strip("'\"").partition("[")[0]
            if wanted in CHECKED_CASTS:
                yield f"{node.lineno}: a cast to {wanted}, which is checked at run time"
        elif isinstance(node, ast.Compare) and any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops):
            sides = (node.left, *node.comparators)
            for side in sides:
                if isinstance(side, ast.Name) and side.id in tuples and not _names_a_constant(sides):
                    yield f"{node.lineno}: identity of {side.id}, which is a value"


def _names_a_constant(sides: Iterable[ast.expr]) -> bool:
    """Return whether this is a comparison such as `x is None`, which asks only whether there is a value."""
    return any(isinstance(side, ast.Constant) for side in sides)


def test_modules_that_move_bytes_are_compiled() -> None:
    names = {str(path) for path in FILES}
    assert {
        "tunnel/core/connection/connection.py",
        "tunnel/wire/batch.py",
        "tunnel/exchange/lanes/lanes.py",
        "servlet/tunnel_servlet/switch/switch.py",
        "tunnel/driver.py",
        "tunnel/carriers/halves/link_protocol.py",
    } <= names
    assert not names & {
        "tunnel/core/events.py",
        "tunnel/wire/packet.py",
        "tunnel/streams/streams.py",
        "servlet/tunnel_servlet/web/application.py",
    }


def test_subclasses_of_a_compiled_carrier_are_compiled() -> None:
    """A class of plain Python cannot inherit from a compiled one."""
    names = {str(path) for path in FILES}
    heirs = [str(path) for path in project_files(ROOT) if "(ExchangingCarrier)" in (ROOT / path).read_text()]
    assert len(heirs) >= 3
    assert set(heirs) - {"tests/test_compiled.py"} <= names


def origins_in(tree: ast.AST) -> dict[str, tuple[str, str]]:
    """Return the module and the name of what a test file imports from the product, by the name that it uses."""
    return {
        alias.asname or alias.name: (node.module, alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module and node.module.partition(".")[0].startswith("tunnel")
        for alias in node.names
    }


def heirs_of_compiled_classes(source: str) -> Iterator[str]:
    """Yield the classes in a test file that inherit from a compiled class, which plain Python cannot do."""
    tree = ast.parse(source)
    origins = origins_in(tree)
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and base.id in origins and _is_compiled(*origins[base.id]):
                    yield f"{node.name}({base.id})"


def _named(module: str, name: str) -> object:
    found = importlib.import_module(module)
    return getattr(found, name) if hasattr(found, name) else importlib.import_module(f"{module}.{name}")


def _is_compiled(module: str, name: str) -> bool:
    found: Any = _named(module, name)
    if issubclass(found, BaseException) or getattr(found, "_is_protocol", False):
        return False
    return Path(inspect.getsourcefile(found) or "").relative_to(ROOT) in FILES


def compiled_run() -> list[Path]:
    """Return the test files that `make test-compiled` runs."""
    recipe = (ROOT / "Makefile").read_text().partition("\ntest-compiled:")[2].partition("\n\n")[0]
    patterns = [name for name in re.split(r"[\s()]+", recipe) if name.startswith("tests/")]
    assert len(patterns) > 10
    return [
        path
        for path in project_files(ROOT)
        if any(str(path).startswith(f"{pattern}/") or fnmatch(str(path), pattern) for pattern in patterns)
    ]


def test_files_whose_tests_inherit_from_compiled_classes_have_a_mark() -> None:
    """Such tests fail on the compiled build."""
    heirs = {str(path): [*heirs_of_compiled_classes((ROOT / path).read_text())] for path in compiled_run()}
    marked = {path for path in heirs if "pytest.mark.interpreted" in (ROOT / path).read_text()}
    assert {path: found for path, found in heirs.items() if found and path not in marked} == {}
    assert heirs["tests/carriers/halves/test_link_protocol.py"] == ["Half(LinkProtocol)"]


def methods_in(paths: Iterable[Path]) -> set[str]:
    trees = (ast.parse((ROOT / path).read_text()) for path in paths)
    classes = (node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    return {
        part.name for each in classes for part in each.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)
    }


def unmarked_replacements(source: str, methods: set[str]) -> Iterator[str]:
    """Yield the unmarked tests that replace a compiled method, themselves or in a function that they name."""
    tree = ast.parse(source)
    functions = {part.name: part for part in tree.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
    origins, lines = origins_in(tree), source.splitlines()
    replaced = {name: [*_replaced_methods(part, lines, origins, methods)] for name, part in functions.items()}
    for test in functions.values():
        marks = {ast.unparse(one) for one in test.decorator_list}
        if test.name.startswith("test_") and "pytest.mark.interpreted" not in marks:
            names = {node.id for node in ast.walk(test) if isinstance(node, ast.Name)} | {test.name}
            yield from (f"{test.name}: {one}" for name in sorted(names & replaced.keys()) for one in replaced[name])


def _replaced_methods(
    function: ast.AST, lines: list[str], origins: dict[str, tuple[str, str]], methods: set[str]
) -> Iterator[str]:
    for node in ast.walk(function):
        match node:
            case ast.Assign(targets=[target]):
                if any("# type: ignore[method-assign" in line for line in lines[node.lineno - 1 : node.end_lineno]):
                    parts = target.elts if isinstance(target, ast.Tuple) else [target]
                    names = [part.attr for part in parts if isinstance(part, ast.Attribute)]
                    yield from (name for name in names if name in methods)
            case ast.Call(
                func=ast.Attribute(attr="setattr"), args=[ast.Name(id=owner), ast.Constant(value=str(name)), _]
            ):
                if owner in origins and inspect.isclass(_named(*origins[owner])) and _is_compiled(*origins[owner]):
                    yield f"{owner}.{name}"


def test_tests_that_replace_compiled_methods_are_marked() -> None:
    """A compiled class and its objects refuse the assignment. A method is passed over if a class of plain Python also
    has one of its name, because nothing here knows the class of an object."""
    products = ("tunnel", "servlet", "client")
    others = [path for path in project_files(ROOT) if path.parts[0] in products and path not in FILES]
    methods = methods_in(FILES) - methods_in(path for path in others if path.suffix == ".py")
    found = {str(path): [*unmarked_replacements((ROOT / path).read_text(), methods)] for path in compiled_run()}
    assert {path: tests for path, tests in found.items() if tests} == {}


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("switch.link_packets = note  # type: ignore[method-assign]", ["test_a: link_packets"]),
        ("turns.spent_since = note  # type: ignore[method-assign]", []),
        ("monkeypatch.setattr(Switch, 'link_packets', note)", ["test_a: Switch.link_packets"]),
        ("monkeypatch.setattr(Turns, 'spent_since', note)", []),
    ],
)
def test_an_unmarked_replacement_is_caught(body: str, found: list[str]) -> None:
    imports = "from tunnel_servlet.switch.switch import Switch\nfrom tunnel.turns.queues import Turns\n"
    source = f"{imports}def test_a():\n    {body}\n"
    assert list(unmarked_replacements(source, {"link_packets"})) == found
    marked = source.replace("def test_a", "@pytest.mark.interpreted\ndef test_a")
    assert list(unmarked_replacements(marked, {"link_packets"})) == []


def unseen_bases(source: str) -> Iterator[str]:
    """Yield the classes with a base that the build does not see: it sees no packages but those of its stubs."""
    tree = ast.parse(source)
    homes = {
        (alias.asname or alias.name).partition(".")[0]: (node.module or "")
        if isinstance(node, ast.ImportFrom)
        else alias.name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    for node in (each for each in ast.walk(tree) if isinstance(each, ast.ClassDef)):
        for base in node.bases:
            root = next((each.id for each in ast.walk(base) if isinstance(each, ast.Name)), "")
            top = homes.get(root, "builtins").partition(".")[0]
            seen = top in sys.stdlib_module_names or top.startswith("tunnel")
            if not seen and ast.unparse(base) not in ("Struct", "msgspec.Struct"):
                yield f"{node.lineno}: {ast.unparse(base)}"


def test_the_build_sees_the_bases_of_compiled_classes() -> None:
    assert [(path, base) for path in FILES for base in unseen_bases((ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import aiohttp\nclass A(aiohttp.ClientSession): ...", ["2: aiohttp.ClientSession"]),
        ("from aiohttp import web as w\nclass A(w.View): ...", ["2: w.View"]),
        ("import msgspec\nfrom typing import Generic\nclass A(msgspec.Struct): ...\nclass B(A, Generic[T]): ...", []),
    ],
)
def test_a_base_that_the_build_does_not_see_is_caught(source: str, found: list[str]) -> None:
    assert list(unseen_bases(source)) == found


def test_compiling_a_module_does_not_change_its_meaning() -> None:
    assert [(path, found) for path in FILES for found in objections((ROOT / path).read_text())] == []


@pytest.mark.parametrize(
    ("source", "objection"),
    [
        ("class A(Struct, frozen=True): ...", "1: A has options"),
        ("@dataclass\nclass A: ...", "2: A has options"),
        ("len(cast(bytes, x.obj))", "1: a cast to bytes, which is checked at run time"),
        ("cast('list[int]', x)", "1: a cast to list, which is checked at run time"),
        ("nobody = 1, 'text'\nif found is nobody: ...", "2: identity of nobody, which is a value"),
        ("nobody: Refusal = 1, 'text'\nif found is not nobody: ...", "2: identity of nobody, which is a value"),
    ],
)
def test_code_that_compilation_would_change_is_caught(source: str, objection: str) -> None:
    assert list(objections(source)) == [objection]


@pytest.mark.parametrize("source", ["class A(Struct): ...", "cast(Sized, x)", "found = 1, 2\nif found is None: ..."])
def test_code_that_compilation_does_not_change_passes(source: str) -> None:
    assert list(objections(source)) == []


def interpreted_heirs(path: Path) -> Iterator[str]:
    """Yield the classes of a module that is not compiled whose base is a class of a compiled one: making one fails."""
    tree = ast.parse(path.read_text())
    modules = {module_name(compiled) for compiled in FILES}
    compiled_names = {
        alias.asname or alias.name: (node.module or "", alias.name)
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and node.module in modules
        for alias in node.names
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef):
            for base in node.bases:
                if isinstance(base, ast.Name) and _is_native(compiled_names.get(base.id)):
                    yield f"{path.relative_to(ROOT)}: {node.name}({base.id})"


def _is_native(origin: tuple[str, str] | None) -> bool:
    found = _named(*origin) if origin is not None else None
    plain = (BaseException, enum.Enum, msgspec.Struct)
    return inspect.isclass(found) and not issubclass(found, plain) and not getattr(found, "_is_protocol", False)


def test_no_class_of_the_product_inherits_from_a_compiled_one_unless_it_is_compiled_itself() -> None:
    paths = [path for path in project_files(ROOT) if path.parts[0] in ("tunnel", "servlet", "client")]
    assert [heir for path in paths if path not in FILES for heir in interpreted_heirs(ROOT / path)] == []
