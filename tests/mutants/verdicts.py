"""The verdicts on mutants: changes as text, defended changes, and the table."""

from __future__ import annotations

import ast
import io
import textwrap
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from tests.mutants.areas import Module
from tests.mutants.plugin import Outcome

__all__ = ["NOTICED", "Row", "changes", "judge", "read_defended", "render", "tokens_of"]

SEPARATOR = "__mutmut_"
_LAYOUT = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER)
NOTICED = (Outcome.KILLED, Outcome.TIMEOUT, Outcome.CRASHED, Outcome.MISTYPED)


def changes(mutated: str) -> dict[str, str]:
    """Return, for every mutant in a mutated module's text, its function and the change of its tokens, with an ordinal.

    `Box.full: 4 => 5 #1` says that the first 4 in the function becomes a 5. Lines, comments and the layout of the code
    do not count, so that clearer code need not change the names of its mutants.
    """
    functions: dict[str, list[str]] = {}
    lines = mutated.splitlines(keepends=True)
    for node in ast.walk(ast.parse(mutated)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and SEPARATOR in node.name:
            functions[node.name] = tokens_of("".join(lines[node.lineno - 1 : node.end_lineno]))
    found = {}
    for name, tokens in functions.items():
        function, _, number = name.rpartition(SEPARATOR)
        if number != "orig":
            found[name] = f"{_readable(function)}: {_difference(functions[f'{function}{SEPARATOR}orig'], tokens)}"
    return found


def tokens_of(function: str) -> list[str]:
    """The tokens of the function after its name, without comments and layout."""
    found = tokenize.generate_tokens(io.StringIO(textwrap.dedent(function)).readline)
    words = [token.string for token in found if token.type not in _LAYOUT]
    return words[words.index("def") + 2 :]


def _readable(function: str) -> str:
    """The name of a function, or of a method as Class.method."""
    return function.removeprefix("xǁ").replace("ǁ", ".") if "ǁ" in function else function.removeprefix("x_")


def _difference(before: list[str], after: list[str]) -> str:
    """The run of tokens that changed, the tokens that replace it, and its ordinal among equal runs of the function.

    A change that only adds tokens is named together with the token before it.
    """
    shorter = min(len(before), len(after))
    first = next((at for at in range(shorter) if before[at] != after[at]), shorter)
    rest = next((at for at in range(shorter - first) if before[-1 - at] != after[-1 - at]), shorter - first)
    if first + rest == len(before):
        first -= 1
    old, new = before[first : len(before) - rest], after[first : len(after) - rest]
    ordinal = sum(before[at : at + len(old)] == old for at in range(first + 1))
    return f"{' '.join(old)} => {' '.join(new)} #{ordinal}"


def read_defended(text: str) -> dict[str, str]:
    """Map each line such as `core.rtt Rtt.sample: OLD => NEW #1` to its reason, which is the next indented line.

    Raise ValueError for a line without a reason.
    """
    defended: dict[str, str] = {}
    waiting: list[str] = []
    for line in text.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(" "):
            defended |= dict.fromkeys(waiting, line.strip())
            waiting = []
        else:
            waiting.append(line)
    if waiting:
        raise ValueError(f"no reason is given for {waiting[0]}")
    return defended


@dataclass
class Row:
    """One module in the table."""

    module: Module
    mutants: int = 0
    noticed: int = 0
    timeouts: int = 0
    mistyped: int = 0
    defended: list[str] = field(default_factory=list)
    survivors: list[str] = field(default_factory=list)
    stale: list[str] = field(default_factory=list)
    """Defended, but no such mutant is left."""
    ambiguous: list[str] = field(default_factory=list)
    """Defended, but the line names more than one mutant, of which only one was examined."""

    @property
    def has_faults(self) -> bool:
        """Whether a test or a defence is missing or wrong."""
        return bool(self.survivors or self.stale or self.ambiguous)

    @property
    def rate(self) -> float:
        """The percentage of noticed mutants among those that can be noticed."""
        possible = self.mutants - len(self.defended)
        return 100.0 * self.noticed / possible if possible else 100.0


def judge(module: Module, mutated: str, outcomes: dict[str, str], defended: dict[str, str]) -> Row:
    """Count the outcomes; separate defended survivors from the others."""
    row = Row(module)
    words = changes(mutated)
    for mutant, outcome in outcomes.items():
        row.mutants += 1
        line = f"{module.name} {words[mutant]}"
        if outcome in NOTICED:
            row.noticed += 1
            row.timeouts += outcome == Outcome.TIMEOUT
            row.mistyped += outcome == Outcome.MISTYPED
        elif line in defended:
            row.defended.append(line)
        else:
            row.survivors.append(line)
    existing = Counter(f"{module.name} {change}" for change in words.values())
    mine = [line for line in defended if line.startswith(f"{module.name} ")]
    row.stale = [line for line in mine if not existing[line]]
    row.ambiguous = [line for line in mine if existing[line] > 1]
    return row


def render(rows: Iterable[Row]) -> Iterator[str]:
    """The survivors and the wrong defences, then the table."""
    rows = list(rows)
    for row in rows:
        yield from row.survivors
        yield from (f"defended, but there is no such mutant: {line}" for line in row.stale)
        yield from (f"defended, but two mutants are meant: {line}" for line in row.ambiguous)
    heads = f"{'module':<26}{'mutants':>9}{'killed':>8}{'timed out':>11}{'mistyped':>10}"
    yield f"{heads}{'survived':>10}{'defended':>10}{'rate':>8}"
    total = Row(Module("all", "modules"))
    for row in rows:
        yield _line(row.module.name, row)
        total.mutants += row.mutants
        total.noticed += row.noticed
        total.timeouts += row.timeouts
        total.mistyped += row.mistyped
        total.survivors += row.survivors
        total.defended += row.defended
    yield _line("all", total)


def _line(name: str, row: Row) -> str:
    killed = row.noticed - row.timeouts - row.mistyped
    counts = f"{row.mutants:>9}{killed:>8}{row.timeouts:>11}{row.mistyped:>10}"
    return f"{name:<26}{counts}{len(row.survivors):>10}{len(row.defended):>10}{row.rate:>7.1f}%"
