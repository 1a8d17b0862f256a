"""Finds the commands of this project in the code blocks of its documents."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

__all__ = ["Command", "commands_of", "hidden_in", "spans_of"]

_BLOCK = re.compile(r"^ *```([\w-]*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_OTHER_LANGUAGES = ("python", "json", "toml", "js", "ini", "sql", "text")
_SPAN = re.compile(r"(?<!`)`([^`]+)`(?!`)")
_CONTINUED = re.compile(r"\\\n\s*")
_OPTIONAL = re.compile(r"\[(-[^\]]*|[A-Z:]+)\]")  # as in a synopsis
_REMARK = re.compile(r"\s{3,}.*")
_SETTING = re.compile(r"\w+=")
_SEPARATORS = {"|", "||", "&", "&&", ";", "(", ")"}
_OUTPUTS = {">", ">>", "<", "2>"}
_PROGRAMS = ("tunnel", "tunnel-relay", "tunnel-broker", "tunnel-traces", "make", "locust", "pytest")
_MODULE = re.compile(r"(loadtests|tests|tunnel|tunnel_client|tunnel_servlet)(\.|$)")
# A line that names a program or a module in this way is meant to be run.
_MEANT = re.compile(
    r"\.venv/bin/(?!activate)\w|python3? -m\s*$|python3? -m (loadtests|tests)\b|^\s*(loadtests|tests)\.\w+ -"
)


class Command(NamedTuple):
    """A command: the file name and the line, for a message, the program or module, and its arguments."""

    document: str
    line: str
    program: str
    words: tuple[str, ...]

    @property
    def is_module(self) -> bool:
        """Whether it runs a module of this project with `python -m`."""
        return _MODULE.match(self.program) is not None and self.program not in _PROGRAMS


def commands_of(document: Path) -> list[Command]:
    """Return the commands in the code blocks of the document."""
    return [command for line in _lines(document.read_text()) for command in _commands(document.name, line)]


def spans_of(document: Path) -> list[Command]:
    """Return the commands that the text of a document names in passing, such as `tunnel-relay user add NAME`."""
    text = re.sub(r"^ *```.*?^ *```", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    spans = (" ".join(span.split()) for span in _SPAN.findall(text))
    return [command for span in spans if " " in span for command in _commands(document.name, span)]


def hidden_in(document: Path) -> list[str]:
    """Return the lines of code blocks that are meant to be run, but are comments, or parts of a command."""
    lines = [line for line in _lines(document.read_text()) if _MEANT.search(line)]
    return [line for line in lines if not _commands(document.name, line)]


def _lines(text: str) -> Iterator[str]:
    for language, block in _BLOCK.findall(text):
        if language in _OTHER_LANGUAGES:
            continue
        yield from _CONTINUED.sub(" ", block).splitlines()


def _commands(document: str, line: str) -> list[Command]:
    text = _OPTIONAL.sub(r"\1", _REMARK.sub("", line.strip().removeprefix("$ ")))
    try:
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        words = list(lexer)
    except ValueError:  # a quote that is not closed: no command, but text
        return []
    found, one = [], list[str]()
    for word in [*words, ";"]:
        if word in _SEPARATORS:
            found += _command(document, line, one)
            one = []
        else:
            one.append(word)
    inner = (word.partition("=")[2] for word in words if word.startswith("ProxyCommand="))
    return found + [command for text in inner for command in _commands(document, text)]


def _command(document: str, line: str, words: list[str]) -> list[Command]:
    while words and (_SETTING.match(words[0]) or words[0] == "ProxyCommand"):
        words = words[1:]
    outputs = [index for index, word in enumerate(words) if word in _OUTPUTS]
    words = words[: outputs[0]] if outputs else words
    if not words:
        return []
    program, rest = words[0].rpartition("/")[2], words[1:]
    if program in ("python", "python3") and rest[:1] == ["-m"] and len(rest) > 1 and _MODULE.match(rest[1]):
        return [Command(document, line, rest[1], tuple(rest[2:]))]
    if program in ("python", "python3") and rest and "/" in rest[0]:
        return [Command(document, line, program, tuple(rest))]
    return [Command(document, line, program, tuple(rest))] if program in _PROGRAMS else []
