"""Finds code whose result depends on the order of a set, which changes with the hash seed.

A name counts as a set in its function or module if it is annotated as one, or if a value that is known to be one is
assigned to it. An attribute counts in the whole file. Known are sets in braces, calls of `set` and `frozenset`, and
what methods and operators of sets make of them; a set that any other call returns is not recognised.
"""

import ast
from collections.abc import Callable, Iterator

__all__ = ["set_order_violations"]

SET_MAKERS = frozenset({"frozenset", "set"})
SET_TYPES = SET_MAKERS | {"AbstractSet", "MutableSet", "Set"}
SET_METHODS = frozenset({"copy", "difference", "intersection", "symmetric_difference", "union"})
SET_OPERATORS = (ast.BitAnd, ast.BitOr, ast.BitXor, ast.Sub)

# Functions that keep the order of an argument, and functions for which order makes no difference.
ORDERED = frozenset(
    "chain deque dict enumerate extend filter from_iterable fromkeys iter join list map tuple zip".split()
)
UNORDERED = SET_MAKERS | {"all", "any", "len", "max", "min", "sorted", "sum"}

Function = ast.FunctionDef | ast.AsyncFunctionDef


def set_order_violations(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Return each place that takes the elements of a set in the set's own order, as (line, what)."""
    finder = Finder()
    finder.learn(tree)
    finder.visit(tree)
    return iter(finder.found)


class Finder(ast.NodeVisitor):
    """Learns the sets of a scope, then looks at every place in it that takes elements in order."""

    def __init__(self) -> None:
        self.found: list[tuple[int, str]] = []
        self.attributes: set[str] = set()
        self.scopes: list[set[str]] = []

    def learn(self, tree: ast.Module) -> None:
        """Learn the names of the module and the attributes of the whole file."""
        self.scopes.append(set(self.names_in(tree)))
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                self.attributes.update(self.names_in(node))
            for target in set_targets(node, self.is_set):
                if isinstance(target, ast.Attribute):
                    self.attributes.add(target.attr)

    def names_in(self, scope: ast.AST) -> Iterator[str]:
        """Yield the names that are sets in a module, class or function itself, but not in scopes nested in it."""
        if isinstance(scope, Function):
            arguments = scope.args
            for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
                if is_set_type(argument.annotation):
                    yield argument.arg
        for node in own_nodes(scope):
            for target in set_targets(node, self.is_set):
                if isinstance(target, ast.Name):
                    yield target.id

    def is_set(self, node: ast.AST) -> bool:
        """Return whether an expression is known to be a set."""
        match node:
            case ast.Set() | ast.SetComp():
                return True
            case ast.Name(id=name):
                return any(name in scope for scope in self.scopes)
            case ast.Attribute(attr=name):
                return name in self.attributes
            case ast.Call(func=ast.Name(id=name)):
                return name in SET_MAKERS
            case ast.Call(func=ast.Attribute(value=owner, attr=name)):
                return name in SET_METHODS and self.is_set(owner)
            case ast.BinOp(op=operator, left=left, right=right):
                return isinstance(operator, SET_OPERATORS) and (self.is_set(left) or self.is_set(right))
            case ast.IfExp(body=body, orelse=orelse):
                return self.is_set(body) or self.is_set(orelse)
        return False

    def check(self, node: ast.AST) -> None:
        if self.is_set(node):
            self.found.append((getattr(node, "lineno", 0), f"order of the set {ast.unparse(node)}: sort it"))

    def visit_function(self, node: Function) -> None:
        self.scopes.append(set())
        self.scopes[-1].update(self.names_in(node))
        self.generic_visit(node)
        self.scopes.pop()

    visit_FunctionDef = visit_function
    visit_AsyncFunctionDef = visit_function

    def visit_For(self, node: ast.For) -> None:
        self.check(node.iter)
        self.generic_visit(node)

    def visit_Starred(self, node: ast.Starred) -> None:
        self.check(node.value)
        self.generic_visit(node)

    def visit_YieldFrom(self, node: ast.YieldFrom) -> None:
        self.check(node.value)
        self.generic_visit(node)

    def visit_comprehension(self, node: ast.comprehension) -> None:
        self.check(node.iter)
        self.generic_visit(node)

    def visit_SetComp(self, node: ast.SetComp) -> None:
        self.visit_unordered(node)

    def visit_unordered(self, node: ast.SetComp | ast.GeneratorExp) -> None:
        """Visit a comprehension whose result has no order, or loses it: its sources may be sets."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.comprehension):
                self.generic_visit(child)
            else:
                self.visit(child)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "id", "") or getattr(node.func, "attr", "")
        if name in ORDERED:
            for argument in node.args:
                self.check(argument)
        elif name == "pop" and not node.args and isinstance(node.func, ast.Attribute):
            self.check(node.func.value)
        self.visit(node.func)
        for child in (*node.args, *node.keywords):
            if name in UNORDERED and isinstance(child, ast.GeneratorExp):
                self.visit_unordered(child)
            else:
                self.visit(child)


def own_nodes(scope: ast.AST) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(scope):
        if not isinstance(child, ast.ClassDef | Function | ast.Lambda):
            yield child
            yield from own_nodes(child)


def is_set_type(annotation: ast.expr | None) -> bool:
    """Return whether an annotation is a set, or a union with one."""
    match annotation:
        case ast.BinOp(op=ast.BitOr(), left=left, right=right):
            return is_set_type(left) or is_set_type(right)
        case ast.Subscript(value=value, slice=inner):
            # In ClassVar[...] and Final[...], the type in the brackets counts.
            return is_set_type(inner) if getattr(value, "id", "") in ("ClassVar", "Final") else is_set_type(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name in SET_TYPES
    return False


def set_targets(node: ast.AST, is_set: Callable[[ast.AST], bool]) -> Iterator[ast.expr]:
    """Yield the targets that a statement makes sets."""
    match node:
        case ast.AnnAssign(target=target, annotation=annotation) if is_set_type(annotation):
            yield target
        case ast.Assign(targets=targets, value=value) if is_set(value):
            yield from targets
