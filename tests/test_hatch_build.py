"""The build hook: what it needs, what it says if that is missing, when it does nothing. `make test-install` builds."""

import importlib.util
import sysconfig
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = importlib.util.spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def built(hook: ModuleType, version: str) -> dict[str, Any]:
    data: dict[str, Any] = {"force_include": {}}
    hook.CompiledHook(str(ROOT), {}, None, None, "", "wheel").initialize(version, data)
    return data


def test_an_editable_install_compiles_nothing(hook: ModuleType) -> None:
    assert built(hook, "editable") == {"force_include": {}}


def test_a_missing_compiler_is_said_before_anything_is_done(hook: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    with pytest.raises(RuntimeError, match=r"because no-such-compiler does not exist: .*apt-get install gcc") as caught:
        built(hook, "standard")
    assert "install without HATCH_BUILD_HOOKS_ENABLE" in str(caught.value)


def test_missing_headers_are_said(hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    hook.require_compiler()
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(RuntimeError, match=r"Python\.h does not exist: .*python3-dev"):
        hook.require_compiler()


def test_the_hook_says_what_takes_minutes_before_it_begins(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    said: list[str] = []

    def compile_(copy: Path, modules: list[str]) -> list[Path]:
        said.append(capsys.readouterr().err)
        return []

    monkeypatch.setattr(hook, "require_compiler", lambda: None)
    monkeypatch.setattr(hook, "copy_packages", lambda *arguments: ["a.py", "b.py"])
    monkeypatch.setattr(hook, "_compile", compile_)
    config: Any = SimpleNamespace(packages=[])
    made = hook.CompiledHook(str(ROOT), {}, config, None, "", "wheel")
    made.initialize("standard", {"force_include": {}})
    made.finalize("standard", {}, "")
    assert said == ["tunnel: compiling 2 modules, which takes some five minutes of one processor ...\n"]
