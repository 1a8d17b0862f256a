"""Each command in the documents is one that the programs accept: it is parsed as they parse it, and not run."""

import argparse
import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import tunnel.analysis.cli
import tunnel_client.cli.broker.main
import tunnel_client.cli.main
import tunnel_servlet.command.main
from loadtests.harness.tree import ROOT, python_path
from tests.document_commands import Command, commands_of, hidden_in, spans_of

FOLDERS = ("*.md", "docs/**/*.md", "examples/*/README.md", "tests/**/*.md")
DOCUMENTS = sorted(path for folder in FOLDERS for path in ROOT.glob(folder) if "node_modules" not in path.parts)
COMMANDS = [command for document in DOCUMENTS for command in commands_of(document)]
BYTES = ("tunnel attachment 1",)  # of the protocol; they look like a command
SPANS = [command for document in DOCUMENTS for command in spans_of(document) if command.line not in BYTES]
PARSERS = {
    "tunnel": tunnel_client.cli.main.make_parser,
    "tunnel-relay": tunnel_servlet.command.main.make_parser,
    "tunnel-broker": tunnel_client.cli.broker.main.make_parser,
    "tunnel-traces": tunnel.analysis.cli._parser,
}
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = set(re.findall(r"^([\w./-]+):(?!=)", MAKEFILE, re.MULTILINE))
VARIABLES = set(re.findall(r"\$\((\w+)\)", MAKEFILE)) | {"REQUIRE_REAL"}
# The complaint about a command that is not complete, or has a word in capitals in the place of a value.
INCOMPLETE = re.compile(
    r"the following arguments are required|unknown command [A-Z]+:|expected (one|at least one) argument|"
    r"argument [\w/-]+: .*'[A-Z]+'"
)
# Runs each command of a module as far as its arguments are accepted.
AS_FAR_AS_ACCEPTED = """
import argparse, json, runpy, sys
class Accepted(BaseException): pass
parse = argparse.ArgumentParser.parse_args
def accept(*arguments, **options):
    parse(*arguments, **options)
    raise Accepted
argparse.ArgumentParser.parse_args = accept
module, refused = sys.argv[1], []
for words in json.loads(sys.argv[2]):
    sys.argv = [module, *words]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except Accepted:
        continue
    except SystemExit:
        pass
    refused.append(words)
print(json.dumps(refused))
"""


def complaint(parser: argparse.ArgumentParser, words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> str:
    """Return what the parser says against the words; empty if it accepts them."""
    try:
        parser.parse_args(words)
    except SystemExit as ended:
        said = capsys.readouterr()
        return said.err if ended.code else ""
    return ""


def test_commands_were_found() -> None:
    """A rule that finds too little would make all other tests here pass."""
    for program in (*PARSERS, "make", "locust"):
        assert sum(command.program == program for command in COMMANDS) >= 2, program
    assert len({command.program for command in COMMANDS if command.is_module}) >= 8
    assert len(COMMANDS) > 150
    assert len(SPANS) > 150


@pytest.mark.parametrize("program", PARSERS)
def test_the_commands_of_the_project_are_accepted(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = PARSERS[program]()
    said = {
        f"{command.document}: {command.line}": complaint(parser, command.words, capsys)
        for command in COMMANDS
        if command.program == program
    }
    said = {line: text for line, text in said.items() if not ("[-" in line and INCOMPLETE.search(text))}  # a synopsis
    assert {line: text for line, text in said.items() if text} == {}


@pytest.mark.parametrize("program", PARSERS)
def test_commands_named_in_passing_have_options_that_exist(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    """They may lack arguments, or have words in capitals for them."""
    parser = PARSERS[program]()
    said = {
        f"{command.document}: {command.line}": complaint(parser, command.words, capsys)
        for command in SPANS
        if command.program == program
    }
    assert {line: text for line, text in said.items() if text and not INCOMPLETE.search(text)} == {}


def by_module() -> dict[str, list[Command]]:
    found: dict[str, list[Command]] = {}
    for command in COMMANDS:
        if command.is_module:
            found.setdefault(command.program, []).append(command)
    return found


@pytest.mark.parametrize("module", by_module())
def test_the_commands_of_modules_are_accepted(module: str) -> None:
    words = [command.words for command in by_module()[module]]
    done = subprocess.run(
        [sys.executable, "-c", AS_FAR_AS_ACCEPTED, module, json.dumps(words)],
        cwd=ROOT,
        env={"PYTHONPATH": python_path(), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stdout.splitlines()[-1:] == ["[]"], done.stdout + done.stderr


def test_the_targets_and_variables_of_make_exist() -> None:
    for command in [*COMMANDS, *SPANS]:
        if command.program == "make":
            settings = [word.partition("=")[0] for word in command.words if "=" in word]
            targets = [word for word in command.words if "=" not in word]
            assert [name for name in settings if name not in VARIABLES] == [], command
            assert [name for name in targets[:1] if name not in TARGETS] == [], command


def test_the_files_in_commands_exist() -> None:
    for command in COMMANDS:
        if command.program in ("pytest", "locust", "python"):
            paths = [word.partition("::")[0] for word in command.words[:2] if "/" in word and "://" not in word]
            assert [path for path in paths if not (ROOT / path).exists()] == [], command


def test_no_command_hides_in_a_comment_or_in_two_lines() -> None:
    found = {str(document): hidden_in(document) for document in DOCUMENTS}
    assert {document: lines for document, lines in found.items() if lines} == {}


def test_the_extras_that_pip_installs_from_a_checkout_exist() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {extra for document in DOCUMENTS for extra in re.findall(r"'?\.\[([\w-]+)\]'?", document.read_text())}
    assert named
    assert named <= set(extras)


# --- the rules by which commands are found


@pytest.mark.parametrize(
    ("block", "expected"),
    [
        ("tunnel forward 80:a:80   # why", [("tunnel", "forward", "80:a:80")]),
        ("$ .venv/bin/tunnel status", [("tunnel", "status")]),
        ("A=1 TUNNEL_TOKEN=... tunnel-relay serve -c f & relay=$!", [("tunnel-relay", "serve", "-c", "f")]),
        ("tar c . | tunnel connect a:1 > file", [("tunnel", "connect", "a:1")]),
        ("ssh -o ProxyCommand='tunnel connect %h:%p' a", [("tunnel", "connect", "%h:%p")]),
        ("python -m loadtests.stress \\\n  --crowd 1", [("loadtests.stress", "--crowd", "1")]),
        ("python examples/fetch.py http://a/", [("python", "examples/fetch.py", "http://a/")]),
        ("make sim SEEDS=1   one seed", [("make", "sim", "SEEDS=1")]),
        ("tunnel doctor [HOST:PORT] [--watch S]", [("tunnel", "doctor", "HOST:PORT", "--watch", "S")]),
        ("mkdir a && cd a && tunnel proxy 1080", [("tunnel", "proxy", "1080")]),
        ("python -m http.server\nthe tunnel forwards\n# tunnel up", []),
    ],
)
def test_commands_are_found_in_a_block(block: str, expected: list[tuple[str, ...]], tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(f"Text `tunnel up`\n\n```\n{block}\n```\n")
    assert [(command.program, *command.words) for command in commands_of(document)] == expected
    assert [command.words for command in spans_of(document)] == [("up",)]
    assert hidden_in(document) == []


@pytest.mark.parametrize(
    "block",
    [
        "# ten thousand .venv/bin/python -m\nloadtests.stress --processes 2",
        "# many .venv/bin/python -m loadtests.stress",
        "python -m\nloadtests.stress",
        "loadtests.stress --crowd 2",
    ],
)
def test_a_command_that_was_wrapped_is_noticed(block: str, tmp_path: Path) -> None:
    document = tmp_path / "a.md"
    document.write_text(f"```\n{block}\n```\n")
    assert hidden_in(document)
