"""The house rules that a machine can check: borders, purity, sizes, docstrings and `__all__`.

Other tests here show that each rule catches its violations.
"""

import ast
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.circles import LAZY, circles, imported_modules
from tests.support.imports import FOLDERS, import_violations, is_sans_io, module_name, project_files
from tests.support.purity import purity_violations

ROOT = Path(__file__).parent.parent
FILES = list(project_files(ROOT))
MODULES = {module_name(path) for path in FILES}

FUNCTION_LINES_MAX = 70


def is_module(name: str) -> bool:
    return name in MODULES


def shape_violations(tree: ast.Module, path: Path) -> Iterator[tuple[int, str]]:
    """Yield the parts of a module that are too long, and what every module must have but this one lacks."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            if length > FUNCTION_LINES_MAX:
                yield node.lineno, f"{node.name}: {length} lines, at most {FUNCTION_LINES_MAX}"
    if not ast.get_docstring(tree):
        yield 1, "no docstring"
    # Test files, and modules that are only run, need no __all__.
    if not path.name.startswith("test_") and path.name not in ("conftest.py", "__main__.py") and not has_all(tree):
        yield 1, "no __all__"


def has_all(tree: ast.Module) -> bool:
    targets = [
        target
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    ]
    return any(isinstance(target, ast.Name) and target.id == "__all__" for target in targets)


def violations(path: Path, source: str) -> list[str]:
    """Return every rule that a file breaks; the file's path decides which rules apply."""
    tree = ast.parse(source)
    module = module_name(path)
    found = [*shape_violations(tree, path), *import_violations(tree, module, is_module)]
    if is_sans_io(module):
        found += purity_violations(tree)
    return [f"{path}:{line}: {what}" for line, what in sorted(found)]


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_file_keeps_the_rules(folder: str) -> None:
    files = [path for path in FILES if path.parts[0] == folder]
    assert files
    assert [found for path in files for found in violations(path, (ROOT / path).read_text())] == []


def caught(path: str, body: str) -> str:
    return "\n".join(violations(Path(path), f'"""A module."""\n__all__: list[str] = []\n{body}\n'))


CORE = "from tunnel.core.endpoint import Endpoint"
NO_CORE = "must not import tunnel.core.endpoint"
NO_AIOHTTP = "aiohttp stays in tunnel.carriers, tunnel_servlet.web"
SWITCH = "servlet/tunnel_servlet/switch/x.py"
CLIENT = "client/tunnel_client"

IMPORTS = [
    ("tunnel/wire/x.py", "import tunnel.core.endpoint", NO_CORE),
    ("tunnel/wire/x.py", "from tunnel.traces.record import TraceRecord", "must not import tunnel.traces.record"),
    ("tunnel/core/x.py", "from tunnel.exchange import Lanes", "must not import tunnel.exchange"),
    ("tunnel/core/x.py", "from tunnel.traces.jsonl import JsonLinesWriter", "must not import tunnel.traces.jsonl"),
    ("tunnel/core/x.py", "from tunnel import attach", "must not import tunnel"),
    ("tunnel/core/x.py", "from tunnel import core, traces", "must not import tunnel.traces"),
    ("tunnel/exchange/x.py", CORE, NO_CORE),
    ("tunnel/carriers/x.py", CORE, NO_CORE),
    ("tunnel/driver.py", "import tunnel.analysis", "must not import tunnel.analysis"),
    ("tunnel/streams/streams.py", "import tunnel_client", "must not import tunnel_client"),
    (
        "tunnel/streams/streams.py",
        "from tunnel_servlet.web.host import SwitchHost",
        "must not import tunnel_servlet.web.host",
    ),
    ("tunnel/streams/streams.py", "import tests.support", "must not import tests.support"),
    ("tunnel/streams/streams.py", "import aiohttp", NO_AIOHTTP),
    ("tunnel/streams/streams.py", "import nats", "nats stays in loadtests"),
    ("tunnel/messages/x.py", "from tunnel.wire import Packet", "must not import tunnel.wire"),
    ("tunnel/streams/streams.py", "import pyspark.sql", "pyspark stays in tunnel.analysis"),
    ("tunnel/streams/streams.py", "import duckdb", "duckdb stays in tunnel.analysis"),
    (f"{CLIENT}/settings.py", CORE, NO_CORE),
    (f"{CLIENT}/settings.py", "import aiohttp.web", NO_AIOHTTP),
    (f"{CLIENT}/sockets/x.py", "import tunnel_client.cli.main", "must not import tunnel_client.cli.main"),
    (f"{CLIENT}/borrowed/x.py", "import tunnel_client.errors", "must not import tunnel_client.errors"),
    (f"{CLIENT}/proxy/x.py", "import tunnel.carriers.poll", "must not import tunnel.carriers.poll"),
    (SWITCH, CORE, NO_CORE),
    (SWITCH, "import tunnel_servlet.web.application", "must not import tunnel_servlet.web.application"),
    (SWITCH, "import tunnel_servlet.config", "must not import tunnel_servlet.config"),
    (SWITCH, "import tunnel", "must not import tunnel"),
    (SWITCH, "import msgpack", "is sans-I/O and must not import msgpack"),
    (
        "servlet/tunnel_servlet/access/x.py",
        "import tunnel_servlet.switch.mailboxes.mailbox",
        "tunnel_servlet.switch.mailboxes.mailbox",
    ),
    ("servlet/tunnel_servlet/web/x.py", "import tunnel_servlet.command.files", "tunnel_servlet.command.files"),
    ("servlet/tunnel_servlet/exit/x.py", "import aiohttp", NO_AIOHTTP),
    ("tests/x.py", "from servlet.tunnel_servlet import config", "the package is tunnel_servlet"),
    ("tests/x.py", "import client.tunnel_client.settings", "the package is tunnel_client"),
    ("tests/x.py", "from tests.test_architecture import ROOT", "stays in a rig.py"),
    ("tests/x/rig.py", "import tests.servlet.test_config", "stays in a rig.py"),
    ("tests/x.py", "from tests.servlet import test_config", "stays in a rig.py"),
    ("loadtests/x.py", "from tests.test_architecture import ROOT", "stays in a rig.py"),
    ("tunnel/core/x.py", "from . import endpoint", "relative import"),
    ("tests/x.py", "import a_library", ""),
    ("tests/x.py", "import pyspark, aiohttp, tunnel.core, tunnel_servlet.switch.switch, tunnel_client", ""),
    ("tunnel/core/x.py", "import tunnel.wire.packet, tunnel.core.ranges, tunnel.traces.record, msgspec, enum", ""),
    ("tunnel/carriers/http/http_exchanger.py", "import aiohttp, asyncio, tunnel.exchange.lanes.lanes", ""),
    ("tunnel/__init__.py", "from tunnel.wire import Packet", ""),
    ("tunnel/driver.py", "import time, tunnel.core.endpoint, tunnel.carriers.poll", ""),
    ("servlet/tunnel_servlet/web/x.py", "import aiohttp, asyncio, tunnel, tunnel_servlet.switch.switch", ""),
    ("servlet/tunnel_servlet/access/x.py", "import tunnel_servlet.switch.decisions", ""),
    (f"{CLIENT}/doctor/x.py", "import tunnel.carriers.poll, tunnel_client.settings, tunnel", ""),
    (f"{CLIENT}/cli/x.py", "import tunnel.streams.streams, tunnel_client.doctor, asyncio", ""),
]


@pytest.mark.parametrize(("path", "body", "message"), IMPORTS)
def test_a_forbidden_import_is_caught(path: str, body: str, message: str) -> None:
    found = caught(path, body)
    assert message in found if message else found == ""


IMPURE = [
    "import time",
    "from time import monotonic",
    "import concurrent.futures",
    "from datetime import datetime",
    "from os import urandom",
    "from random import randrange",
    "import random; x = random.random()",
    "import random; x = random.Random()",
    "from random import Random; x = Random(7)",
    "def f(self): return self._random.choice([1, 2])",
    "def f(random): random.shuffle([1, 2])",
    "x = hash('a')",
    "x = id(f)",
    "x = open('a')",
    "print(1)",
]
PURE = [
    "from random import Random",
    "import random; x: random.Random",
    "def f(random): return random.getrandbits(32)",
    "def f(table): return table.choice()",
    "import enum, heapq, struct, collections.abc",
    "class A: id: int = 0",
]


@pytest.mark.parametrize("body", IMPURE)
def test_impurity_is_caught_only_in_sans_io_parts(body: str) -> None:
    for path in ("tunnel/wire/x.py", "tunnel/core/x.py", "tunnel/exchange/x.py", SWITCH):
        assert "sans-I/O" in caught(path, body)
    for path in (
        "tunnel/driver.py",
        "tunnel/carriers/x.py",
        "servlet/tunnel_servlet/web/application.py",
        "client/x.py",
        "tests/x.py",
    ):
        assert caught(path, body) == ""


@pytest.mark.parametrize("body", PURE)
def test_pure_code_passes(body: str) -> None:
    assert caught("tunnel/core/x.py", body) == ""


BY_SET_ORDER = [
    "for x in {1, 2}: pass",
    "x = [y for y in {1, 2}]",
    "x = {y: 1 for y in set('ab')}",
    "x = list(frozenset('ab'))",
    "x = ''.join({'a', 'b'})",
    "x = [*{1, 2}]",
    "x = {1, 2}.pop()",
    "x = tuple(y for y in {1, 2})",
    "NAMES = frozenset('ab')\ndef f():\n    for x in NAMES: pass",
    "def f(names: set[int] | None):\n    for x in names: pass",
    "def f():\n    names: set[int] = make()\n    yield from names",
    "async def f(*, names: frozenset[int]):\n    return next(iter(names))",
    "def f(a: set[int], b):\n    for x in a - b: pass",
    "def f(a: set[int]):\n    for x in a.copy() if a else (): pass",
    "class A:\n    names: ClassVar[set[int]]\n    def f(self):\n        for x in self.names: pass",
    "class A:\n    def __init__(self): self.names = set()\n    def f(self): return [x for x in self.names]",
    "def f(names: abc.Set):\n    for x in names: pass",
]
BY_OTHER_ORDER = [
    "for x in sorted({1, 2}): pass",
    "x = 1 in {1, 2}",
    "x = {y + 1 for y in {1, 2}}",
    "x = all(y for y in {1, 2} if y)",
    "x = sorted(y for y in {1, 2})",
    "x = max(1, *[2])",
    "for x in {1: 2}: pass",
    "x = [1].pop()",
    "def f(names: set[int]): pass\ndef g(names: list[int]):\n    for x in names: pass",
    "def f(names):\n    for x in lambda: names: pass",
]


@pytest.mark.parametrize("body", BY_SET_ORDER)
def test_iterating_over_a_set_is_caught(body: str) -> None:
    assert "order of the set" in caught("tunnel/core/x.py", body)
    assert caught("tunnel/driver.py", body) == ""


@pytest.mark.parametrize("body", BY_OTHER_ORDER)
def test_code_without_set_order_passes(body: str) -> None:
    assert caught("tunnel/core/x.py", body) == ""


def test_long_code_and_missing_docstrings_are_caught() -> None:
    body = "\n".join(["    pass"] * FUNCTION_LINES_MAX)
    assert "f: 71 lines, at most 70" in caught("tests/x.py", f"def f():\n{body}")
    assert violations(Path("tests/x.py"), "") == ["tests/x.py:1: no __all__", "tests/x.py:1: no docstring"]
    assert violations(Path("tests/test_x.py"), "") == ["tests/test_x.py:1: no docstring"]


def test_ruff_bans_the_clock_in_the_same_files(tmp_path: Path) -> None:
    """pyproject.toml repeats the borders for editors; this test compares the two."""
    invented = [
        "tunnel/driver.py",
        "tunnel/carriers/x.py",
        "tunnel/traces/x.py",
        "client/tunnel_client/x.py",
        "servlet/tunnel_servlet/x.py",
        "servlet/tunnel_servlet/access/x.py",
        SWITCH,
        "servlet/tunnel_servlet/web/x.py",
        "tests/x.py",
    ]
    samples = {str(path) for path in FILES if not path.name.startswith("test_")} | {*invented}
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    for sample in samples:
        file = tmp_path / sample
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("import time\n")
    command = [sys.executable, "-m", "ruff", "check", "--select=TID251", "--output-format=json", "--no-cache"]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    banned = {str(Path(each["filename"]).relative_to(tmp_path)) for each in json.loads(result.stdout)}
    assert banned == {sample for sample in samples if is_sans_io(module_name(Path(sample)))}


def test_there_are_no_circular_imports() -> None:
    imports = {
        module_name(path): imported_modules(ast.parse((ROOT / path).read_text()), MODULES)
        for path in FILES
        if module_name(path) not in LAZY
    }
    assert list(circles(imports)) == []


@pytest.mark.parametrize(
    ("sources", "found"),
    [
        ({"a": "import b", "b": "import c", "c": ""}, []),
        ({"a": "import b", "b": "import a"}, [["a", "b"]]),
        ({"a": "from p import b", "p.b": "from p.c import x", "p.c": "import a", "p": ""}, [["a", "p.b", "p.c"]]),
        ({"a": "if TYPE_CHECKING:\n    import b", "b": "def f():\n    import a"}, [["a", "b"]]),
        ({"a": "import a"}, [["a"]]),
        ({"a": "import b, c", "b": "import c", "c": "import b"}, [["b", "c"]]),
    ],
)
def test_a_circular_import_is_found(sources: dict[str, str], found: list[list[str]]) -> None:
    imports = {module: imported_modules(ast.parse(source), sources) for module, source in sources.items()}
    assert list(circles(imports)) == found


GUARD = re.compile(r"^if TYPE_CHECKING:", re.MULTILINE)


def test_only_lazy_packages_guard_imports_with_type_checking() -> None:
    """A guard hides a circular import, or a module too heavy to import: annotate with the package instead."""
    assert {module_name(path) for path in FILES if GUARD.search((ROOT / path).read_text())} == {*LAZY}
