"""The first steps of the README and of docs/BROKER.md as they are written there, from an empty folder and home."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.tree import ROOT, python_path
from tests.pasting import PROGRAM, blocks, pasted, section

TIMEOUT_S = 60
MODULES = {"tunnel": "tunnel_client", "tunnel-relay": "tunnel_servlet", "tunnel-broker": "tunnel_client.cli.broker"}
SERVING = ("serve", "exit", "forward", "proxy", "expose")
RELOADED_S = 2.5  # a running relay applies changes of its files within two seconds, as the README says
ELSEWHERE = ("doctor", "run", "ssh")  # these need hosts of other networks
PORTS = {"5432:db": "0:db", "udp/5353:": "udp/0:", "proxy 1080": "proxy 0"}  # other programs may use these ports here


README = (ROOT / "README.md").read_text()


def lines() -> list[str]:
    """Return the lines of the README's section on use that are commands, and the rules that it refers to."""
    rules = blocks(section((ROOT / "docs" / "RELAY.md").read_text(), "## First rules"))[0]
    return [line for block in (*blocks(section(README, "## Use it")), rules) for line in block.splitlines()]


@pytest.mark.real("bash", "curl")
def test_the_lines_to_paste_work_on_one_machine(tmp_path: Path) -> None:
    install, paste, end = blocks(section(README, "## Try it"))
    assert install.splitlines()[-1] == "pip install ."
    assert "tunnel logout; " in end
    code, said = pasted(paste + end.replace("tunnel logout; ", ""), tmp_path)
    assert code == 0, said
    assert "Hello through the tunnel" in said.splitlines()
    assert [path.name for path in (tmp_path / "work").iterdir()] == ["try"]
    stored = json.loads((tmp_path / "home" / ".config" / "tunnel" / "login.json").read_text())
    assert stored["token"] == (tmp_path / "work" / "try" / "token").read_text().strip()


@pytest.mark.real("bash", "curl")
def test_the_programs_of_the_readme_run_beside_the_processes_of_the_paste(tmp_path: Path) -> None:
    _, start, end = blocks(section(README, "## Try it"))
    found = PROGRAM.findall(README)
    assert len(found) == 2
    for number, program in enumerate(found):
        (tmp_path / f"{number}.py").write_text(program)
    programs = [f"python {tmp_path / f'{number}.py'}" for number in range(len(found))]
    code, said = pasted("\n".join([start.rstrip("\n"), *programs, end]), tmp_path)
    assert code == 0, said
    assert said.splitlines().count("Hello through the tunnel") == 1 + len(found)
    assert not (tmp_path / "home" / ".config" / "tunnel" / "login.json").exists()


class Shell:
    """Runs the lines in a folder and a home of their own, with ports that are free."""

    def __init__(self, folder: Path, runtime: str) -> None:
        self.folder = folder
        home = folder / "home"
        home.mkdir()
        variables = ("TUNNEL_RELAY", "TUNNEL_TOKEN", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR", "http_proxy", "https_proxy")
        kept = {name: value for name, value in os.environ.items() if name not in variables}
        self.environment = {**kept, "HOME": str(home), "XDG_RUNTIME_DIR": runtime, "PYTHONPATH": python_path()}
        with hold_port() as relay, hold_port() as admin:
            self.ports = {":8080": f":{relay}", ":9080": f":{admin}"} | PORTS

    def words(self, line: str) -> list[str]:
        for ours, free in self.ports.items():
            line = line.replace(ours, free)
        program, *words = shlex.split(line, comments=True)
        return [sys.executable, "-m", MODULES[program], *words]

    def run(self, line: str) -> str:
        """Run a command to its end; return its output."""
        done = subprocess.run(
            self.words(line), cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=TIMEOUT_S
        )
        assert done.returncode == 0, f"{line}: {done.stderr}"
        return done.stdout

    @contextlib.contextmanager
    def serving(self, line: str) -> Iterator[None]:
        """Start a command that serves, and end it with SIGTERM."""
        started = subprocess.Popen(
            self.words(line), cwd=self.folder, env=self.environment, stderr=subprocess.PIPE, text=True
        )
        with started:
            assert started.stderr is not None
            try:
                said = [started.stderr.readline()]
                while said[-1] and '"listening"' not in said[-1] and not said[-1].startswith("attached to"):
                    said.append(started.stderr.readline())
                assert said[-1], f"{line}: {said}"
                yield
            finally:
                started.send_signal(signal.SIGTERM)
                assert started.wait(TIMEOUT_S) == 0, line

    def write_rules(self, rules: list[str]) -> None:
        """Replace the rules of the same names by these, and write free ports."""
        file = self.folder / "relay.toml"
        text = file.read_text()
        for rule in rules:
            name = rule.partition(" ")[0]
            head, table, own = text.partition("[users.")
            text = head + table + re.sub(rf"^{name} = .*$", rule, own, count=1, flags=re.MULTILINE)
        for ours, free in self.ports.items():
            text = text.replace(ours, free)
        file.write_text(text)


def test_every_line_that_works_on_one_machine_works_as_it_is_written(tmp_path: Path) -> None:
    found = lines()
    rules = [line for line in found if re.match(r"(connect|services|listen) = ", line)]
    commands = [line for line in found if line not in rules and not {*ELSEWHERE} & {*line.split()[:2]}]
    first = [line.split()[1] for line in commands if line.startswith("tunnel")][:5]
    assert first == ["init", "serve", "user", "exit", "login"]
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="q"))  # a path short enough for sockets
        shell = Shell(tmp_path, runtime)
        for line in commands:
            name = line.split()[1]
            if line.startswith("printf "):
                subprocess.run(["bash", "-c", line], cwd=tmp_path, check=True, timeout=TIMEOUT_S)
                continue
            if name == "exit":
                time.sleep(RELOADED_S)
            if name in SERVING:
                stack.enter_context(shell.serving(line))
                continue
            said = shell.run(line)
            if name == "init":
                shell.write_rules(rules)
        stored = json.loads((tmp_path / "home" / ".config" / "tunnel" / "login.json").read_text())
        assert stored["token"] == (tmp_path / "token").read_text().strip()
        for name in ("forward", "proxy", "expose"):
            assert f"{name} " in said


def test_the_broker_and_its_programs_work_as_they_are_written(tmp_path: Path) -> None:
    text = section((ROOT / "docs" / "BROKER.md").read_text(), "## First steps")
    producer, listener = PROGRAM.findall(text)
    serve, *commands = [line for block in blocks(text) for line in block.splitlines()]
    assert [line.split()[:2] for line in commands[:2]] == [["python", "producer.py"], ["python", "listener.py"]]
    with contextlib.ExitStack() as stack:
        runtime = stack.enter_context(tempfile.TemporaryDirectory(prefix="q"))
        shell = Shell(tmp_path, runtime)
        with hold_port() as port:
            address = f"127.0.0.1:{port}"
            for name, program in (("producer.py", producer), ("listener.py", listener)):
                (tmp_path / name).write_text(
                    program.replace("127.0.0.1:9100", address).replace("sleep(3)", "sleep(1.5)")
                )
            stack.enter_context(shell.serving(serve.replace(" --dir", f" --listen {address} --dir")))
            said = [
                subprocess.run(
                    [sys.executable, line.split()[1]],
                    cwd=tmp_path,
                    env=shell.environment,
                    capture_output=True,
                    text=True,
                    timeout=TIMEOUT_S,
                    check=True,
                ).stdout
                for line in commands[:2]
            ]
            assert said[0] == "tea: partition 0, offset 0\nmilk: partition 1, offset 0\nink: partition 0, offset 1\n"
            assert sorted(said[1].splitlines()) == [
                "ink is 1 from the end of partition 0",
                "milk is 1 from the end of partition 1",
                "tea is 2 from the end of partition 0",
            ]
            lag, read = (shell.run(f"{line.partition('#')[0]} --broker {address}") for line in commands[2:])
            assert [line.split() for line in lag.splitlines()[1:]] == [
                ["billing", "orders", "0", "2", "2", "0"],
                ["billing", "orders", "1", "1", "1", "0"],
            ]
            assert sorted(read.split()) == ["ink", "milk", "tea"]
