"""Tunnel as people install it, in bare environments: plain, with an extra, compiled, from an sdist.

These tests fetch packages from the index, and compile: `make test-install`. Without a network they are skipped; under
REQUIRE_REAL=1 they fail.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import subprocess
import sys
import tarfile
import threading
import zipfile
from contextlib import ExitStack
from pathlib import Path

import pytest

from loadtests.harness.processes import Process, says_event
from loadtests.harness.tree import ROOT
from tests.client.rig import Background, echo
from tests.install.rig import (
    COMMANDS,
    PYPROJECT,
    PYTHON,
    Bare,
    copy_of,
    image_files,
    other_python,
    subcommands,
    tracked_files,
    wheel_settings,
)
from tests.rig import FILES
from tunnel import __version__

COMPILED_GROUP = pytest.mark.xdist_group("compiled")
OTHERS_GROUP = pytest.mark.xdist_group("others")
TRANSLATE = Path(__file__).with_name("translate.py")
HOOK_PACKAGES: list[str] = wheel_settings()["hooks"]["custom"]["dependencies"]
BODY = os.urandom(4_000_000)

pytestmark = [pytest.mark.timeout(1700), pytest.mark.skipif(sys.platform != "linux", reason="it reads Linux's /proc")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("install") / "a folder with spaces"


@pytest.fixture(scope="module")
def builder(folder: Path) -> Bare:
    """An environment that builds, with pip alone. It shows whether the package index can be reached."""
    found = Bare(folder / "builder")
    try:
        found.pip("download", "--no-deps", "--dest", folder, HOOK_PACKAGES[0])
    except AssertionError as error:
        message = f"the package index cannot be reached: {error}"
        pytest.fail(message) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(message)
    return found


@pytest.fixture(scope="module")
def sdist(folder: Path, builder: Bare) -> Path:
    """The sdist, as a folder that was unpacked from it."""
    packer = Bare(folder / "packer")
    packer.pip("install", *PYPROJECT["build-system"]["requires"])
    source = copy_of(tracked_files(), folder / "repository")
    packer.run(packer.command("hatchling"), "build", "-t", "sdist", "-d", folder / "sdist", directory=source)
    (packed,) = (folder / "sdist").glob("*.tar.gz")
    with tarfile.open(packed) as archive:
        # Where the attribute exists, it must be set; `extractall` has no such parameter before Python 3.11.4.
        archive.extraction_filter = getattr(tarfile, "data_filter", None)
        archive.extractall(folder / "sdist")
    (unpacked,) = (path for path in (folder / "sdist").iterdir() if path.is_dir())
    return unpacked


@pytest.fixture(scope="module")
def compiled_wheel(builder: Bare) -> Path:
    """Built in a bare environment, with the newest mypy that pip finds within the hook's range; kept while the sources
    stay the same."""
    subprocess.run(["make", "build/wheel/.stamp"], cwd=ROOT, check=True)
    (wheel,) = (ROOT / "build" / "wheel").glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def compiled(folder: Path, compiled_wheel: Path) -> Bare:
    found = Bare(folder / "compiled")
    found.pip("install", compiled_wheel)
    return found


@pytest.fixture(scope="module")
def plain(folder: Path, builder: Bare) -> Bare:
    found = Bare(folder / "plain")
    found.pip("install", copy_of(image_files(), folder / "image"))
    return found


def try_every_command(installed: Bare) -> None:
    """Run each command and each of their commands with --help, and --version, in an empty home."""
    home = installed.home / "empty"
    home.mkdir()

    def said(name: str, *words: str) -> str:
        return installed.run(installed.command(name), *words, directory=home, HOME=str(home))

    found = []
    for name in COMMANDS:
        assert said(name, "--version") == f"{name} {__version__}\n"
        found += [(name, inner) for inner in subcommands(said(name, "--help"))]
    assert {("tunnel", "run"), ("tunnel-relay", "user"), ("tunnel-broker", "lag"), ("tunnel-traces", "report")} <= {
        *found
    }
    for name, inner in found:
        assert said(name, inner, "--help").startswith(f"usage: {name} {inner} ")
    assert list(home.iterdir()) == []


@OTHERS_GROUP
def test_the_sdist_has_every_file_of_the_repository(sdist: Path) -> None:
    packed = {str(path.relative_to(sdist)) for path in sdist.rglob("*") if path.is_file()}
    assert set(tracked_files()) - packed == set()
    assert packed - set(tracked_files()) == {"PKG-INFO"}


@OTHERS_GROUP
def test_what_the_sdist_installs_runs(folder: Path, sdist: Path) -> None:
    """The wheel that pip builds from it is the one from the sources, file by file."""
    (packed,) = sdist.parent.glob("*.tar.gz")
    installed = Bare(folder / "from sdist")
    installed.pip("install", packed)
    (packages,) = (installed.folder / "lib").glob("python3*/site-packages")
    sources = {
        str(path.relative_to(ROOT / place)): path.read_bytes()
        for place, package in ((".", "tunnel"), ("servlet", "tunnel_servlet"), ("client", "tunnel_client"))
        for path in (ROOT / place / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {name: (packages / name).read_bytes() for name in sources} == sources
    try_every_command(installed)


@COMPILED_GROUP
def test_the_wheel_that_a_bare_environment_compiled_has_every_compiled_module(compiled_wheel: Path) -> None:
    with zipfile.ZipFile(compiled_wheel) as archive:
        libraries = {name.partition(".")[0] for name in archive.namelist() if name.endswith(".so")}
        assert any(name.endswith(".dist-info/licenses/LICENSE") for name in archive.namelist())
    expected = {str(path.with_suffix("")).removeprefix("servlet/").removeprefix("client/") for path in FILES}
    assert {name for name in libraries if "__mypyc" not in name} == expected


@COMPILED_GROUP
def test_the_compiled_modules_are_those_that_run(compiled: Bare) -> None:
    names = [str(path.with_suffix("")).removeprefix("servlet/").replace("/", ".") for path in FILES]
    code = f"import importlib\nfor name in {names}: print(importlib.import_module(name).__file__)"
    files = compiled.run(compiled.command("python"), "-c", code).split("\n")
    assert [file for file in files if file and not file.endswith(".so")] == []
    assert len(files) == len(names) + 1


@COMPILED_GROUP
def test_the_compiled_commands_run(compiled: Bare) -> None:
    try_every_command(compiled)


def is_mapped(process: Process, installed: Bare) -> bool:
    """Return whether a running process has mapped the library of the compiled modules of this environment."""
    maps = Path(f"/proc/{process.pid}/maps").read_text()
    return re.search(rf"{re.escape(str(installed.folder))}/lib/[^\n]*__mypyc[^\n]*\.so\n", maps) is not None


def serving(installed: Bare, *words: str) -> Process:
    environment = {"PYTHONPATH": "", "HOME": str(installed.home), "XDG_RUNTIME_DIR": str(installed.home)}
    environment |= {"XDG_CONFIG_HOME": "", "XDG_CACHE_HOME": ""}
    environment |= dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), "")
    command = [installed.command(words[0]), *words[1:]]
    return Process(command, ready=says_event("listening"), environment=environment, directory=installed.home)


def url_of(relay: Process) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", relay.ready_line)
    assert found is not None, relay.output
    return found[0]


def send_all(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def transfer(installed: Bare, expected: bool) -> None:
    """Send BODY through relay and forward to a target that sends it back, and say whether both ran compiled."""
    with ExitStack() as stack:
        target = stack.enter_context(Background()).serve(echo)
        relay = stack.enter_context(serving(installed, "tunnel-relay", "serve", "--open", "--listen", "127.0.0.1:0"))
        url = url_of(relay)
        forward = stack.enter_context(
            serving(installed, "tunnel", "forward", f"0:127.0.0.1:{target}", "--relay", url, "--json")
        )
        port = re.search(r"127\.0\.0\.1:(\d+)", forward.ready_line)
        assert port is not None, forward.output
        with socket.create_connection(("127.0.0.1", int(port[1])), 600) as user:
            received = hashlib.sha256()
            sender = threading.Thread(target=send_all, args=(user, BODY))
            sender.start()
            while data := user.recv(1 << 16):
                received.update(data)
            sender.join()
        assert received.digest() == hashlib.sha256(BODY).digest()
        assert [is_mapped(process, installed) for process in (relay, forward)] == [expected, expected]


@COMPILED_GROUP
def test_a_transfer_runs_through_the_compiled_relay_and_forward(compiled: Bare) -> None:
    transfer(compiled, True)


@OTHERS_GROUP
def test_a_transfer_runs_through_the_plain_relay_and_forward(plain: Bare) -> None:
    transfer(plain, False)


@OTHERS_GROUP
def test_the_plain_commands_run(plain: Bare) -> None:
    try_every_command(plain)
    plain.pip("check")
    assert "\nAuthor: The tunnel authors\n" in plain.pip("show", PYPROJECT["project"]["name"])


@OTHERS_GROUP
def test_what_an_error_says_to_install_mends_it(plain: Bare) -> None:
    key = (plain.command("tunnel"), "expose", "--show-key")
    said = plain.run(*key, code=2)
    advice = re.search(r"run `(.+ -m pip install cryptography)`", said)
    assert advice is not None, said
    plain.run("sh", "-c", advice[1])
    assert plain.run(*key).startswith("SHA256:")


@OTHERS_GROUP
def test_an_extra_is_installed_from_the_folder_of_the_sources(folder: Path, plain: Bare) -> None:
    installed = Bare(folder / "with extra")
    installed.run(installed.command("pip"), "install", ".[encryption,proxy-auth]", directory=folder / "image")
    assert installed.run(installed.command("tunnel"), "expose", "--show-key").startswith("SHA256:")
    installed.run(installed.command("python"), "-c", "import spnego")


@OTHERS_GROUP
@pytest.mark.parametrize("version", ["3.11", "3.12", "3.13"])
def test_each_python_installs_it_and_translates_it(folder: Path, builder: Bare, version: str) -> None:
    """The oldest mypy of the range, on the files of the image; the other tests compile with the newest."""
    python = PYTHON if version == f"3.{sys.version_info[1]}" else other_python(version)
    if python is None:
        pytest.skip(f"Python {version} is not on this machine")
    source = copy_of(image_files(), folder / f"source {version}")
    installed = Bare(folder / f"python {version}", python)
    installed.pip("install", source)
    try_every_command(installed)
    oldest = [re.sub(r"(mypy) >= ([\d.]+).*", r"\1 == \2.*", line) for line in HOOK_PACKAGES]
    assert oldest != HOOK_PACKAGES
    installed.pip("install", "hatchling", *oldest)
    said = installed.run(installed.command("python"), TRANSLATE, source, folder / f"translated {version}")
    assert f"{len(FILES)} modules: " in said


@OTHERS_GROUP
def test_what_is_installed_and_set_beside_the_compiler_changes_nothing(folder: Path, builder: Bare) -> None:
    """This Python has every extra, and stubs that a bare environment lacks; its mypy is installed there, too."""
    source = copy_of(image_files(), folder / "translated source")
    names = "|".join(re.split(r"[^\w-]", line)[0] for line in [*HOOK_PACKAGES, "hatchling"])
    frozen = subprocess.run(
        [sys.executable, "-m", "pip", "freeze", "--all"], check=True, capture_output=True, text=True
    ).stdout
    bare = Bare(folder / "translator")
    bare.pip("install", *re.findall(rf"^(?:{names}|librt)==.*$", frozen, re.MULTILINE))
    expected = bare.run(bare.command("python"), TRANSLATE, source, folder / "translated bare").splitlines()[-1]
    misleading = folder / "misleading"
    (misleading / "msgspec").mkdir(parents=True)
    (misleading / "msgspec" / "__init__.pyi").write_text("class Struct: ...\n")
    variables = {**os.environ, "MYPYPATH": str(misleading), "MYPY_CACHE_DIR": str(misleading), "MYPY_NUM_WORKERS": "2"}
    command = [sys.executable, str(TRANSLATE), str(source), str(folder / "translated here")]
    found = subprocess.run(command, env=variables, check=True, capture_output=True, text=True, cwd=folder).stdout
    assert found.splitlines()[-1] == expected
    assert expected.startswith(f"{len(FILES)} modules: ")


@OTHERS_GROUP
def test_uninstalling_leaves_what_the_documents_say(folder: Path, plain: Bare) -> None:
    installed = Bare(folder / "uninstalled")
    installed.pip("install", folder / "image")
    tunnel = installed.command("tunnel")
    (installed.home / "token").write_text("not-a-token\n")
    (installed.home / "token").chmod(0o600)
    installed.run(tunnel, "login", "http://127.0.0.1:1", "--token-file", "token", "--no-check")
    installed.run(tunnel, "peers", "trust", "service:reports", f"SHA256:{'A' * 43}")
    installed.run(tunnel, "up", "--example")
    installed.pip("uninstall", "--yes", PYPROJECT["project"]["name"])
    assert [path for path in installed.folder.rglob("*tunnel*") if "pip" not in path.parts] == []
    left = {str(path.relative_to(installed.home)) for path in installed.home.rglob("*") if path.is_file()}
    left = {name for name in left if not name.startswith(".cache/pip/")} - {"token"}
    names = ("login.json", ".login.lock", "known_peers", ".known_peers.lock", "tunnel.toml")
    assert left == {f".config/tunnel/{name}" for name in names}
    section = (ROOT / "docs" / "COMMANDS.md").read_text().partition("\n## Uninstall\n")[2]
    assert [name for name in left if f"{Path(name).name}`" not in section] == []
