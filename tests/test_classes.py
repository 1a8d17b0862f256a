"""Classes are divided by concept, as CONTRIBUTING.md demands: one with many methods or attributes says why it is one.

A record, which has hardly any method, may have as many fields as what it describes.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.imports import module_name, project_files

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("tunnel", "servlet", "client")
METHODS_MAX = 30
ATTRIBUTES_MAX = 20
RECORD_METHODS_MAX = 3
REASON = "One thing because "  # begins the sentence of the docstring that says it


def methods_of(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [part for part in node.body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes_of(node: ast.ClassDef) -> set[str]:
    """Return the fields that the class declares, and the attributes that its methods set."""
    declared = {ast.unparse(part.target) for part in node.body if isinstance(part, ast.AnnAssign) and _is_field(part)}
    return declared | {
        each.attr
        for method in methods_of(node)
        for each in ast.walk(method)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and ast.unparse(each.value) == "self"
    }


def _is_field(part: ast.AnnAssign) -> bool:
    return not ast.unparse(part.annotation).startswith("ClassVar")


def large_classes(source: str) -> Iterator[str]:
    """Yield the classes above a cap whose docstrings do not say why each is one thing."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef):
            methods, attributes = len(methods_of(node)), len(attributes_of(node))
            has_many = attributes > ATTRIBUTES_MAX and methods > RECORD_METHODS_MAX
            if (methods > METHODS_MAX or has_many) and not gives_reason(node):
                yield node.name


def gives_reason(node: ast.ClassDef) -> bool:
    return REASON in " ".join((ast.get_docstring(node) or "").split())


def test_large_classes_say_why_they_are_one_thing() -> None:
    found = {
        f"{module_name(path)}.{name}"
        for path in project_files(ROOT)
        if path.parts[0] in PRODUCT
        for name in large_classes((ROOT / path).read_text())
    }
    assert found == set(), (
        f"divide each of these classes by concept, or write a sentence into its docstring that begins with {REASON!r}"
    )


def class_of(methods: int, attributes: int, text: str = "") -> str:
    sets = "".join(f"        self.a{number} = 0\n" for number in range(attributes))
    more = "".join(f"    def m{number}(self): ...\n" for number in range(methods - 1))
    return f'class A:\n    """{text}"""\n    def __init__(self):\n        pass\n{sets}{more}'


@pytest.mark.parametrize(
    ("methods", "attributes", "is_large"),
    [(30, 20, False), (31, 1, True), (4, 21, True), (3, 99, False)],
    ids=["small", "many methods", "many attributes", "a record"],
)
def test_a_large_class_is_found_unless_it_gives_a_reason(methods: int, attributes: int, is_large: bool) -> None:
    assert list(large_classes(class_of(methods, attributes))) == ["A"] * is_large
    assert list(large_classes(class_of(methods, attributes, "All of it.\n\n    One thing\n    because it is."))) == []


def test_every_way_to_set_an_attribute_counts() -> None:
    source = """
class A:
    shared: ClassVar[int] = 0
    field: int
    def __init__(self):
        self.one, (self.two, *self.three) = self.read
        self.four: int = 0
        self.five += 1
        for self.six in ():
            self.six.seven = self.one
"""
    (node,) = ast.parse(source).body
    assert isinstance(node, ast.ClassDef)
    assert attributes_of(node) == {"field", "one", "two", "three", "four", "five", "six"}
