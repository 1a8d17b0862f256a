"""docker-compose.production.yml, tested without containers: what each service may and sees; and the same two programs,
with the committed files, as processes."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socketserver
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process
from loadtests.harness.tree import ROOT, python_path
from tests.process.rig import notified
from tunnel_servlet.command.files import load_config
from tunnel_servlet.command.main import make_parser

FILE = ROOT / "docker-compose.production.yml"
COMPOSE: dict[str, Any] = yaml.safe_load(FILE.read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
# Of the compose specification, what this file uses: a word that is not in it would be a mistake.
KEYS = {
    *("image", "build", "command", "read_only", "cap_drop", "cap_add", "security_opt", "restart", "logging", "tmpfs"),
    *("volumes", "networks", "ports", "stop_grace_period", "healthcheck", "environment", "depends_on"),
}
COMMITTED = ("relay/relay.toml", "front/Caddyfile")
WAIT_S = 60


def mounts(name: str) -> dict[str, tuple[str, str]]:
    """Return what a service mounts, by the place in the container: the source, and the mode."""
    found = {}
    for text in SERVICES[name]["volumes"]:
        source, place, *mode = text.split(":")
        found[place] = (source, mode[0] if mode else "rw")
    return found


def test_there_is_a_relay_and_its_front_and_nothing_else() -> None:
    assert set(SERVICES) == {"relay", "front"}
    for name, service in SERVICES.items():
        assert set(service) <= KEYS, name
        assert service["read_only"] is True, name
        assert service["cap_drop"] == ["ALL"], name
        assert service["security_opt"] == ["no-new-privileges:true"], name
        assert "/readyz" in str(service["healthcheck"]["test"]), name
        assert re.fullmatch(r"tunnel|\w+:\d+", service["image"]), name
    assert "cap_add" not in SERVICES["relay"]
    assert "privileged" not in FILE.read_text()


def test_no_service_sees_what_another_one_keeps() -> None:
    written = {name: {source for source, _ in mounts(name).values()} for name in SERVICES}
    assert written["relay"] & written["front"] == set()
    for name in SERVICES:
        for place, (source, mode) in mounts(name).items():
            if source.startswith("."):
                assert mode == "ro", (name, place)
                assert any((ROOT / source).iterdir())
            else:
                assert source in COMPOSE["volumes"], (name, place)


def test_only_the_front_is_reachable_from_elsewhere() -> None:
    assert SERVICES["front"]["ports"] == ["80:80", "443:443"]
    assert all(port.startswith("127.0.0.1:") for port in SERVICES["relay"]["ports"])
    assert COMPOSE["networks"]["inside"]["internal"] is True


def test_the_command_and_its_files_agree(tmp_path: Path) -> None:
    words = SERVICES["relay"]["command"]
    assert words[0] == "tunnel-relay"
    arguments = make_parser().parse_args(words[1:])
    place = Path(arguments.config)
    source, _ = mounts("relay")[str(place.parent)]
    config = load_config(str(ROOT / source / place.name))
    assert config.audit is not None
    for path in (config.tokens_file, config.audit.file, config.token_use):
        assert mounts("relay")[str(Path(path).parent)][1] == "rw", path
    front = SERVICES["front"]["networks"]["inside"]["ipv4_address"]
    assert [str(network.network_address) for network in config.proxies.networks] == [front]
    assert front != SERVICES["relay"]["networks"]["inside"]["ipv4_address"]
    assert config.limits.drain_seconds < int(SERVICES["relay"]["stop_grace_period"].removesuffix("s"))
    caddy = (ROOT / mounts("front")["/etc/caddy"][0] / "Caddyfile").read_text()
    assert config.admin is not None
    assert f"relay:{config.listen[0].port} " in caddy
    assert f"relay:{config.admin.port}\n" in caddy
    assert "reverse_proxy" in caddy


class Echo(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self.wfile.write(self.rfile.readline())


@contextlib.contextmanager
def echo() -> Iterator[int]:
    """Serve the port of a target that sends one line back."""
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def caddy(folder: Path, text: str) -> Iterator[None]:
    """Run Caddy with this file until it listens."""
    file = folder / "Caddyfile"
    file.write_text(text)
    home = {"XDG_DATA_HOME": str(folder / "data"), "XDG_CONFIG_HOME": str(folder / "config"), "HOME": str(folder)}
    with notified() as manager:
        environment = {**os.environ, **home, "TUNNEL_HOST": "localhost", "NOTIFY_SOCKET": manager.path}
        process = subprocess.Popen(
            ["caddy", "run", "--adapter", "caddyfile", "--config", str(file)],
            env=environment, stderr=subprocess.DEVNULL, cwd=folder,
        )  # fmt: skip
        with process:
            try:
                manager.until("READY=1")
                yield
            finally:
                process.terminate()


@pytest.mark.real("caddy", "curl")
def test_the_committed_files_serve_a_client_through_tls(tmp_path: Path) -> None:
    """Ports are free ones, and folders of the containers those of the test; Caddy signs for localhost by itself."""
    with contextlib.ExitStack() as stack:
        relay, admin, plain, secure, health = (stack.enter_context(hold_port()) for _ in range(5))
        target = stack.enter_context(echo())
        ports = {"relay:8080": f"127.0.0.1:{relay}", "relay:9080": f"127.0.0.1:{admin}", ":8081": f":{health}"}
        ports |= {"0.0.0.0:8080": f"127.0.0.1:{relay}", "0.0.0.0:9080": f"127.0.0.1:{admin}"}
        ports |= {"/data/": f"{tmp_path}/", "172.30.80.2": "127.0.0.1", "example.com:443": f"127.0.0.1:{target}"}
        configured, front = ((ROOT / "deploy" / "production" / name).read_text() for name in COMMITTED)
        for there, here in ports.items():
            configured, front = configured.replace(there, here), front.replace(there, here)
        (tmp_path / "relay.toml").write_text(configured)
        front = front.replace("admin off", f"admin off\n\thttp_port {plain}\n\thttps_port {secure}")
        run = {"PYTHONPATH": python_path(), "PATH": os.environ["PATH"], "HOME": str(tmp_path), "no_proxy": "*"}
        words = [sys.executable, "-m", "tunnel_servlet", "user", "add", "admin", "-c", "relay.toml"]
        made = subprocess.run([*words, "--token-file", "token"], cwd=tmp_path, env=run, timeout=WAIT_S)
        assert made.returncode == 0
        words = [sys.executable, "-m", "tunnel_servlet", *SERVICES["relay"]["command"][1:-1], "relay.toml"]
        process = Process(words, ready=lambda line: '"admin": true' in line, directory=tmp_path, environment=run)
        stack.enter_context(process)
        stack.enter_context(caddy(tmp_path, front))
        ca = tmp_path / "data" / "caddy" / "pki" / "authorities" / "local" / "root.crt"
        words = [sys.executable, "-m", "tunnel_client", "connect", f"127.0.0.1:{target}", "--ca", str(ca)]
        words += ["--relay", f"https://localhost:{secure}", "--token-file", "token"]
        done = subprocess.run(
            words, cwd=tmp_path, env=run, input="through the front\n", capture_output=True, text=True, timeout=WAIT_S
        )
        assert (done.returncode, done.stdout) == (0, "through the front\n"), done.stderr
        ready = subprocess.run(
            ["curl", "--noproxy", "*", "-sf", f"http://127.0.0.1:{health}/readyz"], capture_output=True, timeout=WAIT_S
        )
        assert ready.returncode == 0
        events = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
        (allowed,) = [event for event in events if event["event"] == "connection_allowed"]
        assert (allowed["user"], allowed["target"]) == ("admin", f"127.0.0.1:{target}")
