"""What commands say to the service manager that has started them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.tree import python_path
from tests.process.rig import Notified, notified
from tests.support.loops import in_loop
from tunnel.process.service_manager import STOP_SPARE_S, say_ready, say_status, say_stopping, watched

WAIT_S = 30


def started(place: Path, manager: Notified, *words: str) -> subprocess.Popen[bytes]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TUNNEL_", "XDG_"))}
    environment |= {"NOTIFY_SOCKET": manager.path, "HOME": str(place), "PYTHONPATH": python_path()}
    environment |= {"WATCHDOG_USEC": "30000", "XDG_RUNTIME_DIR": str(place)}
    return subprocess.Popen([sys.executable, "-m", *words], cwd=place, env=environment, stderr=subprocess.DEVNULL)


def ended(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGTERM)
    return process.wait(WAIT_S)


def test_a_relay_says_when_it_listens_that_it_turns_and_how_long_it_may_drain(tmp_path: Path) -> None:
    words = ("tunnel_servlet", "serve", "--open", "--listen", "127.0.0.1:0", "--allow", "127.0.0.1:1")
    with notified() as manager, started(tmp_path, manager, *words) as relay:
        said = manager.until("READY=1")
        assert said[0] == "READY=1"
        assert "STATUS=listening on 127.0.0.1:" in "\n".join(manager.until("STATUS"))
        manager.until("WATCHDOG=1")
        assert ended(relay) == 0
        manager.until("STOPPING=1")
        assert f"EXTEND_TIMEOUT_USEC={(60 + STOP_SPARE_S) * 1_000_000}" in manager.said


def test_an_exit_is_ready_before_its_relay_answers_and_says_what_it_waits_for(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tnl_a")
    (tmp_path / "token").chmod(0o600)
    with notified() as manager, hold_port() as port:
        url = f"http://127.0.0.1:{port}"
        words = ("tunnel_servlet", "exit", "--relay", url, "--token-file", "token", "--allow", "127.0.0.1:1")
        with started(tmp_path, manager, *words) as process:
            manager.until("READY=1")
            manager.until(f"STATUS=asking {url}: ")
            manager.until("WATCHDOG=1")
            assert ended(process) == 0
            manager.until("STOPPING=1")


def test_a_broker_is_ready_when_it_listens(tmp_path: Path) -> None:
    words = ("tunnel_client.cli.broker", "serve", "--dir", "messages", "--listen", "127.0.0.1:0")
    with notified() as manager, started(tmp_path, manager, *words) as process:
        manager.until("STATUS=listening on 127.0.0.1:")
        manager.until("WATCHDOG=1")
        assert ended(process) == 0
        assert "READY=1" in manager.until("STOPPING=1")


def test_tunnel_up_is_ready_before_its_relay_answers(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("tnl_a")
    (tmp_path / "token").chmod(0o600)
    with notified() as manager, hold_port() as port:
        (tmp_path / "up.toml").write_text(f'[relay]\nurl = "http://127.0.0.1:{port}"\n[proxy]\nweb = "0"\n')
        words = ("tunnel_client", "up", "-c", "up.toml", "--token-file", "token")
        with started(tmp_path, manager, *words) as process:
            assert manager.until("STATUS=")[0] == "READY=1"
            manager.until("WATCHDOG=1")
            assert ended(process) == 0
            manager.until("STOPPING=1")


def test_a_file_that_cannot_be_used_is_never_ready(tmp_path: Path) -> None:
    (tmp_path / "relay.toml").write_text("listen = 1")
    with notified() as manager, started(tmp_path, manager, "tunnel_servlet", "serve") as process:
        assert process.wait(WAIT_S) == 2
        say_stopping()  # nobody listens in this process
        with pytest.raises(BlockingIOError):
            manager.poll()


def test_an_abstract_socket_one_line_and_no_socket(monkeypatch: pytest.MonkeyPatch) -> None:
    with notified() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
        say_status("a\nREADY=1")
        assert manager.until("STATUS") == ["STATUS=a READY=1"]
        say_status("a relay said \x1b[2J\u202e\udc80")  # `systemctl status` shows it as it comes
        assert manager.until("STATUS=a relay")[-1:] == ["STATUS=a relay said \\x1b[2J\\u202e\\udc80"]
        for unusable in ("", "relative", f"{manager.path}.gone"):
            monkeypatch.setenv("NOTIFY_SOCKET", unusable)
            say_ready("never")
        with pytest.raises(BlockingIOError):
            manager.poll()
    with notified(f"\0tunnel-{os.getpid()}") as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", f"@tunnel-{os.getpid()}")
        say_ready()
        assert manager.until("READY") == ["READY=1"]


@in_loop
async def test_a_loop_that_hangs_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    with notified() as manager:
        monkeypatch.setenv("NOTIFY_SOCKET", manager.path)
        monkeypatch.setenv("WATCHDOG_USEC", "3000")
        monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
        with watched():
            manager.until("WATCHDOG=1")  # this blocks the loop, so only the first one can come
            with pytest.raises(BlockingIOError):
                manager.poll()
            manager.said.clear()
            while "WATCHDOG=1" not in manager.said:
                await asyncio.sleep(0)
                manager.poll(is_empty=True)
        manager.said.clear()
        monkeypatch.setenv("WATCHDOG_PID", "1")
        with watched():
            await asyncio.sleep(0)
        with pytest.raises(BlockingIOError):
            manager.poll()
