"""Names for endpoints that were given none: one that starts again has the name of its predecessor, and two that run at
the same time have different names."""

import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.harness.tree import python_path
from tunnel import endpoint_names
from tunnel.endpoint_names import OwnName

RELAY = "https://relay.example"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setattr(endpoint_names, "gethostname", lambda: "build-7")
    return tmp_path / "tunnel" / "names"


def test_an_endpoint_that_starts_again_has_the_name_of_its_predecessor() -> None:
    with OwnName("exit", RELAY) as first:
        name = first.text
    assert name.startswith("build-7-exit-")
    with OwnName("exit", RELAY) as second:
        assert second.text == name


def test_endpoints_that_run_at_the_same_time_have_different_names_and_keep_them() -> None:
    with OwnName("exit", RELAY) as one, OwnName("exit", RELAY) as other, OwnName("exit", RELAY) as third:
        names = [one.text, other.text, third.text]
    assert len(set(names)) == 3
    with OwnName("exit", RELAY) as one, OwnName("exit", RELAY) as other:
        assert [one.text, other.text] == names[:2]


def test_relays_kinds_and_tasks_have_names_of_their_own() -> None:
    with OwnName("exit", RELAY) as one:
        pass
    others = OwnName("exit", "https://other.example"), OwnName("expose", RELAY), OwnName("exit", RELAY, "reports")
    with others[0], others[1], others[2]:
        assert one.text not in [other.text for other in others]
        with OwnName("exit", RELAY) as again:  # the locks of the others do not shift it
            assert again.text == one.text


def test_a_process_that_was_killed_gives_its_name_free(home: Path) -> None:
    code = (
        f"from tunnel.endpoint_names import OwnName; n = OwnName('exit', '{RELAY}').__enter__(); print(n.text); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={"XDG_CONFIG_HOME": str(home.parent.parent), "PYTHONPATH": python_path()},
    ) as killed:
        assert killed.stdout is not None
        theirs = killed.stdout.readline().strip()
        with OwnName("exit", RELAY) as mine:
            assert mine.text.rpartition("-")[2] != theirs.rpartition("-")[2]
        killed.kill()
        killed.wait()
        with OwnName("exit", RELAY) as heir:
            assert heir.text.rpartition("-")[2] == theirs.rpartition("-")[2]


def test_a_file_that_was_damaged_is_written_again(home: Path) -> None:
    with OwnName("exit", RELAY):
        pass
    (file,) = home.iterdir()
    file.write_bytes(b"\xff" * 5000)
    with OwnName("exit", RELAY) as one:
        name = one.text
    assert len(name) < 40
    with OwnName("exit", RELAY) as again:
        assert again.text == name


@pytest.mark.parametrize("obstacle", ["a file", "no home"])
def test_without_a_directory_the_name_of_the_machine_has_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, obstacle: str
) -> None:
    if obstacle == "a file":
        (tmp_path / "tunnel").write_text("in the way")
    else:

        def homeless() -> Path:
            raise RuntimeError("Could not determine home directory.")

        monkeypatch.delenv("XDG_CONFIG_HOME")
        monkeypatch.setattr(Path, "home", homeless)
    with OwnName("exit", RELAY) as name:
        assert name.text == "build-7-exit"


@pytest.mark.parametrize("host", ["ü" * 300, "a b\n", ""])
def test_the_name_of_any_machine_fits(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    monkeypatch.setattr(endpoint_names, "gethostname", lambda: host)
    with OwnName("exit", RELAY) as name:
        assert 0 < len(name.text.encode()) <= 100
        assert name.text.isascii()
        assert not any(map(str.isspace, name.text))
