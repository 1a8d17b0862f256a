"""The wheel as a user has it: installed into an empty environment, beside files with the names of our folders.

Nothing is downloaded: the environment gets the installed files of the dependencies that the wheel declares, of the
dependencies of those, and nothing else.
"""

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterator
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

from loadtests.harness.processes import Process, says_event
from loadtests.harness.tree import ROOT
from tests.support.banner import page_server

USERS_FILE = "raise RuntimeError('this is a file of the user, which nothing of the tunnel may import')\n"
NAMES = ("client", "servlet", "loadtests", "tests")
PROGRAMS = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
TYPED = """
import asyncio
import socket

import tunnel
import tunnel_client
from tunnel_servlet.web.application import create_app


async def main() -> str:
    async with tunnel.attach("https://relay.example", token="t", proxy=None, carrier="poll") as t:
        reader, writer = await t.open_connection("db.internal", 5432, timeout=30.0)
        writer.write(b"question")
        await writer.drain()
        await writer.flush()
        server: tunnel.Server = await t.start_server(lambda r, w: None, "reports", backlog=128)
        server.close()
        stats: tunnel.AttachmentStats = t.stats()
        return stats.carrier


def sockets() -> bytes:
    settings = tunnel_client.configure(relay="https://relay.example", token=None, proxy=None, user_timeout=60.0)
    runtime = tunnel_client.Runtime(settings)
    with tunnel_client.create_connection(("db.internal", 5432), timeout=30.0, runtime=runtime) as sock:
        plain: socket.socket = sock
        plain.sendall(b"question")
        with tunnel_client.patch(hosts=["*.internal"]):
            return sock.recv(100)


version: str = tunnel.__version__
print(asyncio.run(main()), sockets(), version, create_app)
"""
UNTYPED = "import tunnel_client\n\ntunnel_client.configure(relai='x')\ntunnel_client.create_connection(5)\n"


class Installed:
    """An environment with the wheel, and a working directory of a user."""

    def __init__(self, folder: Path, wheel: Path) -> None:
        self.wheel = wheel
        self.environment = folder / "environment"
        self.work = folder / "work"
        venv.create(self.environment, with_pip=False)
        (packages,) = (self.environment / "lib").glob("python3*/site-packages")
        for name in needed(wheel):
            lend(name, packages)
        # The pip of the environment that runs the tests installs into the empty one: it creates the commands, too.
        self._pip("install", "--no-deps", "--no-index", str(wheel))
        self.work.mkdir()
        for name in NAMES:
            (self.work / f"{name}.py").write_text(USERS_FILE)

    def _pip(self, *arguments: str) -> None:
        command = [sys.executable, "-m", "pip", "--python", str(self.python), "--disable-pip-version-check", "--quiet"]
        subprocess.run([*command, *arguments], check=True, capture_output=True, text=True)

    @property
    def python(self) -> Path:
        return self.environment / "bin" / "python"

    def command(self, name: str) -> str:
        return str(self.environment / "bin" / name)

    def variables(self, **more: str) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        kept.pop("PYTHONPATH", None)
        return {**kept, "HOME": str(self.work), "XDG_RUNTIME_DIR": str(self.work), **more}

    def run(self, *command: str, **variables: str) -> str:
        """Return standard output; the command must exit with 0 and write nothing to standard error."""
        done = subprocess.run(
            command, cwd=self.work, env=self.variables(**variables), capture_output=True, text=True, timeout=120
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        return done.stdout


def needed(wheel: Path) -> set[str]:
    """Return the distributions that the wheel needs without any extra, and those that they need in turn."""
    with zipfile.ZipFile(wheel) as archive:
        (file,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        waiting = [
            line.partition(": ")[2] for line in archive.read(file).decode().splitlines() if "Requires-Dist" in line
        ]
    found: set[str] = set()
    while waiting:
        requirement = Requirement(waiting.pop())
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        if requirement.name not in found:
            found.add(requirement.name)
            waiting += metadata.requires(requirement.name) or []
    return found


def lend(name: str, packages: Path) -> None:
    """Symlink the top-level files of an installed distribution into `packages`."""
    for file in metadata.files(name) or ():
        top = file.parts[0]
        source = Path(str(metadata.distribution(name).locate_file(top)))
        if top not in ("..", "__pycache__") and not (packages / top).exists():
            (packages / top).symlink_to(source.resolve())


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    source.mkdir()
    for name in ("pyproject.toml", "README.md", "LICENSE", "hatch_build.py"):
        shutil.copy(ROOT / name, source)
    for name in ("tunnel", "servlet", "client"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    command = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        "--quiet",
        "--no-deps",
        "--no-build-isolation",
        "-w",
        folder,
        source,
    ]
    subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True)
    (wheel,) = folder.glob("*.whl")
    return Installed(folder, wheel)


@pytest.fixture
def relay(installed: Installed) -> Iterator[Process]:
    """Run an open relay with the command that the wheel installed."""
    command = [installed.command("tunnel-relay"), "serve", "--open", "--listen", "127.0.0.1:0"]
    relay = Process(command, ready=says_event("listening"), environment={"PYTHONPATH": ""}, directory=installed.work)
    with relay:
        yield relay


def url_of(relay: Process) -> str:
    found = re.search(r"http://127\.0\.0\.1:\d+", relay.ready_line)
    assert found is not None, relay.output
    return found[0]


def test_the_wheel_has_the_three_packages_and_nothing_else(installed: Installed) -> None:
    with zipfile.ZipFile(installed.wheel) as archive:
        names = archive.namelist()
    assert {name.partition("/")[0] for name in names if ".dist-info" not in name} == {
        "tunnel",
        "tunnel_client",
        "tunnel_servlet",
    }
    assert {f"{name}/py.typed" for name in ("tunnel", "tunnel_client", "tunnel_servlet")} <= set(names)
    assert "tunnel_client/borrowed/site/sitecustomize.py" in names


def test_the_packages_import_beside_user_files_named_like_our_folders(installed: Installed) -> None:
    code = "import tunnel, tunnel_client, tunnel_servlet; print(tunnel.__version__)"
    assert installed.run(str(installed.python), "-c", code) == f"{metadata.version('tunnel-transport')}\n"


def test_every_module_can_be_imported_without_an_extra(installed: Installed) -> None:
    """`tunnel.analysis` is the exception: it needs an extra."""
    code = """
import importlib, pkgutil, tunnel, tunnel_client, tunnel_servlet
for package in (tunnel, tunnel_client, tunnel_servlet):
    for found in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        if "analysis" not in found.name and not found.name.endswith("__main__"):
            importlib.import_module(found.name)
print("all")
"""
    assert installed.run(str(installed.python), "-c", code) == "all\n"


@pytest.mark.parametrize("name", ["tunnel", "tunnel-broker", "tunnel-relay", "tunnel-traces"])
def test_the_commands_print_name_version_and_help(installed: Installed, name: str) -> None:
    assert installed.run(installed.command(name), "--version") == f"{name} {metadata.version('tunnel-transport')}\n"
    assert "exit codes: 0 ok" in " ".join(installed.run(installed.command(name), "--help").split())


def test_both_programs_of_the_readme_that_need_a_relay_run(installed: Installed, relay: Process) -> None:
    assert len(PROGRAMS) == 2
    (installed.work / "token").write_text("t")
    with page_server() as port:
        for program in PROGRAMS:
            text = program.replace("http://127.0.0.1:8080", url_of(relay)).replace(
                '127.0.0.1", 8000', f'127.0.0.1", {port}'
            )
            (installed.work / "program.py").write_text(text)
            said = installed.run(str(installed.python), "program.py", TUNNEL_RELAY=url_of(relay))
            assert said.startswith("HTTP/1.0 200 OK")
            assert said.endswith("\npage\n")


def test_an_unmodified_program_runs_through_the_tunnel(installed: Installed, relay: Process) -> None:
    with ExitStack() as stack:
        port = stack.enter_context(page_server())
        shutil.copy(ROOT / "examples" / "fetch.py", installed.work)
        options = ["--quiet", "--relay", url_of(relay), "--hosts", "localhost", "--"]
        command = [installed.command("tunnel"), "run", *options]
        fetch = [str(installed.python), "fetch.py", f"http://localhost:{port}/"]
        assert installed.run(*command, *fetch) == "status 200\nbytes 4\n"


def test_a_user_program_type_checks_strictly(installed: Installed) -> None:
    (installed.work / "typed.py").write_text(TYPED)
    (installed.work / "untyped.py").write_text(UNTYPED)
    mypy = [sys.executable, "-m", "mypy", "--strict", "--python-executable", str(installed.python), "--cache-dir=cache"]
    assert "Success" in installed.run(*mypy, "typed.py")
    done = subprocess.run([*mypy, "untyped.py"], cwd=installed.work, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "Unexpected keyword argument" in done.stdout
    assert "incompatible type" in done.stdout
