"""docker-compose.yml, tested without containers: its structure, and each service's command as the file has it.

No container engine is needed. Names of services become 127.0.0.1, ports become free ones, and directories of the
containers become directories of the test; nothing else of a command is changed.
"""

import contextlib
import os
import re
import socket
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process
from tunnel.traces.jsonl import JsonLinesWriter
from tunnel.traces.record import TraceRecord

ROOT = Path(__file__).resolve().parent.parent
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
PORTS = (7077, 8080, 8081, 8082, 8089, 8090, 8091, 9000, 9080, 15432)
WAIT_S = 480.0

pytestmark = [pytest.mark.timeout(900), pytest.mark.skipif(sys.platform != "linux", reason="commands are Linux's")]


def test_every_service_belongs_to_a_profile_and_is_watched() -> None:
    for name, service in SERVICES.items():
        assert set(service["profiles"]) <= {"demo", "stress", "analysis"}, name
        ends = service.get("restart") == "no"
        listens_nowhere = name in ("exit", "spark-worker")  # no port: their peers show if they work
        assert ("healthcheck" in service) == (not ends and not listens_nowhere), name
        for other, how in service.get("depends_on", {}).items():
            assert set(service["profiles"]) <= set(SERVICES[other]["profiles"]), (name, other)
            watched = how["condition"] == "service_healthy"
            assert not watched or "healthcheck" in SERVICES[other], (name, other)


def test_our_images_run_without_privileges() -> None:
    for name, service in SERVICES.items():
        if name != "nginx":
            assert service["cap_drop"] == ["ALL"], name
            assert service["read_only"], name
    dockerfile = (ROOT / "Dockerfile").read_text()
    assert "\nUSER tunnel\n" in dockerfile
    assert "-slim" in dockerfile


def test_the_image_has_the_compiled_modules_and_no_compiler() -> None:
    build, image = (ROOT / "Dockerfile").read_text().split("\nFROM ")[1:]
    assert "HATCH_BUILD_HOOKS_ENABLE=true" in build
    assert "gcc" in build
    assert "gcc" not in image


def test_published_ports_are_reachable_from_this_machine_only() -> None:
    published = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


class Stage:
    """Runs the services' commands as processes of this machine. Docker compose would run them in containers."""

    def __init__(self, directory: Path, ports: dict[int, int]) -> None:
        self.ports = ports
        self.data = directory / "data"
        self._config = directory / "etc"
        self.data.mkdir()
        self._config.mkdir()
        for file in (file for file in (ROOT / "deploy").iterdir() if file.is_file()):
            (self._config / file.name).write_text(self.here(file.read_text()))

    def here(self, text: str) -> str:
        """Replace addresses and directories of containers by those of this machine."""
        names = "|".join([*map(re.escape, SERVICES), r"0\.0\.0\.0", r"127\.0\.0\.1"])

        def address(match: re.Match[str]) -> str:
            return f"127.0.0.1:{self.ports[int(match[1])]}"

        text = re.sub(rf"\b(?:{names}):({'|'.join(map(str, PORTS))})\b", address, text)
        text = re.sub(rf"(?<![:\d])({'|'.join(map(str, PORTS))})\b", lambda match: str(self.ports[int(match[1])]), text)
        text = re.sub(r"--(web-)?host (0\.0\.0\.0|spark-master)", r"--\1host 127.0.0.1", text)
        text = text.replace("/data/", f"{self.data}/").replace("/etc/tunnel", str(self._config))
        return text.replace("/srv/", f"{ROOT}/").replace("$$", "$")

    def command(self, name: str) -> list[str]:
        """Return a service's command."""
        words = [self.here(str(word)) for word in SERVICES[name]["command"]]
        return [{"0.0.0.0": "127.0.0.1", "spark-master": "127.0.0.1"}.get(word, word) for word in words]

    def start(self, name: str, ready: Callable[[str], bool] | None = None) -> Process:
        """Return a service as a process; a `with` block starts and ends it."""
        environment = {key: self.here(value) for key, value in SERVICES[name].get("environment", {}).items()}
        environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "no_proxy": "*"}
        environment |= {"SPARK_LOCAL_IP": "127.0.0.1", "SPARK_NO_DAEMONIZE": "1"}
        return Process(self.command(name), ready=ready, environment=environment, directory=ROOT)

    def open_port(self, port: int, process: Process) -> None:
        """Wait until this service listens on the port."""
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.ports[port]), 5).close()
            except OSError:
                assert process.is_running, process.output
                assert time.monotonic() < deadline, process.output
                time.sleep(0.1)
            else:
                return


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    with contextlib.ExitStack() as stack:
        yield Stage(tmp_path, {port: stack.enter_context(hold_port()) for port in PORTS})


def run_to_its_end(stage: Stage, name: str) -> None:
    with stage.start(name) as process:
        assert process.wait(WAIT_S) == 0, process.output


@contextlib.contextmanager
def nginx(stage: Stage, directory: Path) -> Iterator[None]:
    """Run the committed server block within the least configuration that nginx needs around it."""
    block = stage.here((ROOT / "deploy" / "nginx.conf.template").read_text())
    home = directory / "nginx"
    home.mkdir()
    user = "user root;" if os.geteuid() == 0 else ""  # nginx's default user could not write there
    block = block.replace(f"listen {stage.ports[8081]}", f"listen 127.0.0.1:{stage.ports[8081]}")
    paths = "".join(f"{kind}_temp_path {home}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    frame = f"{user} daemon off; pid {home}/pid; error_log stderr; events {{}}"
    whole = f"{frame}\nhttp {{ access_log off; {paths}\n{block}\n}}\n"
    (home / "nginx.conf").write_text(whole)
    with Process(["nginx", "-c", str(home / "nginx.conf"), "-p", str(home)]) as process:
        stage.open_port(8081, process)
        yield


@pytest.mark.real("nginx")
def test_the_demo_and_the_stress_run_as_written(stage: Stage, tmp_path: Path) -> None:
    run_to_its_end(stage, "tokens")
    run_to_its_end(stage, "tokens")  # a second run leaves the tokens as they are
    assert (stage.data / "demo.token").stat().st_mode & 0o077 == 0
    with contextlib.ExitStack() as stack:
        for name, port in (("target", 9000), ("relay", 8080)):
            stage.open_port(port, stack.enter_context(stage.start(name)))
        stack.enter_context(stage.start("exit", lambda line: line.startswith("attached to")))
        stack.enter_context(nginx(stage, tmp_path))
        for name, port in (("lossy", 8082), ("forward", 15432)):
            stage.open_port(port, stack.enter_context(stage.start(name)))
        with socket.create_connection(("127.0.0.1", stage.ports[15432]), WAIT_S) as user:
            user.sendall(b"ehello, target")
            user.shutdown(socket.SHUT_WR)
            assert user.recv(100, socket.MSG_WAITALL) == b"hello, target"
        locust = stack.enter_context(stage.start("locust"))
        stage.open_port(8089, locust)
        page = urllib.request.build_opener(urllib.request.ProxyHandler({})).open(
            f"http://127.0.0.1:{stage.ports[8089]}/", timeout=WAIT_S
        )
        with page:
            assert b"Locust" in page.read()
        locust.stop()


@pytest.mark.real("java")
def test_the_analysis_runs_as_written(stage: Stage) -> None:
    traces = stage.data / "traces"
    traces.mkdir()
    with JsonLinesWriter(traces / "relay.jsonl") as writer:
        for number in range(100):
            writer(TraceRecord(time_us=number * 1000, node="relay", event="packet_received", sequence=number))
    with contextlib.ExitStack() as stack:
        master = stack.enter_context(stage.start("spark-master"))
        stage.open_port(7077, master)
        stack.enter_context(stage.start("spark-worker", lambda line: "Successfully registered with master" in line))
        run_to_its_end(stage, "report")
    assert "<html" in (stage.data / "report.html").read_text()[:500].lower()
