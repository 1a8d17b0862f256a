"""Commands with odd arguments: each ends with one line that names the argument, never with a traceback."""

from pathlib import Path
from typing import Any

import pytest

from tests.client.rig import Rig
from tunnel_client.cli.main import main

NO_UTF8 = "a\udcff"  # how a byte that is not UTF-8 appears in sys.argv
LONG = "a" * 300

CASES = [
    (["forward", "9000:a:1", "9000:b:1"], "127.0.0.1:9000 -> a:1 and 127.0.0.1:9000 -> b:1 have the same local port"),
    (["forward", "*:9000:a:1", "9000:b:1"], "have the same local port"),
    (["forward", "udp/9000:a:1", "udp/9000:b:1"], "have the same local port"),
    (["forward", f"9000:{NO_UTF8}:1"], r"'a\udcff' is not a host"),
    (["forward", f"9000:{NO_UTF8}"], r"'a\udcff' is not a host"),
    (["forward", f"9000:{LONG}:1"], "aaa...' is not a host"),
    (["connect", f"{NO_UTF8}:1"], r"'a\udcff' is not a host: write HOST:PORT"),
    (["connect", f"{LONG}:1"], "aaa...' is not a host"),
    (["connect", LONG], "aaa...' is not a host"),
    (["connect", "a b:1"], "'a b' is not a host"),
    (["connect", ""], "'' is not a target"),
    (["doctor", f"{NO_UTF8}:1"], "is not a host"),
    (["expose", "", "127.0.0.1:1"], "'' is not the name of a service: write a name"),
    (["expose", LONG, "127.0.0.1:1"], "aaa...' is not the name of a service"),
    (["expose", NO_UTF8, "127.0.0.1:1"], "is not the name of a service"),
    (["expose", "a", f"{NO_UTF8}:1"], "is not a host: write HOST:PORT"),
    (["expose", "a", "127.0.0.1:1", "a", "127.0.0.1:2"], "the name a is given twice, for 127.0.0.1:1 and for 127.0.0"),
    (["expose", "db"], "'db' has no address: write NAME HOST:PORT for each service\n"),
    (["expose", "db:127.0.0.1:5432"], "for each service; did you mean db 127.0.0.1:5432?"),
    (["expose", "127.0.0.1:5432", "db"], "has its name first: did you mean db 127.0.0.1:5432?"),
    (["expose", "db", "5432"], "or unix:PATH; did you mean '127.0.0.1:5432'?"),
    (["forward", "9000", "db:5432"], "'9000' is not a forward specification"),
    (["forward", "9000", "db:5432"], "did you mean '9000:db:5432'?"),
    (["forward", "9000", "reports"], "did you mean '9000:reports'?"),
    (["connect", "ann@db:22"], "did you mean 'db:22'?"),
    (["proxy", "no-such-host.invalid:0"], "cannot listen on no-such-host.invalid:0: the name has no address"),
    (["forward", "no-such-host.invalid:0:a:1"], "the name has no address: bind one that this machine has, such as"),
    (["proxy", f"{NO_UTF8}:1"], "is not a host: write PORT"),
]


@pytest.fixture
def said(known: Rig, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(*arguments: str) -> tuple[int, str]:
        code = main(list(arguments))
        return code, capsys.readouterr().err

    return run


@pytest.mark.parametrize(("arguments", "text"), CASES)
def test_an_odd_argument_is_explained(arguments: list[str], text: str, said: Any) -> None:
    code, printed = said(*arguments)
    assert code == 2
    assert text in printed
    assert printed.count("\n") == 1
    assert "internal error" not in printed


@pytest.mark.parametrize("seconds", ["0.1", "1e12", "nan", "-1", "x"])
def test_an_invalid_user_timeout_is_refused(seconds: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["connect", "a:1", f"--user-timeout={seconds}"])
    assert stopped.value.code == 2
    assert f"argument --user-timeout: '{seconds}' is not" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "text"),
    [("--links=0", "from 1 to 4"), ("--links=x", "from 1 to 4"), ("--pull-interval=-1", "above 0.001")],
)
def test_invalid_numbers_of_links_and_pull_intervals_are_refused(
    option: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["connect", "a:1", option])
    assert stopped.value.code == 2
    assert text in capsys.readouterr().err


def test_ports_that_differ_in_address_or_protocol_can_be_forwarded_together(said: Any) -> None:
    code, printed = said("forward", "127.0.0.1:9001:a:1", "127.0.0.2:9001:a:1", "udp/9001:a:1", "0:b:1", "0:b:1", "x")
    assert code == 2
    assert "'x' is not a forward specification" in printed


def test_a_status_directory_that_cannot_be_read_is_explained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    assert main(["status", "--once"]) == 2
    assert "file/tunnel cannot be read: Not a directory: set XDG_RUNTIME_DIR" in capsys.readouterr().err


@pytest.mark.parametrize("size", ["0", "-1", "1.5", "x"])
def test_an_invalid_size_of_traces_is_refused(size: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["connect", "a:1", f"--trace-max={size}"])
    assert stopped.value.code == 2
    assert f"argument --trace-max: '{size}' is not a number of MiB above 0" in capsys.readouterr().err
