"""The units of systemd for relay, exit, broker and client: what they run, what they may do, what they never hold."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import tunnel_client.cli.broker.main as broker
import tunnel_client.cli.main as client
import tunnel_servlet.command.main as relay
from loadtests.harness.tree import ROOT, python_path
from tests.process.rig import command_of, own_user, settings_of
from tunnel.process import unit_files
from tunnel.process.service_manager import STOP_SPARE_S
from tunnel.process.units import DRAIN_S, WRITTEN_BY, Unit, quoted, unit_text

UNITS = ("tunnel-relay", "tunnel-exit", "tunnel-broker", "tunnel")
SECRET = "tnl_" + "s" * 40
EXPOSURE_MAX = 12  # of systemd-analyze, in tenths
URL = "https://relay.example"
EXIT = ("exit", "--relay", URL, "--allow", "a:1", "--token-file")


@pytest.fixture(autouse=True)
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """Change into a folder with the files of all four commands; it counts as one that a unit sees."""
    monkeypatch.setattr(unit_files, "HIDDEN", ("/nowhere",))
    monkeypatch.setattr(unit_files, "program_files", lambda unit: [])  # all can run it, wherever the tests run
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    folder = tmp_path / "my files"
    folder.mkdir()
    monkeypatch.chdir(folder)
    assert relay.main(["init", "relay.toml"]) == 0
    for name in ("token", "key.pem", "headers"):
        Path(name).write_text(f"{SECRET}\n")
        Path(name).chmod(0o600)
    Path("exit.toml").write_text('[everyone]\nconnect = ["db.internal:5432"]\n')
    Path("up.toml").write_text(f'[relay]\nurl = "{URL}"\n[proxy]\nweb = "1080"\n')
    for name in ("exit.toml", "up.toml"):
        Path(name).chmod(0o644)
    capsys.readouterr()
    return folder


def install(name: str, scope: str, *options: str) -> int:
    """Install the unit of this name, with these options of install-unit."""
    runs: dict[str, tuple[Callable[[list[str]], int], list[str]]] = {
        "tunnel-relay": (relay.main, ["serve", "-c", "relay.toml"]),
        "tunnel-exit": (
            relay.main,
            ["exit", "--relay", URL, "--token-file", "token", "--key=key.pem", "--header", "@headers", "-cexit.toml"],
        ),
        "tunnel-broker": (
            broker.main,
            [
                *("serve", "--relay", URL, "--token-file", "token", "--service", "orders"),
                *("--dir", "/var/lib/tunnel-broker/messages"),
            ],
        ),
        "tunnel": (client.main, ["up", "-c", "up.toml", "--token-file", "token"]),
    }
    main, words = runs[name]
    if name == "tunnel-relay" and scope == "--system":
        options = ("--run-as", own_user(Path("relay.toml"), Path("relay.tokens.toml")), *options)
    return main(["install-unit", scope, *options, *words])


@pytest.fixture(params=[(name, scope) for name in UNITS for scope in ("--system", "--user")], ids="".join)
def printed(request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]) -> tuple[str, str, str]:
    """The name of a unit, its scope, and its text."""
    name, scope = request.param
    assert install(name, scope, "--print") == 0
    return name, scope, capsys.readouterr().out


def test_every_unit_runs_a_command_that_its_program_accepts(printed: tuple[str, str, str], place: Path) -> None:
    name, _, text = printed
    words = command_of(text)
    parser = {"tunnel": client.make_parser, "tunnel-broker": broker.make_parser}.get(name, relay.make_parser)()
    assert words[:2] == [sys.executable, "-m"]
    arguments = parser.parse_args(words[3:])
    assert arguments.run
    if name != "tunnel-broker":
        assert Path(arguments.config).parent == place


def test_no_unit_shows_a_secret_and_those_of_the_system_get_them_as_credentials(printed: tuple[str, str, str]) -> None:
    name, scope, text = printed
    settings = settings_of(text)
    assert SECRET not in text
    assert "TOKEN" not in text
    expected = {"tunnel-relay": [], "tunnel-exit": ["token", "key", "header"]}.get(name, ["token"])
    held = [value.partition(":")[0] for value in settings.get("LoadCredential", [])]
    assert held == (expected if scope == "--system" else [])
    for credential in held:
        assert f"${{CREDENTIALS_DIRECTORY}}/{credential}" in settings["ExecStart"][0]


def test_every_unit_tells_readiness_and_has_the_time_to_drain(printed: tuple[str, str, str]) -> None:
    name, scope, text = printed
    settings = settings_of(text)
    assert settings["Type"] == ["notify"]
    assert settings["WatchdogSec"] == ["30"]
    stop = {"tunnel-broker": 30, "tunnel": 15}.get(name, DRAIN_S) + STOP_SPARE_S
    assert settings["TimeoutStopSec"] == [str(stop)]
    assert settings["Restart"] == ["on-failure"]
    assert settings["RestartPreventExitStatus"] == ["2" if name in ("tunnel-relay", "tunnel") else "2 4 5"]
    assert ("User" in settings) == (scope == "--system" and name == "tunnel-relay")
    assert ("DynamicUser" in settings) == (scope == "--system" and name != "tunnel-relay")


@pytest.mark.real("systemd-analyze")
def test_systemd_accepts_every_unit(printed: tuple[str, str, str], tmp_path: Path) -> None:
    name, scope, text = printed
    unit = tmp_path / f"{name}.service"
    unit.write_text(text)
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_LOG_TARGET": "console"}
    found = subprocess.run(
        ["systemd-analyze", "verify", scope, str(unit)], env=environment, capture_output=True, text=True, timeout=60
    )
    assert (found.returncode, found.stdout + found.stderr) == (0, "")


@pytest.mark.real("systemd-analyze")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_finds_little_that_a_unit_of_the_system_may_do(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install(name, "--system", "--print") == 0
    unit = tmp_path / f"{name}.service"
    unit.write_text(capsys.readouterr().out)
    found = subprocess.run(
        ["systemd-analyze", "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", str(unit)],
        capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert found.returncode == 0, found.stdout
    said = re.search(r"exposure level for \S+: (\d+\.\d)", found.stdout)
    assert said, found.stdout
    assert f"**{said[1]}**" in (ROOT / "docs" / "OPERATIONS.md").read_text()


@pytest.mark.real("systemd-analyze", "strace")
def test_a_relay_makes_no_system_call_that_its_unit_forbids(place: Path) -> None:
    """Also with memory that is never both written and run, and as it starts, answers and ends."""
    trace = place / "calls"
    code = "import sys; from tunnel_servlet.command.main import main; sys.exit(main(sys.argv[1:]))"
    runs = ["serve", "-c", "relay.toml", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"]
    process = subprocess.Popen(
        ["strace", "-f", "-qq", "-o", str(trace), sys.executable, "-c", f"{_NO_EXEC_GAIN}{code}", *runs],
        env={**os.environ, "PYTHONPATH": python_path()}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    with process:
        assert process.stderr is not None
        said = [process.stderr.readline(), process.stderr.readline()]
        assert '"admin": true' in said[1], said
        relay_id = trace.read_text().split()[0]
        os.kill(int(relay_id), 15)
        assert process.wait(60) == 0, process.stderr.read()
    made = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.MULTILINE))
    text = unit_text(Unit(name="a", what="a", command=["/a"], is_system=True))
    allowed = set[str]()
    for value in settings_of(text)["SystemCallFilter"]:
        named = {call for group in value.lstrip("~").split() for call in _calls_of(group)}
        allowed = allowed - named if value.startswith("~") else allowed | named
    assert len(made) > 20
    assert made - allowed == set()


_NO_EXEC_GAIN = """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(65, 1, 0, 0, 0) == 0 or ctypes.get_errno() == errno.EINVAL  # PR_SET_MDWE, since Linux 6.3
"""


def _calls_of(group: str) -> set[str]:
    text = subprocess.run(
        ["systemd-analyze", "syscall-filter", group], capture_output=True, text=True, timeout=60, check=True
    ).stdout
    words = [line.strip() for line in text.splitlines() if line.startswith(" ")]
    inner = [word for word in words if word.startswith("@")]
    return {word for word in words if word[0].isalpha()}.union(*map(_calls_of, inner))


# --- what is written


def test_a_unit_is_written_and_replaced_but_nothing_else_is(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = Path(os.environ["HOME"]) / ".config" / "systemd" / "user" / "tunnel.service"
    assert install("tunnel", "--user") == 0
    assert file.read_text().startswith(WRITTEN_BY)
    assert file.stat().st_mode & 0o777 == 0o644
    said = capsys.readouterr().out
    assert said.splitlines() == [
        f"{file} is written; now run:",
        "  systemctl --user daemon-reload",
        "  systemctl --user enable --now tunnel",
    ]
    assert install("tunnel", "--user") == 0
    file.write_text("[Service]\nExecStart=/mine\n")
    capsys.readouterr()
    assert install("tunnel", "--user") == 2
    assert "is not from this command: move it away, or give another --name" in capsys.readouterr().err
    assert file.read_text() == "[Service]\nExecStart=/mine\n"
    assert [path.name for path in file.parent.iterdir()] == ["tunnel.service"]


def test_the_result_as_json(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert install("tunnel", "--user", "--json", "--to", str(place), "--name", "work") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["file"] == str(place / "work.service")
    assert found["text"] == (place / "work.service").read_text()
    assert found["next"] == ["systemctl --user daemon-reload", "systemctl --user enable --now work"]
    assert install("tunnel", "--user", "--json", "--print") == 0
    assert json.loads(capsys.readouterr().out)["file"] is None


@pytest.mark.parametrize(
    ("main", "words", "said"),
    [
        (relay.main, ["exit", "--relay", URL, "--allow", "a:1"], "needs --relay URL and --token-file FILE"),
        (relay.main, [*EXIT, "token", "--header", "X: 1"], "all users can read a unit: put the header into a file"),
        (relay.main, [*EXIT, "token", "--proxy", "http://u:p@a"], "all users can read a unit: put the URL into a file"),
        (relay.main, [*EXIT, "none"], "create it first"),
        (relay.main, [*EXIT, "token", "--relay", f"https://u:{SECRET}@a"], "--relay: all users can read a unit"),
        (relay.main, [*EXIT, "exit.toml"], "open to other users"),
        (relay.main, ["state"], "a unit cannot run 'state': name serve or exit"),
        (relay.main, ["serve", "-c", "none.toml"], "none.toml: no such file"),
        (broker.main, [], "name its command, as in `tunnel-broker install-unit serve --dir DIR`"),
        (broker.main, ["serve", "--dir", "messages"], "is not below /var/lib/tunnel-broker"),
        (broker.main, ["serve", "--dir", "/x", "--service", "a"], "needs --relay URL and --token-file FILE"),
        (client.main, ["forward", "1:a:2"], "a unit runs `tunnel up`, not forward"),
        (client.main, ["up"], "name it, as in up -c"),
        # Options of install-unit after the command of the unit
        (relay.main, ["serve", "-c", "x", "--print"], "--print is an option of install-unit: write it before serve"),
        (broker.main, ["serve", "--dir", "/x", "--run-as=me"], "before serve, as in install-unit --run-as ..."),
        (client.main, ["up", "--user"], "--user is an option of install-unit: write it before up"),
    ],
)  # fmt: skip
def test_a_unit_that_could_not_work_is_refused(
    main: Callable[[list[str]], int], words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["install-unit", "--system", "--print", *words]) == 2
    found = capsys.readouterr()
    assert said in found.err
    assert found.out == ""
    assert SECRET not in found.err


def test_no_setting_of_a_relay_adds_a_line_to_the_unit_that_root_installs(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("relay.toml").write_text(
        Path("relay.toml").read_text() + '\n[audit]\nfile = "/srv/x\\nExecStartPre=+/bin/sh\\n/a"\n'
    )
    assert install("tunnel-relay", "--system", "--print") == 2
    said = capsys.readouterr()
    assert "ExecStartPre" not in said.out
    assert "control character" in said.err


@pytest.mark.parametrize("what", ["command", "user", "writes", "credentials", "what"])
def test_the_text_of_a_unit_has_no_line_break_from_its_parts(what: str) -> None:
    evil = "/a\nExecStartPre=+/b"
    parts: dict[str, dict[str, object]] = {
        "command": {"command": ["/x", evil]},
        "user": {"user": evil},
        "writes": {"writes": [Path(evil)]},
        "credentials": {"credentials": {"token": Path(evil)}},
        "what": {"what": evil},
    }
    given: dict[str, object] = {"name": "n", "what": "w", "command": ["/x"], "is_system": True, **parts[what]}
    with pytest.raises(ValueError, match="control character"):
        unit_text(Unit(**given))  # type: ignore[arg-type]


def test_words_with_a_meaning_for_systemd_are_quoted() -> None:
    assert [quoted(word) for word in (";", "a;b", "#x", "plain/-_.:=@,+1", "", "a b", "%", 'a"b')] == [
        '";"',
        '"a;b"',
        '"#x"',
        "plain/-_.:=@,+1",
        '""',
        '"a b"',
        '"%%"',
        '"a\\"b"',
    ]


def test_a_draft_of_a_unit_follows_no_link(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    other = place / "other"
    other.write_text("kept")
    folder = place / "units"
    folder.mkdir()
    (folder / f".tunnel.service.{os.getpid()}").symlink_to(other)
    assert install("tunnel", "--user", "--to", str(folder)) == 0
    assert other.read_text() == "kept"
    written = folder / "tunnel.service"
    assert not written.is_symlink()
    assert written.stat().st_mode & 0o777 == 0o644


def test_a_word_that_the_command_does_not_know_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        relay.main(["install-unit", "--print", "serve", "--lisen", "a"])
    assert ended.value.code == 2
    assert "did you mean --listen" in capsys.readouterr().err


def test_a_unit_of_the_system_sees_its_files(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("up.toml").chmod(0o600)
    assert install("tunnel", "--system", "--print") == 2
    assert "run `chmod o+r " in capsys.readouterr().err
    assert install("tunnel", "--system", "--print", "--run-as", own_user(Path("up.toml"))) == 0
    monkeypatch.setattr(unit_files, "HIDDEN", (str(Path.cwd().parent),))
    assert install("tunnel", "--system", "--print") == 2
    assert "folder for temporary files" in capsys.readouterr().err
    assert install("tunnel", "--user", "--print", "--run-as", "daemon") == 2
    assert "--run-as is for units of the system" in capsys.readouterr().err


def test_a_unit_needs_no_folder_before_its_first_start(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """systemd does not start a unit one of whose ReadWritePaths is missing."""
    assert install("tunnel-broker", "--system", "--print") == 0
    assert "ReadWritePaths" not in settings_of(capsys.readouterr().out)
    user = own_user(Path("relay.toml"), Path("relay.tokens.toml"))
    words = ["install-unit", "--system", "--print", "--run-as", user, "serve", "-c", "relay.toml", "--trace", "traces"]
    assert relay.main(words) == 2
    assert f"{place}/traces does not exist: create it for {user}" in capsys.readouterr().err
    Path("traces").mkdir()
    assert relay.main(words) == 0
    assert settings_of(capsys.readouterr().out)["ReadWritePaths"] == [f'"{place}" "{place}/traces"']


def test_systemd_makes_the_folders_of_sockets_below_run(capsys: pytest.CaptureFixture[str]) -> None:
    file = Path("relay.toml")
    lines = ['listen = ["unix:/run/front/relay.sock"]', 'admin = "unix:/run/tunnel-relay/inner/admin.sock"']
    kept = [line for line in file.read_text().splitlines() if not line.startswith(("listen", "admin"))]
    file.write_text("\n".join([*lines, *kept]))
    assert install("tunnel-relay", "--system", "--print") == 0
    settings = settings_of(capsys.readouterr().out)
    assert settings["RuntimeDirectory"] == ["tunnel-relay front tunnel-relay/inner"]
    assert settings["ReadWritePaths"] == [f'"{Path.cwd()}"']


def test_a_program_that_its_unit_could_not_run_is_refused(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = place / "venv" / "bin" / "tunnel"
    program.parent.mkdir(parents=True)
    program.touch()
    place.chmod(0o700)
    monkeypatch.setattr(unit_files, "program_files", lambda unit: [program])
    assert install("tunnel", "--system", "--print") == 2
    said = capsys.readouterr().err
    assert f"the user whom systemd makes up cannot run {program}, since " in said
    assert "install the program in a folder that is open to all, such as one below /opt" in said
    assert install("tunnel", "--system", "--print", "--run-as", pwd.getpwuid(os.geteuid()).pw_name) == 0


@pytest.mark.parametrize("what", ["program", "reads", "writes"])
def test_a_unit_sees_the_homes_where_its_files_are(
    what: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert install("tunnel", "--system", "--print") == 0
    assert settings_of(capsys.readouterr().out)["ProtectHome"] == ["yes"]
    file = Path("/home/nobody-has-this-name/file")
    if what == "program":  # its interpreter, for example
        monkeypatch.setattr(unit_files, "program_files", lambda unit: [file])
        assert install("tunnel", "--system", "--print") == 0
        text = capsys.readouterr().out
    else:
        unit = Unit(name="n", what="w", command=["/x"], is_system=True)
        text = unit_text(replace(unit, reads=[file]) if what == "reads" else replace(unit, writes=[file]))
    assert settings_of(text)["ProtectHome"] == ["read-only"]


def test_a_relay_runs_as_the_owner_of_its_files(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["install-unit", "--system", "--print"]
    if os.geteuid() == 0:
        assert relay.main(words) == 2
        assert "belongs to root, and a relay needs no root: run `useradd --system" in capsys.readouterr().err
    user = own_user(Path("relay.toml"))
    if os.geteuid() == 0:
        assert relay.main(words) == 2
        assert "run `chown daemon: " in capsys.readouterr().err
    own_user(Path("relay.tokens.toml"))
    assert relay.main(words) == 0
    settings = settings_of(capsys.readouterr().out)
    assert settings["User"] == [user]
    assert settings["ReadWritePaths"] == [f'"{Path.cwd()}"']
    assert relay.main([*words, "--run-as", "no-such-user"]) == 2
    assert "there is no user no-such-user: run `useradd --system" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ('listen = ["0.0.0.0:443"]', "CAP_NET_BIND_SERVICE"),
        ('public_http = ["0.0.0.0:80"]', "CAP_NET_BIND_SERVICE"),
        ('listen = ["127.0.0.1:8443"]', ""),
    ],
)
def test_only_a_relay_with_low_ports_may_open_them(
    line: str, expected: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file = Path("relay.toml")
    kept = [one for one in file.read_text().splitlines() if not one.startswith(line.partition(" ")[0])]
    file.write_text("\n".join([line, *kept, "[limits]", "drain_seconds = 400"]))
    assert install("tunnel-relay", "--system", "--print") == 0
    settings = settings_of(capsys.readouterr().out)
    assert settings["CapabilityBoundingSet"] == [expected]
    assert ("PrivateUsers" in settings) == (not expected)
    assert settings["TimeoutStopSec"] == [str(400 + STOP_SPARE_S)]


@pytest.mark.parametrize(("started", "program"), [("tunnel.pyz", "python"), ("tunnel", "/tunnel"), ("pytest", " -m ")])
def test_the_unit_runs_the_program_that_printed_it(
    started: str, program: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (place / started).touch()
    monkeypatch.setattr("sys.argv", [str(place / started)])
    assert client.main(["install-unit", "--user", "--print", "up", "-c", 'a $strange% "file".toml']) == 0
    (line,) = settings_of(capsys.readouterr().out)["ExecStart"]
    words = shlex.split(line)
    assert program in line
    assert words[-3:] == ["up", "-c", f'{place}/a $$strange%% "file".toml']
    assert (str(place / started) in words) == (started != "pytest")
