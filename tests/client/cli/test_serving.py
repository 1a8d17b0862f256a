"""`tunnel forward` and `tunnel expose` as commands: exit codes, signals, the log, a relay that stops and returns."""

from __future__ import annotations

import asyncio
import gc
import io
import json
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.harness.relays import RelayProcess
from tests.client.cli.commands.rig import LOOPBACK, echo, target
from tests.support.loops import in_loop
from tunnel.process.command_line import configure_log
from tunnel_client.cli.commands.forward import announce
from tunnel_client.cli.main import main
from tunnel_client.errors import UsageError
from tunnel_client.forward.listening import bind
from tunnel_client.places import Address


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayProcess]:
    with RelayProcess(inline_exit=True) as running:
        yield running


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TUNNEL_RELAY", "TUNNEL_TOKEN", "TUNNEL_CARRIER"):
        monkeypatch.delenv(name, raising=False)


def command(relay: RelayProcess, *arguments: str, user: str = "client") -> Process:
    """The process of a `tunnel` command for this relay, not yet started."""
    options = ("--relay", relay.url, "--proxy", "")
    environment = {"TUNNEL_TOKEN": relay.tokens[user]}
    return Process(
        python_command("tunnel_client", *arguments, *options), ready=says_event("listening"), environment=environment
    )


def event(process: Process, name: str) -> dict[str, object]:
    """The last log entry with this event."""
    is_it = says_event(name)
    found: dict[str, object] = json.loads([line for line in process.output.splitlines() if is_it(line)][-1])
    return found


async def logged(process: Process, name: str) -> None:
    """Return when the process has logged this event."""
    is_it = says_event(name)
    async with asyncio.timeout(60):
        while not any(map(is_it, process.output.splitlines())):  # noqa: ASYNC110 (another process)
            await asyncio.sleep(0.01)


async def say(port: int, words: bytes) -> bytes:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(words)
    writer.write_eof()
    heard = await reader.read(-1)
    writer.close()
    return heard


def test_metrics_that_cannot_be_served_are_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server((LOOPBACK, 0)) as taken:
        address = f"{LOOPBACK}:{taken.getsockname()[1]}"
        assert main(["forward", "0:a:1", "--relay", "http://127.0.0.1:1", "--metrics", address]) == 2
    gc.collect()  # an attachment that nobody used would warn now
    said = f"--metrics: cannot listen on {address}: Address already in use: choose another address\n"
    assert capsys.readouterr().err == f"tunnel: {said}"


@in_loop
async def test_a_forward_serves_until_a_signal_stops_it() -> None:
    async with target(echo) as port:
        with RelayProcess(inline_exit=True) as relay:
            forward = command(relay, "forward", "--stats", "3600", f"0:{LOOPBACK}:{port}", "--carrier", "poll")
            async with forward:
                line = json.loads(forward.ready_line)
                assert line["target"] == f"{LOOPBACK}:{port}"
                local = int(line["bind"].rpartition(":")[2])
                assert await say(local, b"hello") == b"hello"
                await relay.replace()
                assert await say(local, b"again") == b"again"
                assert await asyncio.to_thread(forward.stop) == 0
                traffic = event(forward, "traffic")
                assert event(forward, "disconnected")
                assert event(forward, "reconnected")
    assert (traffic["connections"], traffic["bytes_up"], traffic["bytes_down"]) == (2, 10, 10)
    assert traffic["exchanges_failed"]


@in_loop
async def test_a_relay_that_stays_away_is_exit_code_6() -> None:
    with RelayProcess(inline_exit=True) as relay:
        async with command(relay, "forward", "--give-up-after", "1", "0:127.0.0.1:9") as forward:
            relay.process.kill()
            assert await asyncio.to_thread(forward.wait, 60) == 6
            assert "the relay has not answered for 1 s" in forward.output


@in_loop
async def test_a_forward_outlives_a_relay_that_is_away_for_longer_than_the_user_timeout() -> None:
    async with target(echo) as port:
        with RelayProcess(inline_exit=True) as relay:
            async with command(relay, "forward", "--user-timeout", "1", f"0:{LOOPBACK}:{port}") as forward:
                local = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
                relay.process.kill()
                for _ in range(2):
                    with pytest.raises(ConnectionError):  # comes after the user timeout
                        await say(local, b"lost")
                await relay.replace()
                assert await say(local, b"hello") == b"hello"


@in_loop
async def test_sigterm_frees_the_port_and_lets_moving_connections_finish(relay: RelayProcess) -> None:
    async with target(echo) as port, command(relay, "forward", f"0:{LOOPBACK}:{port}") as forward:
        local = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection(LOOPBACK, local)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        forward.signal(signal.SIGTERM)
        await logged(forward, "stopping")
        with socket.create_server((LOOPBACK, local)):
            writer.write(b"after")
            assert await reader.readexactly(5) == b"after"
        writer.close()
        assert await asyncio.to_thread(forward.wait, 60) == 0
        assert "waiting for 1 open connection until no byte has moved" in str(event(forward, "stopping")["text"])


@in_loop
async def test_a_relay_that_is_away_for_longer_than_the_limit_cuts_nothing_that_finishes() -> None:
    """The connection still moves bytes: those that its application writes."""
    async with target(echo) as port:
        with RelayProcess(inline_exit=True) as relay:
            async with command(relay, "forward", "--give-up-after", "1", f"0:{LOOPBACK}:{port}") as forward:
                local = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
                reader, writer = await asyncio.open_connection(LOOPBACK, local)
                writer.write(b"before")
                assert await reader.readexactly(6) == b"before"
                forward.signal(signal.SIGTERM)
                await logged(forward, "stopping")
                relay.process.kill()
                heard = asyncio.ensure_future(reader.read())
                for _ in range(25):  # 2.5 s: longer than the limit and the interval of the looks
                    writer.write(b"x")
                    await asyncio.wait([heard], timeout=0.1)
                    assert not heard.done()
                writer.close()
                heard.cancel()


@pytest.mark.parametrize("again", [signal.SIGTERM, signal.SIGINT, None])
@in_loop
async def test_sigterm_ends_idle_connections_and_a_second_signal_ends_the_command(
    again: signal.Signals | None, relay: RelayProcess
) -> None:
    async with target(echo) as port, command(relay, "forward", f"0:{LOOPBACK}:{port}") as forward:
        local = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
        reader, writer = await asyncio.open_connection(LOOPBACK, local)
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        forward.signal(signal.SIGTERM)
        if again is not None:
            await logged(forward, "stopping")
            forward.signal(again)
        assert await asyncio.to_thread(forward.wait, 60) == (130 if again is signal.SIGINT else 0)
        with pytest.raises(ConnectionResetError):
            await reader.read()
        writer.close()


def test_an_interrupt_is_exit_code_130(relay: RelayProcess) -> None:
    with command(relay, "expose", "reports", "127.0.0.1:9", "papers", "127.0.0.1:10") as expose:
        assert json.loads(expose.ready_line)["service"] == "reports"
        expose.signal(signal.SIGINT)
        assert expose.wait(60) == 130


def code_of(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Run the command; return its exit code and its messages."""
    code = main([*arguments])
    return code, capsys.readouterr().err


def test_a_wrong_token_is_exit_code_4(relay: RelayProcess, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "token"
    file.write_text(relay.tokens["client"][:-4] + "xxxx")
    file.chmod(0o600)
    options = ("--relay", relay.url, "--proxy", "", "--token-file", str(file))
    code, text = code_of(capsys, "forward", *options, "0:127.0.0.1:9")
    assert code == 4
    assert "check the token" in text


def test_a_name_that_no_rule_allows_is_exit_code_5(relay: RelayProcess) -> None:
    with command(relay, "expose", "reports", "127.0.0.1:9", user="nobody").start() as expose:
        assert expose.wait(60) == 5
        assert "reports: the relay does not allow this user to listen under this name" in expose.output


def test_an_unreachable_relay_is_exit_code_3(capsys: pytest.CaptureFixture[str]) -> None:
    with hold_port() as port:
        options = ("--relay", f"http://127.0.0.1:{port}", "--proxy", "", "--wait", "0.1")
        code, text = code_of(capsys, "forward", *options, "0:127.0.0.1:9")
    assert code == 3
    assert "check the URL, the proxy, the relay" in text


USAGE = [
    (("forward", "5432"), "'5432' is not a forward specification"),
    (("expose", "reports", "127.0.0.1:9", "papers"), "'papers' has no address"),
    (
        ("expose", "reports", "127.0.0.1:9", "reports", "127.0.0.1:10"),
        "the name reports is given twice, for 127.0.0.1:9 and for 127.0.0.1:10",
    ),
    (("expose", "reports", "here"), "'here' is not an address"),
    (("forward", "0:db:1", "--relay", "ftp://here"), "is not a relay URL"),
]


@pytest.mark.parametrize(("arguments", "message"), USAGE)
def test_usage_errors_are_exit_code_2(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", "http://127.0.0.1:9")
    code, text = code_of(capsys, *arguments)
    assert code == 2
    assert message in text


@pytest.mark.parametrize("text", ["-1", "soon", "1e99"])
def test_an_invalid_number_of_seconds_is_refused(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["forward", f"--wait={text}", "0:db:1"])
    assert left.value.code == 2
    assert "is not a number of seconds" in capsys.readouterr().err


def test_a_port_in_use_is_exit_code_2(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TUNNEL_RELAY", "http://127.0.0.1:9")
    with socket.create_server((LOOPBACK, 0)) as taken:
        code, text = code_of(capsys, "forward", f"{taken.getsockname()[1]}:db:1")
    assert code == 2
    assert "something listens there already: stop it, or choose another port" in text


def test_addresses_that_cannot_be_bound_are_usage_errors() -> None:
    with pytest.raises(UsageError, match="this machine has no such address"):
        bind(Address("192.0.2.1", 0))
    with pytest.raises(UsageError, match=r"cannot listen on bad\.invalid:0: "):
        bind(Address("bad.invalid", 0))


@contextmanager
def closing(sock: socket.socket) -> Iterator[socket.socket]:
    with sock:
        yield sock


def test_listening_beyond_this_machine_is_warned_about() -> None:
    configure_log("warning")
    with capture_logs() as logs, closing(bind(Address(LOOPBACK, 0))):
        assert logs == []
    with capture_logs() as logs, closing(bind(Address("0.0.0.0", 0))):
        assert [log["event"] for log in logs] == ["open_to_others"]
        assert "protect the port with a firewall" in logs[0]["text"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_line_and_a_log_gets_an_event(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    announce("127.0.0.1:5432 -> db:5432", bind="127.0.0.1:5432", target="db:5432")
    assert terminal.getvalue() == "127.0.0.1:5432 -> db:5432\n"
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    configure_log("info")
    with capture_logs() as logs:
        announce("127.0.0.1:5432 -> db:5432", bind="127.0.0.1:5432", target="db:5432")
    assert logs == [{"event": "listening", "bind": "127.0.0.1:5432", "target": "db:5432", "log_level": "info"}]


@pytest.mark.parametrize("name", ["forward", "expose"])
def test_the_help_has_an_example(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main([name, "--help"])
    assert left.value.code == 0
    assert f"example: tunnel {name}" in capsys.readouterr().out


@in_loop
async def test_a_forward_with_a_rate_carries_all_bytes(relay: RelayProcess) -> None:
    async with target(echo) as port, command(relay, "forward", "--rate", "8 MiB/s", f"0:{LOOPBACK}:{port}") as forward:
        local = int(json.loads(forward.ready_line)["bind"].rpartition(":")[2])
        data = bytes(range(256)) * 8192
        assert await say(local, data) == data


@pytest.mark.parametrize("name", [["forward", "0:a:1"], ["expose", "a", "b:1"], ["proxy", "0"], ["up"]])
def test_an_invalid_rate_is_a_usage_error(name: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([*name, "--rate", "fast"])
    assert caught.value.code == 2
    assert "argument --rate: 'fast' is not a rate: write it as in 20 MiB/s or 100 Mbit/s" in capsys.readouterr().err
