"""Finds the real programs that tests need: in the path, in /usr/sbin, in the environment that `make field-deps`
creates, or in Debian's folders for PostgreSQL."""

import os
import shutil
from pathlib import Path

__all__ = ["find_program", "search_path"]

_POSTGRES = Path("/usr/lib/postgresql")
_FIELD = Path(__file__).parents[2] / "build" / "field" / "venv" / "bin"


def search_path() -> str:
    """Return the path of this process, followed by those folders."""
    versions = sorted(_POSTGRES.glob("[0-9]*"), key=lambda path: (len(path.name), path.name), reverse=True)
    folders = ["/usr/sbin", str(_FIELD), *(str(version / "bin") for version in versions)]
    return os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])


def find_program(name: str) -> str | None:
    """Return the program's absolute path, or None."""
    return shutil.which(name, path=search_path())
