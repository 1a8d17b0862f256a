"""The frame of a command: Ctrl-C at any stage, and standard streams that are closed, full or not read."""

import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tunnel.ground.exit_codes import INTERNAL, INTERRUPTED, OK, USAGE
from tunnel.process.program import run_program

ROOT = Path(__file__).parents[2]
PROGRAM = """
import importlib, sys
from tunnel.process.program import run_program
sys.exit(run_program("x", sys.argv[1]))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "a_command", raising=False)
    return tmp_path / "a_command.py"


@pytest.mark.parametrize(
    ("source", "code"),
    [
        ("raise KeyboardInterrupt", INTERRUPTED),  # Ctrl-C while the modules are imported
        ("def main(): raise KeyboardInterrupt", INTERRUPTED),
        ("def main(): raise BrokenPipeError", INTERNAL),
        ("def main(): raise SystemExit(2)", USAGE),
        ("def main(): return 6", 6),
    ],
)
def test_a_command_ends_with_an_exit_code_at_every_stage(
    source: str, code: int, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module.write_text(source)
    assert run_program("x", "a_command") == code
    assert capsys.readouterr() == ("", "")


def test_no_script_imports_its_command_before_ctrl_c_is_caught() -> None:
    scripts = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    places = [place.partition(":") for place in scripts.values()]
    imports = "\n".join(f"from {module} import {name}" for module, _, name in places)
    check = f"import sys\n{imports}\nprint(*sorted({{'argparse', 'asyncio', 'msgspec'}} & sys.modules.keys()))"
    assert len(places) == 4
    assert (
        subprocess.run([sys.executable, "-c", check], cwd=ROOT, env=environment(), capture_output=True).stdout == b"\n"
    )


def environment(*places: Path) -> dict[str, str]:
    folders = [ROOT, ROOT / "client", ROOT / "servlet", *places]
    variables = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return {**variables, "PYTHONPATH": os.pathsep.join(map(str, folders))}


def started(module: Path, redirections: str) -> tuple[int, str]:
    """Run the command in a shell with these redirections; return its exit code, and what is in the file `said`."""
    command = ["sh", "-c", f'exec "$0" "$@" {redirections}', sys.executable, "-c", PROGRAM, module.stem]
    folder = module.parent
    ended = subprocess.run(command, cwd=folder, env=environment(folder), timeout=60)
    return ended.returncode, (folder / "said").read_text()


FULL = "x: standard output cannot be written: No space left on device: write it elsewhere, or make room there\n"


@pytest.mark.parametrize(
    ("redirections", "code", "said"),
    [
        (">/dev/full 2>said", USAGE, FULL),
        (">&- 2>said", OK, ""),
        (">said 2>&-", OK, "out\n"),
        (">said 2>&- <&-", OK, "out\n"),
    ],
)
def test_a_stream_that_cannot_be_used_is_no_traceback(redirections: str, code: int, said: str, module: Path) -> None:
    module.write_text(
        "import sys\ndef main():\n  print('out'); print(sys.stdin.read(), end='', file=sys.stderr); return 0\n"
    )
    assert started(module, "</dev/null " + redirections) == (code, said)


def test_output_and_errors_that_cannot_be_written_are_an_error_of_usage(module: Path) -> None:
    module.write_text("def main():\n  print('out'); return 0\n")
    (module.parent / "said").touch()
    assert started(module, ">/dev/full 2>/dev/full") == (USAGE, "")


def test_ctrl_c_while_the_last_output_waits_for_its_reader_is_no_traceback(
    module: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unread(io.StringIO):
        def flush(self) -> None:
            raise KeyboardInterrupt

        def fileno(self) -> int:
            return file.fileno()

    module.write_text("def main(): return 0\n")
    with (module.parent / "said").open("w") as file:
        monkeypatch.setattr(sys, "stdout", Unread())
        assert run_program("x", "a_command") == INTERRUPTED
        file.write("left")  # what the interpreter would write at its end
    assert (module.parent / "said").read_text() == ""


def test_an_error_is_not_said_twice_if_the_output_is_full(module: Path) -> None:
    module.write_text("def main():\n  print('out'); return 3\n")
    assert started(module, ">/dev/full 2>said") == (3, "")


def test_output_that_is_not_read_is_no_traceback(module: Path) -> None:
    module.write_text("import sys\ndef main():\n  sys.stdin.read(); print('out'); return 0\n")
    reader, writer = os.pipe()
    command = [sys.executable, "-c", PROGRAM, module.stem]
    os.close(reader)
    try:
        ended = subprocess.run(
            command,
            cwd=ROOT,
            env=environment(module.parent),
            stdin=subprocess.DEVNULL,
            stdout=writer,
            stderr=-1,
            check=False,
        )
    finally:
        os.close(writer)
    assert (ended.returncode, ended.stderr) == (INTERNAL, b"")


def test_a_file_that_is_opened_later_does_not_get_the_place_of_a_closed_stream(module: Path) -> None:
    """Whatever writes to standard error by its number would otherwise write into that file."""
    module.write_text("import os\ndef main():\n  print(os.open('other', os.O_CREAT | os.O_WRONLY)); return 0\n")
    code, said = started(module, ">said 2>&- <&-")
    assert code == OK
    assert int(said) > 2
