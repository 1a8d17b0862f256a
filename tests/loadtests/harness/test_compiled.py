"""The choice of the compiled build for a process, when one is requested."""

import os
from pathlib import Path

import pytest

from loadtests.harness.compiled import NotCompiledError, compiled_environment, wants_compiled
from loadtests.harness.tree import PACKAGES


def tree(root: Path, *, built_after_s: float | None) -> Path:
    for name in PACKAGES:
        (root / name).mkdir(parents=True)
        source = root / name / "module.py"
        source.touch()
        os.utime(source, (1000, 1000))
    if built_after_s is not None:
        stamp = root / "build" / "compiled" / ".stamp"
        stamp.parent.mkdir(parents=True)
        stamp.touch()
        os.utime(stamp, (1000 + built_after_s, 1000 + built_after_s))
    return root


def test_a_build_precedes_the_sources_in_every_working_directory(tmp_path: Path) -> None:
    environment = compiled_environment(tree(tmp_path, built_after_s=1))
    assert environment["PYTHONPATH"].split(os.pathsep) == [str(tmp_path / "build" / "compiled"), str(tmp_path)]
    assert environment["PYTHONSAFEPATH"] == "1"
    assert wants_compiled(environment)


@pytest.mark.parametrize(
    ("built_after_s", "why"), [(None, "there is no compiled build: run make compiled"), (-1, "older than the sources")]
)
def test_no_build_or_an_old_one_is_an_error(tmp_path: Path, built_after_s: float | None, why: str) -> None:
    with pytest.raises(NotCompiledError, match=why):
        compiled_environment(tree(tmp_path, built_after_s=built_after_s))


def test_the_compiled_build_is_used_only_on_request() -> None:
    assert not wants_compiled({})
    assert not wants_compiled({"TUNNEL_COMPILED": "0"})
