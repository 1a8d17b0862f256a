"""The files of the tree that people read: sources, documents and configurations."""

from collections.abc import Iterator
from pathlib import Path

__all__ = ["text_files"]

_ROOT = Path(__file__).parents[2]
_FOLDERS = ("tunnel", "servlet", "client", "loadtests", "tests", "docs", "deploy", "examples", "changes")
_SUFFIXES = {".py", ".md", ".toml", ".yml", ".mjs", ".conf", ".txt", ""}  # without a suffix: Dockerfile, Makefile
_NOT_OURS = {"node_modules", "__pycache__", "corpus", "found"}  # the latter two are inputs of the fuzzer


def text_files() -> Iterator[Path]:
    """Yield each file in the root and in the folders of the project, without what tools have put there."""
    yield from (file for file in sorted(_ROOT.iterdir()) if file.is_file() and file.suffix in _SUFFIXES)
    for folder in _FOLDERS:
        for file in sorted((_ROOT / folder).rglob("*")):
            if file.suffix in _SUFFIXES and file.is_file() and not _NOT_OURS & set(file.parts):
                yield file
