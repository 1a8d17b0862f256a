"""Child processes of the load tests: they become ready, are killed and restarted, and die with their parent."""

import os
import select
import signal
import sys
from pathlib import Path

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import NotReadyError, Process, cpu_seconds, python_command, relay_command, says_event
from tests.support.loops import in_loop
from tunnel import attach

WAITS = "import sys; print('ready', flush=True); sys.stdin = None; import signal; signal.pause()"


def child(program: str, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, *arguments]


def is_ready(line: str) -> bool:
    return line == "ready\n"


def test_a_process_becomes_ready_and_restarts_after_a_kill() -> None:
    with Process(child(WAITS), ready=is_ready) as process:
        first = process.pid
        assert process.is_running
        assert process.ready_line == "ready\n"
        process.kill()
        assert not process.is_running
        process.start().wait_ready()
        assert process.pid != first
        assert process.stop() == -signal.SIGTERM
    assert process.output == "ready\nready\n"


def test_a_process_that_ends_is_never_ready() -> None:
    with (
        pytest.raises(NotReadyError, match=r"ended before it was ready\nno, thanks"),
        Process(child("print('no, thanks')"), ready=is_ready),
    ):
        pass


def test_a_silent_process_is_not_ready_in_time() -> None:
    with Process(child(WAITS), ready=None) as process:
        assert process.wait_ready() is process
    silent = Process(child(WAITS), ready=lambda line: False).start()
    with silent, pytest.raises(NotReadyError, match="was not ready within 0 s"):
        silent.wait_ready(0.01)
    assert not silent.is_running


def test_a_process_that_ignores_the_signal_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.harness.processes.STOP_S", 0.2)
    with Process(child("import signal; signal.signal(15, signal.SIG_IGN);" + WAITS), ready=is_ready) as process:
        assert process.stop() == -signal.SIGKILL


def test_processor_time_is_counted_in_parts_of_a_tick() -> None:
    used = "import time; print(time.process_time_ns(), flush=True); import signal; signal.pause()"
    with Process(child(used), ready=lambda line: True) as process:
        said_s = int(process.ready_line) / 1e9
        first_s = cpu_seconds(process.pid)
    assert said_s <= first_s
    assert first_s * 100 % 1  # not a whole number of ticks of 10 ms
    with pytest.raises(OSError, match="Invalid argument"):
        cpu_seconds(process.pid)


def test_a_process_gets_its_environment_and_directory(tmp_path: Path) -> None:
    program = "import os; print(os.environ['COLOUR'], os.getcwd())"
    with Process(child(program), environment={"COLOUR": "green"}, directory=tmp_path) as process:
        assert process.wait(60) == 0
        assert process.output == f"green {tmp_path.resolve()}\n"


def test_a_process_dies_with_its_parent() -> None:
    outer = (
        "import sys; from loadtests.harness.processes import Process\n"
        f"inner = Process([sys.executable, '-c', {WAITS!r}], ready=lambda line: True).start().wait_ready()\n"
        "print(inner.pid, flush=True); import signal; signal.pause()"
    )
    with Process(child(outer), ready=lambda line: line.strip().isdigit()) as process:
        pidfd = os.pidfd_open(int(process.ready_line))
        process.kill()
    try:
        # A pidfd is readable once the process has ended, even if its new parent has not yet reaped it.
        assert select.select([pidfd], [], [], 60)[0] == [pidfd]
    finally:
        os.close(pidfd)


def test_commands_run_modules_and_events_are_recognised() -> None:
    assert python_command("a.b", "-x")[1:] == ["-m", "a.b", "-x"]
    assert relay_command("serve")[1:] == ["-m", "tunnel_servlet", "serve"]
    is_it = says_event("listening")
    assert is_it('{"event": "listening", "url": "http://127.0.0.1:1"}\n')
    assert not is_it('{"event": "other"}')
    assert not is_it("listening")
    assert not is_it('["listening"]')


@in_loop
async def test_a_killed_relay_comes_back_at_the_same_port() -> None:
    with hold_port() as port:
        command = relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}")
        async with Process(command, ready=says_event("listening")) as relay:
            for _ in range(2):
                async with attach(f"http://127.0.0.1:{port}", proxy=None, attach_timeout=60) as attachment:
                    assert attachment.is_attached
                relay.kill()
                relay.start()
                await relay.ready()
