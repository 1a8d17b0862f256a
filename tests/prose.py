"""`python -m tests.prose`: the check of our English, in documents, docstrings and comments. Part of `make lint`.

The table below lists words and beginnings of sentences that made readers stop, each with what to write instead.
CONTRIBUTING.md has the rules behind it. A finding in a document is refused; one in a docstring or comment is advice, as
readers of code know its context. Documents must also stay within 100 columns outside tables and code, and lists
and blocks of code must not have been wrapped into paragraphs.
"""

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

__all__ = ["Finding", "check_document", "check_python", "checked_files", "main"]

ROOT = Path(__file__).parents[1]
COLUMNS_MAX = 100  # of a line of a document
_SENTENCE = r"(?:^|(?<=[.:!?])\s+)"

_TELLTALES = [
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"(?i)\bwhoever\b", "name the actor: the caller, the peer, the operator"),
        (r"(?i)\b(?:nobody|somebody)\b", "name the actor: no caller, a developer, another endpoint"),
        (_SENTENCE + r"Who\b(?![^.]*\?)", "name the actor: 'An endpoint that ...', not 'Who ...'"),
        (_SENTENCE + r"(?:What|Whose|Whom)\b(?![^.]*[?:])", "name the thing: 'Data that ...', not 'What ...'"),
        (r"(?i)\b(?:whither|whence|wherefrom)\b", "say 'the target', 'the source', 'from which'"),
        (r"(?i)\banew\b", "say 'again'"),
        (r"(?i)\b(?:ever more )?seldom(?:er)?\b", "say 'rarely', or 'with exponential backoff'"),
        (r"(?i)\bso many\b(?! (?:[a-z]+ ){1,3}that\b)", "say 'this number of' or 'at most N'"),
        (r"(?i)\bhow[- ]maniest\b", "say 'which one, counting from 0'"),
        (r"(?i)\b(?:is|are|was|were|be|been|being) told\b", "say 'is notified', 'learns', 'receives', 'is given'"),
        (r"(?i)\bhears? of (?:it|this|that)\b", "say 'learns of it' or 'is notified'"),
        (r"(?i)\bheed(?:s|ed|ing)?\b", "say 'obeys', 'honours' or 'takes account of'"),
        (r"(?i)\bsees? to (?:it|its|the|that)\b", "say what it does: 'sets', 'ensures'"),
        (r"(?i)\bby and by\b", "say 'gradually'"),
    )
]


_WRAPPED_ITEM = re.compile(r"[.:;]\s-(?:\s[A-Z]|$)")
_WRAPPED_CODE = re.compile(r"^\s*```\s*\S+\s+\S")  # a block of code begins with at most the name of a language


class Finding(NamedTuple):
    """One place to mend."""

    path: str
    line: int
    found: str
    advice: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.found!r}: {self.advice}"


def _find(path: str, line: int, text: str) -> Iterator[Finding]:
    """Yield the tell-tales in a text that starts at `line`; code in backquotes is exempt."""
    plain = re.sub(r"`[^`]*`", lambda code: re.sub(r"[^\n]", "x", code.group()), text)
    plain = re.sub(r"(?m)^(\s*)[-*] ", r"\1. ", plain)  # an item of a list begins a sentence
    for pattern, advice in _TELLTALES:
        for match in pattern.finditer(re.sub(r"\n\s*(?=\S)", lambda gap: " " * len(gap.group()), plain)):
            found = match.group().lstrip()
            yield Finding(path, line + text.count("\n", 0, match.end() - len(found)), found, advice)


def check_document(path: str, text: str) -> list[Finding]:
    """Return the findings in a Markdown text. Code blocks are exempt; tables may be wider than 100 columns."""
    findings: list[Finding] = []
    paragraph: list[str] = []
    is_code = False

    def end_paragraph(line: int) -> None:
        findings.extend(_find(path, line - len(paragraph), "\n".join(paragraph)))
        for at, wrapped in enumerate(paragraph, line - len(paragraph)):
            for match in _WRAPPED_ITEM.finditer(re.sub(r"`[^`]*`", "", wrapped)):
                findings.append(Finding(path, at, match.group(), "begin each item of a list on a line of its own"))
        paragraph.clear()

    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        is_fence = line.lstrip().startswith("```")
        is_code ^= is_fence
        if _WRAPPED_CODE.match(line):
            findings.append(Finding(path, number, line[:40], "a block of code begins on the line after its ```"))
        if is_code or is_fence or not line.strip() or line.startswith("|"):
            end_paragraph(number)
            if line.startswith("|") and not is_code:
                findings.extend(_find(path, number, re.sub(r" *\| *", "\n", line).replace("\n", ". ")))
            continue
        paragraph.append(line)
        if len(line) > COLUMNS_MAX and " " in line.strip():
            findings.append(Finding(path, number, line[:40], f"{len(line)} columns: wrap at {COLUMNS_MAX}"))
    end_paragraph(len(lines) + 1)
    return findings


def check_python(path: str, source: str) -> list[Finding]:
    """Return the findings in the docstrings and comments of a module."""
    findings: list[Finding] = []
    for node in ast.walk(ast.parse(source)):
        for statement in getattr(node, "body", []) if not isinstance(node, ast.Lambda | ast.IfExp) else []:
            if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
                text = statement.value.value
                if isinstance(text, str):
                    findings.extend(_find(path, statement.lineno, text))
    for line, text in _comments(source):
        findings.extend(_find(path, line, text))
    return findings


def _comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield each comment with its first line; comments on lines that follow each other are one text."""
    start, texts, column = 0, [""], -1
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        line, here = token.start
        if line == start + len(texts) and here == column:
            texts.append(token.string.lstrip("# "))
            continue
        yield start, "\n".join(texts)
        start, texts, column = line, [token.string.lstrip("# ")], here
    yield start, "\n".join(texts)


def checked_files() -> Iterator[Path]:
    """Yield the documents and modules of this repository that the check reads."""
    yield from sorted(ROOT.glob("*.md"))
    yield from sorted(ROOT.glob(".github/**/*.md"))
    yield from sorted(ROOT.glob("docs/**/*.md"))
    yield from sorted(ROOT.glob("changes/*.md"))
    yield from sorted(ROOT.glob("examples/*/*.md"))
    yield from sorted(ROOT.glob("tests/**/*.md"))
    for folder in ("tunnel", "client", "servlet", "loadtests", "examples", "tests"):
        yield from sorted((ROOT / folder).rglob("*.py"))


def main(paths: Sequence[str] = ()) -> int:
    """Print every finding in these files, or in all; return 1 if there are any in documents."""
    findings: list[Finding] = []
    count = 0
    for file in (Path(path).resolve() for path in paths) if paths else checked_files():
        if "node_modules" in file.parts or file == Path(__file__):
            continue
        path, text = str(file.relative_to(ROOT)), file.read_text()
        findings += check_document(path, text) if file.suffix == ".md" else check_python(path, text)
        count += 1
    for finding in findings:
        print(finding if finding.path.endswith(".md") else f"{finding} (advice)")
    refused = sum(finding.path.endswith(".md") for finding in findings)
    print(f"prose: {count} files, {refused} findings in documents, {len(findings) - refused} in code")
    return 1 if refused else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
