"""What people need who join the project: hooks, an editor's settings, templates. Each agrees with the checks."""

import configparser
import re
import tomllib
from pathlib import Path
from typing import Any

import yaml

from tests.prose import COLUMNS_MAX

ROOT = Path(__file__).resolve().parents[1]
HOOK_KEYS = {"id", "name", "entry", "language", "types_or", "files", "pass_filenames"}


def hooks() -> list[dict[str, Any]]:
    config = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert set(config) == {"repos"}
    (repo,) = config["repos"]
    assert (set(repo), repo["repo"]) == ({"repo", "hooks"}, "local")
    return list(repo["hooks"])


def test_the_hooks_run_the_checks_of_make_lint() -> None:
    recipe = (ROOT / "Makefile").read_text().split("\nlint: ")[1].split("\n\n")[0]
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in recipe.splitlines()[1:]]
    assert [hook["entry"].replace(" --force-exclude", "") for hook in hooks()] == commands


def test_the_hooks_are_valid() -> None:
    for hook in hooks():
        assert set(hook) <= HOOK_KEYS
        assert hook["language"] == "system"
        re.compile(hook.get("files", ""))
    by_id = {hook["id"]: hook for hook in hooks()}
    assert len(by_id) == len(hooks())
    assert by_id["mypy"]["pass_filenames"] is False  # one file alone is checked in another way than all of them
    assert re.search(by_id["prose"]["files"], "docs/PROTOCOL.md")


def test_the_editor_keeps_the_widths_that_the_checks_demand() -> None:
    parser = configparser.ConfigParser(strict=True)
    parser.read_string("[top]\n" + (ROOT / ".editorconfig").read_text())
    width = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["ruff"]["line-length"]
    assert parser.getint("*.{py,pyi}", "max_line_length") == width
    assert parser.getint("*.md", "max_line_length") == COLUMNS_MAX
    assert parser.get("Makefile", "indent_style") == "tab"


def test_templates_of_issues_have_a_head() -> None:
    templates = sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.md"))
    assert len(templates) > 1
    for template in templates:
        head = yaml.safe_load(template.read_text().split("---\n")[1])
        assert set(head) == {"name", "about"}


def test_the_release_procedure_names_targets_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"\bmake ([a-z-]+)", (ROOT / "RELEASING.md").read_text()))
    assert {"test", "test-compiled", "pyz"} <= named <= targets
