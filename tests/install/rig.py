"""Bare virtual environments, and the files from which tunnel is installed into them.

A bare environment has Python and pip. It knows nothing of the environment that runs the tests: no packages, no
variables, an empty home. It fetches packages from the package index.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from loadtests.harness.tree import ROOT

__all__ = ["COMMANDS", "PYTHON", "Bare", "copy_of", "image_files", "other_python", "tracked_files", "wheel_settings"]

PYTHON = Path(sys.executable).resolve()
PYPROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())
COMMANDS = tuple(PYPROJECT["project"]["scripts"])
# Of the variables here, those that say where the package index is and how it is reached.
KEPT = re.compile(r"PIP_\w+|SSL_CERT_\w+|REQUESTS_CA_BUNDLE|(?:https?|all|no)_proxy", re.IGNORECASE)
SECONDS = 1600  # for one command; it ends the run instead of letting it hang


class Bare:
    """A bare environment in `folder`, with a home of its own."""

    def __init__(self, folder: Path, python: Path = PYTHON) -> None:
        self.folder = folder
        self.home = folder.with_name(f"{folder.name} home")
        self.home.mkdir(parents=True)
        subprocess.run([python, "-m", "venv", folder], env=self.variables(), check=True, capture_output=True)

    def variables(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if KEPT.fullmatch(name)}
        return {**kept, "PATH": os.defpath, "HOME": str(self.home), "LANG": "C.UTF-8", **more}

    def command(self, name: str) -> str:
        return str(self.folder / "bin" / name)

    def run(self, *command: str | Path, code: int = 0, directory: Path | None = None, **variables: str) -> str:
        """Run a command to its end; return what it wrote to standard output and standard error."""
        done = subprocess.run(
            [str(word) for word in command],
            cwd=directory or self.home,
            env=self.variables(**variables),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS,
        )
        assert done.returncode == code, f"{command}: {done.returncode}\n{done.stdout[-6000:]}"
        return done.stdout

    def pip(self, *words: str | Path, compiled: bool = False) -> str:
        """Run this environment's pip; with `compiled`, it compiles what it builds."""
        variables = {"HATCH_BUILD_HOOKS_ENABLE": "true"} if compiled else {}
        return self.run(
            self.command("python"),
            "-m",
            "pip",
            "--disable-pip-version-check",
            *words,
            code=0,
            directory=None,
            **variables,
        )


def wheel_settings() -> dict[str, Any]:
    """Return what pyproject.toml says about the wheel."""
    found: dict[str, Any] = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]
    return found


def tracked_files() -> list[str]:
    """Return the files of the repository, and new ones that git does not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    found = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout
    return sorted(name for name in found.split("\0") if name and (ROOT / name).is_file())


def image_files() -> list[str]:
    """Return the files that the Dockerfile copies into the stage that installs."""
    stage = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1]
    named = [word for words in re.findall(r"^COPY (.+) \S+$", stage, re.MULTILINE) for word in words.split()]
    return [name for name in tracked_files() if any(name == word or name.startswith(f"{word}/") for word in named)]


def copy_of(names: list[str], folder: Path) -> Path:
    """Copy these files of the repository into a new folder; return it."""
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, folder / name)
    return folder


def other_python(version: str) -> Path | None:
    """Return this version of Python, such as "3.13", if this machine has it."""
    program = shutil.which(f"python{version}")
    if program is None:
        return None
    # The programs of pyenv run only if this variable names a version.
    command = [program, "-c", "import sys, venv, ensurepip; print(sys.executable)"]
    found = subprocess.run(command, env={**os.environ, "PYENV_VERSION": version}, capture_output=True, text=True)
    return Path(found.stdout.strip()) if found.returncode == 0 else None


def subcommands(help_text: str) -> Iterator[str]:
    """Yield the names that a command's help lists under COMMAND."""
    _, found, listed = help_text.partition("\n  COMMAND\n")
    if found:
        yield from re.findall(r"^ {4}([a-z][\w-]*)", listed.partition("\n\n")[0], re.MULTILINE)
