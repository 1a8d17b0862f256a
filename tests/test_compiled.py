"""What compiled code (mypyc) demands of the sources it is made of; each rule is shown to catch what it is for.

The compiler drops the options of a class. It checks casts when they run, and makes tuples and numbers anew wherever
they pass to code that is not compiled, so that `is` between them is no question of which one it was.
"""

import ast
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path

import pathspec
import pytest

from tests.support.imports import project_files

ROOT = Path(__file__).parent.parent
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"][
    "custom"
]
CHECKED_CASTS = frozenset("bool bytearray bytes dict float frozenset int list memoryview set str tuple".split())


def compiled_files() -> list[Path]:
    included = pathspec.PathSpec.from_lines("gitignore", HOOK["include"])
    excluded = pathspec.PathSpec.from_lines("gitignore", HOOK["exclude"])
    return [path for path in project_files(ROOT) if included.match_file(path) and not excluded.match_file(path)]


FILES = compiled_files()


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
                yield f"{node.lineno}: a cast to {wanted}, which must be true"
        elif isinstance(node, ast.Compare) and any(isinstance(one, ast.Is | ast.IsNot) for one in node.ops):
            sides = (node.left, *node.comparators)
            for side in sides:
                if isinstance(side, ast.Name) and side.id in tuples and not _names_a_constant(sides):
                    yield f"{node.lineno}: identity of {side.id}, which is a value"


def _names_a_constant(sides: Iterable[ast.expr]) -> bool:
    """As in `x is None`, which asks whether there is a value."""
    return any(isinstance(side, ast.Constant) for side in sides)


def test_what_moves_bytes_is_compiled() -> None:
    names = {str(path) for path in FILES}
    assert {
        "tunnel/core/connection/connection.py",
        "tunnel/wire/batch.py",
        "tunnel/exchange/lanes.py",
        "servlet/tunnel_servlet/switch/switch.py",
        "tunnel/driver.py",
        "tunnel/carriers/link_protocol.py",
    } <= names
    assert not names & {
        "tunnel/core/events.py",
        "tunnel/wire/packet.py",
        "tunnel/streams.py",
        "servlet/tunnel_servlet/web/application.py",
    }


def test_who_inherits_from_a_compiled_carrier_is_compiled() -> None:
    """Else it cannot be made."""
    names = {str(path) for path in FILES}
    heirs = [str(path) for path in project_files(ROOT) if "(ExchangingCarrier)" in (ROOT / path).read_text()]
    assert len(heirs) >= 3
    assert set(heirs) - {"tests/test_compiled.py"} <= names


@pytest.mark.parametrize("path", FILES, ids=str)
def test_a_compiled_module_means_the_same(path: Path) -> None:
    assert list(objections((ROOT / path).read_text())) == []


@pytest.mark.parametrize(
    ("source", "objection"),
    [
        ("class A(Struct, frozen=True): ...", "1: A has options"),
        ("@dataclass\nclass A: ...", "2: A has options"),
        ("len(cast(bytes, x.obj))", "1: a cast to bytes, which must be true"),
        ("cast('list[int]', x)", "1: a cast to list, which must be true"),
        ("nobody = 1, 'text'\nif found is nobody: ...", "2: identity of nobody, which is a value"),
        ("nobody: Refusal = 1, 'text'\nif found is not nobody: ...", "2: identity of nobody, which is a value"),
    ],
)
def test_what_would_mean_something_else_is_caught(source: str, objection: str) -> None:
    assert list(objections(source)) == [objection]


@pytest.mark.parametrize("source", ["class A(Struct): ...", "cast(Sized, x)", "found = 1, 2\nif found is None: ..."])
def test_what_means_the_same_is_not(source: str) -> None:
    assert list(objections(source)) == []
