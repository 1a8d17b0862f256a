"""The count of lines by folder."""

import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from tests import lines
from tests.lines import counted, group_of, main, table


@pytest.mark.parametrize(
    ("path", "group"),
    [
        ("tunnel/wire/ack.py", "product"),
        ("servlet/tunnel_servlet/config.py", "product"),
        ("client/tunnel_client/places.py", "product"),
        ("loadtests/bench/core.py", "loadtests"),
        ("tests/interop/node/main.mjs", "tests"),
        ("tests/interop/node/README.md", "documents"),
        ("docs/PROTOCOL.md", "documents"),
        ("docs/measurements/runs.md", "docs/measurements"),
        ("docs/" + "measurements.md", "documents"),
        ("docs/demo.svg", "others"),
        ("Makefile", "others"),
        ("testsuite/x.py", "others"),
    ],
)
def test_each_file_counts_in_one_group(path: str, group: str) -> None:
    assert group_of(path) == group


def test_the_table_sums_up_and_shows_the_change() -> None:
    before, after = counted("tunnel/a.py\x0010\ntests/a:b.py\x0030\n"), counted("tunnel/a.py\x0010\ntests/b.py\x0020")
    assert (before, after) == (Counter(product=10, tests=30), Counter(product=10, tests=20))
    shown = table(["old", "new"], [before, after]).splitlines()
    assert shown[0] == "| lines | old | new | change |"
    assert "| tests | 30 | 20 | -33.3% |" in shown
    assert "| documents | 0 | 0 | – |" in shown
    assert shown[-1] == "| all | 40 | 30 | -25.0% |"


@pytest.mark.skipif(shutil.which("git") is None, reason="needs git")
def test_commits_and_the_working_tree_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(lines, "ROOT", tmp_path)
    (tmp_path / "README.md").write_text("one\n\ntwo\n")
    (tmp_path / "image.png").write_bytes(b"\0\n\0\n")
    identity = ["-c", "user.name=a", "-c", "user.email=a@b"]
    for command in (["init", "-q"], ["add", "."], [*identity, "commit", "-qm", "x"]):
        subprocess.run(["git", *command], cwd=tmp_path, check=True)
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "new.py").write_text("1\n" * 7)
    assert main(["HEAD"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "| all | 3 |"
    assert main([]) == 0
    assert "| tests | 7 |" in capsys.readouterr().out
    with pytest.raises(SystemExit, match=r"git cannot count the lines of absent: "):
        main(["absent"])
