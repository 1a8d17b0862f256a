"""The Makefile says what it installs before pip, which is quiet, takes its minutes."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Stands for Python: makes a .venv in which it is Python again, and says when it runs pip or anything else.
PYTHON = """#!/bin/sh
case "$2" in
  venv) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
  pip) mkdir -p build/compiled; echo "pip runs" ;;
  *) [ "$1" = -c ] || echo "runs $2${PYTHONDONTWRITEBYTECODE:+ without bytecode}" ;;
esac
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name in ("Makefile", "README.md", "pyproject.toml", "hatch_build.py"):
        shutil.copy(ROOT / name, tmp_path / name)
    for name in ("tunnel", "servlet", "client"):
        (tmp_path / name).mkdir()
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return tmp_path


def said(project: Path, *goals: str) -> list[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    command = ["make", *goals, f"PYTHON={project / 'python'}"]
    done = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True, timeout=60, check=True)
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("goal", "what"),
    [
        ("demo", "installing what the demo needs into .venv (94 MB"),
        ("setup", "installing everything for development into .venv (955 MB"),
        ("sim", "installing everything for development into .venv (955 MB"),
    ],
)
def test_a_target_says_what_it_installs_before_pip_runs(project: Path, goal: str, what: str) -> None:
    first, second, *_ = said(project, goal)
    assert first.startswith(what)
    assert second == "pip runs"
    assert not any("installing" in line for line in said(project, goal)), "nothing is installed twice"


def test_python_keeps_bytecode_although_the_environment_forbids_it(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it, each worker and each process of the tests compiles the same sources."""
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    assert "runs tests.sim" in said(project, "sim")


def test_all_tests_are_imported_once_before_six_workers_import_them(project: Path) -> None:
    lines = said(project, "-n", "test")
    imports, units = (next(line for line in lines if word in line) for word in ("--collect-only", "-n 6"))
    assert lines.index(imports) < lines.index(units)
    ignored = [word for word in imports.split() if word.startswith("--ignore")]
    assert ignored == [word for word in units.split() if word.startswith("--ignore")]
    assert "--ignore=tests/install" in ignored


def test_a_target_says_that_it_compiles_before_pip_runs(project: Path) -> None:
    lines = said(project, "compiled")
    assert lines.index("pip runs", 2) == 3
    assert lines[2].startswith("compiling the hot path")


def test_the_demo_says_nothing_of_installing_in_a_complete_environment(project: Path) -> None:
    said(project, "setup")
    assert said(project, "demo") == ["runs loadtests.demo"]
