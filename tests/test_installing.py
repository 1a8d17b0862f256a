"""Texts that tell a person to install something name what can be installed: packages of an index, or our own folder.

tunnel itself is on no package index.
"""

import ast
import re
import shlex
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pathspec
import pytest

from tunnel.system.installing import install_command

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = {
    name: {re.split(r"[^\w-]", line)[0] for line in lines} for name, lines in PROJECT["optional-dependencies"].items()
}
SOURCES = [file for top in ("tunnel", "client", "servlet", "loadtests") for file in (ROOT / top).rglob("*.py")]
DOCUMENTS = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]
NAMED_ON_AN_INDEX = re.compile(rf"(?:{PROJECT['name']}\[|pip install ['\"]?{PROJECT['name']})")
INSTALLED = re.compile(r"pip install\s+('[^'\n]+'|[^\s`]+)")
OWN_FOLDER = re.compile(r"\.(?:\[([\w,-]+)\])?")


def known_packages() -> set[str]:
    required = {re.split(r"[^\w-]", line)[0] for line in PROJECT["dependencies"]}
    return required.union(*(packages for name, packages in EXTRAS.items() if name != "dev"))


def named_packages(source: str) -> Iterator[str]:
    """Yield what a source file hands to `install_command`."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "install_command":
            yield ast.literal_eval(node.args[0])


def test_the_command_is_that_of_the_running_python(monkeypatch: pytest.MonkeyPatch) -> None:
    assert shlex.split(install_command("rich")) == [sys.executable, "-m", "pip", "install", "rich"]
    monkeypatch.setattr(sys, "executable", "/a folder/bin/python")
    assert shlex.split(install_command("rich"))[0] == "/a folder/bin/python"
    monkeypatch.setattr(sys, "executable", None)  # as in a program that embeds Python
    assert shlex.split(install_command("rich"))[0] == "python3"


def test_errors_name_packages_that_we_require() -> None:
    named = {package for file in SOURCES for package in named_packages(file.read_text())}
    assert named <= known_packages()
    for extra in ("encryption", "proxy-auth", "analysis", "spark"):  # without these, something ends with an error
        assert EXTRAS[extra] <= named, f"an error must name every package of {extra}"


def test_no_text_installs_us_from_an_index() -> None:
    found = {str(file): NAMED_ON_AN_INDEX.findall(file.read_text()) for file in (*DOCUMENTS, *SOURCES)}
    assert {file: names for file, names in found.items() if names} == {}


def test_documents_install_known_packages_and_extras() -> None:
    for word in [word for document in DOCUMENTS for word in INSTALLED.findall(document.read_text())]:
        name = word.strip("'").rstrip(",;.)") or "."
        ours = OWN_FOLDER.fullmatch(name)
        named = {extra for extra in (ours[1] or "").split(",") if extra} if ours else set()
        assert named <= EXTRAS.keys(), word
        assert ours or name in known_packages(), word


def test_files_that_the_documents_create_are_ignored_by_git() -> None:
    text = "".join(path.read_text() for path in DOCUMENTS)
    patterns = [r"relay init (\w[\w.-]+)", r"--token-file ([\w-][\w.-]+)", r"--dir (\w{2,})", r"--key (\w+\.pem)"]
    patterns += [r"--trace (\w+)", r"This is `(\w+\.py)`"]
    names = {name for pattern in patterns for name in re.findall(pattern, text)} - {"DIR", "FILE"}
    names |= {f"{Path(name).stem}.tokens.toml" for name in names if name.endswith(".toml")}  # the tokens of a relay
    assert {"relay.toml", "token", "exit-token", "messages", "new.pem", "traces", "producer.py", "listener.py"} <= names
    ignored = pathspec.PathSpec.from_lines("gitignore", (ROOT / ".gitignore").read_text().splitlines())
    for name in names:
        assert ignored.match_file(name) or ignored.match_file(f"{name}/"), name
        assert not ignored.match_file(f"tunnel/{name}/file"), f"{name} would leave sources out"
