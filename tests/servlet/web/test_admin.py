"""The admin listener against other users of the machine and web pages in their browsers: only who can read the tokens
file drains the relay or reads its state."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import Mock

import msgspec
import pytest
from aiohttp import web
from aiohttp.test_utils import make_mocked_request

from tests.servlet.rig import KEYS, LOOPBACK, Client, relay, settings
from tests.servlet.web.rig import SECRET, ask
from tests.support.loops import in_loop
from tunnel.wire import Attached
from tunnel_servlet.access.tokens import make_admin_secret
from tunnel_servlet.command.admin_listener import ask_and_wait
from tunnel_servlet.command.files import load_config, reload_config, write_users
from tunnel_servlet.command.main import main
from tunnel_servlet.config import ListenAddress, RelayConfig, parse_listen
from tunnel_servlet.web.admin import create_admin
from tunnel_servlet.web.running import RunningRelay

PATHS = {"/livez": "GET", "/readyz": "GET", "/metrics": "GET", "/state": "GET", "/drain": "POST"}
TABLES = ("/connections", "/attachments", "/users", "/services")
ALL = [*PATHS.items(), *((table, "GET") for table in TABLES), *((table, "DELETE") for table in TABLES[:3])]
NEVER_S = 1e6  # if a command waits this long, the test fails at its deadline
WRONG = make_admin_secret(Random(8))


class Listener:
    """The application of the admin listener without sockets, so that a test chooses where a request comes from."""

    def __init__(self, running: RunningRelay) -> None:
        self.drained: list[float | None] = []
        self._app = create_admin(running.relay, self.drained.append)
        self._app.freeze()

    async def ask(self, path: str, remote: str = "127.0.0.1", method: str = "", **headers: str) -> tuple[int, str]:
        names = {"Host": "localhost", "Tunnel-Admin": SECRET}
        names |= {name.replace("_", "-"): value for name, value in headers.items()}
        sent = {name: value for name, value in names.items() if value}
        request = make_mocked_request(method or PATHS[path], path, headers=sent, app=self._app).clone(remote=remote)
        match = await self._app.router.resolve(request)
        match.add_app(self._app)
        request._match_info = match
        try:
            response = await self._app._handle(request)
        except web.HTTPException as refusal:
            return refusal.status, refusal.text or ""
        assert isinstance(response, web.Response)
        return response.status, response.text or ""


def guarded(**changes: Any) -> RelayConfig:
    return settings(admin=LOOPBACK, **{"admin_secret": SECRET, **changes})


@pytest.mark.parametrize("secret", ["", "1", WRONG, SECRET[:-1], f"{SECRET}x", SECRET.upper()])
@in_loop
async def test_two_users_another_user_of_the_machine_without_the_file_changes_and_learns_nothing(secret: str) -> None:
    async with relay(guarded()) as running, Client(running) as victim:
        listener = Listener(running)
        for path, method in (one for one in ALL if one[0] not in ("/livez", "/readyz", "/metrics")):
            status, text = await listener.ask(path, method=method, Tunnel_Admin=secret)
            assert status == 403
            assert "the secret in the relay's tokens file: run `tunnel-relay drain`" in text
            assert "SIGTERM" in text
        for path in ("/livez", "/readyz", "/metrics"):
            assert (await listener.ask(path, Tunnel_Admin=secret))[0] == 200
        assert listener.drained == []
        assert not running.relay.is_operator("\udcff" * len(SECRET))
        assert isinstance(await victim.attach(), Attached)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example:9080"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost.evil.example"},
        {"Host": "127.0.0.1@evil.example"},
        {"Host": "0.0.0.0:9080"},
        {"Host": "10.0.0.1"},
        {"Host": "[::]:9080"},
        {"Host": "2130706433"},
        {"Host": "localhost:80:80"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:9080"},
        {"Origin": "http://localhost", "Host": "evil.example"},
    ],
    ids=str,
)
@pytest.mark.parametrize("is_open", [False, True])
@in_loop
async def test_two_users_a_web_page_gets_no_answer(is_open: bool, headers: dict[str, str]) -> None:
    async with relay(guarded(is_open=is_open)) as running, Client(running) as victim:
        listener = Listener(running)
        for path, method in ALL:
            for secret in ("", SECRET):
                status, text = await listener.ask(path, method=method, **{"Tunnel-Admin": secret}, **headers)
                assert status == 403
                assert "routes" not in text
        assert listener.drained == []
        assert isinstance(await victim.attach(), Attached)


@pytest.mark.parametrize("remote", ["127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:9080", "127.0.0.1:9080", "127.1.2.3", "[::1]", "[::1]:9080"])
@in_loop
async def test_the_operator_on_this_machine_is_answered(remote: str, host: str) -> None:
    async with relay(guarded()) as running:
        listener = Listener(running)
        assert [(await listener.ask(path, remote, Host=host))[0] for path in PATHS] == [200, 200, 200, 200, 202]
        assert listener.drained == [None]


@pytest.mark.parametrize("seconds", ["x", "-1", "1.5", "\u0661", "9" * 13, "9" * 400, "9" * 5000])
@in_loop
async def test_a_time_that_no_timer_can_wait_for_begins_no_drain(seconds: str) -> None:
    async with relay(guarded()) as running:
        listener = Listener(running)
        status, text = await listener.ask(f"/drain?timeout={seconds}", method="POST")
        assert (status, listener.drained) == (400, [])
        assert "a whole number of seconds" in text


@pytest.mark.parametrize("remote", ["10.0.0.1", "fe80::1%eth0", "::ffff:10.0.0.1", "", "@"])
@in_loop
async def test_two_users_another_machine_may_only_probe(remote: str) -> None:
    async with relay(guarded()) as running:
        listener = Listener(running)
        found = [(await listener.ask(path, remote, Host="10.1.2.3:9080"))[0] for path in PATHS]
        assert (found, listener.drained) == ([200, 200, 200, 403, 403], [])
        for path, method in ALL[len(PATHS) :]:
            assert (await listener.ask(path, remote, method, Host="10.1.2.3:9080"))[0] == 403


@in_loop
async def test_a_probe_without_a_host_is_answered_for_no_browser_sends_it() -> None:
    async with relay(guarded()) as running:
        assert (await Listener(running).ask("/readyz", Host=""))[0] == 200


@pytest.mark.parametrize("given", ["", SECRET])
@in_loop
async def test_an_open_relay_tells_its_state_and_drains_only_by_a_signal(given: str) -> None:
    async with relay(guarded(is_open=True, admin_secret="")) as running:
        listener = Listener(running)
        assert (await listener.ask("/state", Tunnel_Admin=given))[0] == 200
        for path, method in [("/drain", "POST"), *ALL[len(PATHS) :]]:
            status, text = await listener.ask(path, method=method, Tunnel_Admin=given)
            assert (status, listener.drained) == (403, [])
            assert "send SIGTERM" in text


@in_loop
async def test_without_a_secret_in_the_file_no_secret_is_right() -> None:
    async with relay(guarded(admin_secret="")) as running:
        listener = Listener(running)
        for path in ("/state", "/drain"):
            for given in ("", SECRET):
                status, text = await listener.ask(path, Tunnel_Admin=given)
                assert status == 403
                assert "the next `tunnel-relay user add` or `rotate` writes one; or send SIGTERM" in text
        assert listener.drained == []


@in_loop
async def test_the_secret_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay(guarded()) as running:
        compare = Mock(return_value=False)
        monkeypatch.setattr("tunnel_servlet.web.relay.hmac.compare_digest", compare)
        assert not running.relay.is_operator(SECRET)
    compare.assert_called_once_with(SECRET.encode(), SECRET.encode())


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "relay.toml"
    path.write_text(
        'listen = ["127.0.0.1:0"]\nadmin = "127.0.0.1:0"\ntokens = "keys.toml"\nexit = "none"\n'
        '[users.ann]\nconnect = ["a:1"]\n'
    )
    return path


@in_loop
async def test_the_secret_is_written_by_the_next_command_kept_by_later_ones_and_reloaded(file: Path) -> None:
    tokens = file.with_name("keys.toml")
    write_users(tokens, {"ann": KEYS["ann"]})
    async with RunningRelay(load_config(str(file)), lambda: reload_config(str(file))) as running:
        assert (await ask(running, "/state"))[0] == 403
        assert main(["user", "add", "bob", "-c", str(file)]) == 0
        secret = load_config(str(file)).admin_secret
        assert running.reload()
        assert running.relay.admin_secret == secret
        assert (await ask(running, "/state", Tunnel_Admin=secret))[0] == 200
        for command in (["rotate", "bob"], ["revoke", "bob"], ["revoke", "ann"], ["list"]):
            assert main(["user", *command, "-c", str(file)]) == 0
            assert load_config(str(file)).admin_secret == secret
        assert tokens.stat().st_mode & 0o777 == 0o600
        # A secret that other people may have seen is replaced: the old one opens nothing any more.
        tokens.write_text(tokens.read_text().replace(secret, WRONG))
        assert running.reload()
        assert (await ask(running, "/state", Tunnel_Admin=secret))[0] == 403
        tokens.write_text("")
        assert not running.reload()
        assert (await ask(running, "/state", Tunnel_Admin=WRONG))[0] == 200


@in_loop
async def test_the_commands_show_the_secret_of_the_file(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent.parent)  # without a relay.toml
    write_users(file.with_name("keys.toml"), {"ann": KEYS["ann"]}, SECRET)
    async with RunningRelay(load_config(str(file)), lambda: reload_config(str(file))) as running:
        there = ["--admin", str(running.admin)]
        for command in (["state"], ["drain", "--timeout", "0"]):
            assert await asyncio.to_thread(main, [*command, *there]) == 2
            assert "answered 403: the header Tunnel-Admin must hold the secret" in capsys.readouterr().err
        assert not running.relay.is_draining
        assert await asyncio.to_thread(main, ["state", *there, "-c", str(file)]) == 0
        assert msgspec.json.decode(capsys.readouterr().out)["ready"] is True
        everywhere = f"0.0.0.0:{running.admin.port}" if running.admin else ""
        assert await asyncio.to_thread(main, ["state", "--admin", everywhere, "-c", str(file)]) == 0
        # No task waits for `stopped`, so nothing ends the relay.
        assert await asyncio.to_thread(main, ["drain", "--timeout", "0", *there, "-c", str(file)]) == 6
        assert running.relay.is_draining
        assert SECRET not in "".join(capsys.readouterr())


@contextmanager
def answering(*parts: bytes) -> Iterator[ListenAddress]:
    """Answer one request with these parts, and leave the connection open."""
    ended = threading.Event()

    def serve() -> None:
        asked, _ = listener.accept()
        with asked:
            asked.recv(4096)
            for part in parts:
                asked.sendall(part)
            ended.wait()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        server = threading.Thread(target=serve)
        server.start()
        try:
            yield parse_listen(f"127.0.0.1:{listener.getsockname()[1]}")
        finally:
            ended.set()
            server.join()


@pytest.mark.parametrize("field", ["Connection: close", "Connection: keep-alive"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_an_answer_that_is_the_last_of_its_connection_is_waited_for(
    field: str, monkeypatch: pytest.MonkeyPatch, *, is_whole: bool
) -> None:
    monkeypatch.setattr("tunnel_servlet.command.admin_listener._ANSWER_S", NEVER_S)
    head = f"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n{field}\r\n\r\n".encode()
    begun: list[bool] = []
    with answering(head, *([b"{}"] if is_whole else [])) as address:
        seconds = NEVER_S if is_whole else 0.05
        body = ask_and_wait(address, SECRET, "/drain?wait=1", seconds, lambda: begun.append(True))
    assert (body, begun) == (b"{}" if is_whole else b"", [True])


@pytest.mark.parametrize("command", ["state", "drain"])
def test_the_secret_is_sent_to_no_other_machine(command: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_users(file.with_name("keys.toml"), {"ann": KEYS["ann"]}, SECRET)
    assert main([command, "--admin", "192.0.2.1:9080", "-c", str(file)]) == 2
    assert "the admin secret is sent nowhere else" in capsys.readouterr().err


@pytest.mark.parametrize("secret", ['"short"', "1", '"' + "x" * 40 + '\\""', '"' + "é" * 40 + '"', "[]"])
def test_a_damaged_secret_is_explained(secret: str, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.with_name("keys.toml").write_text(f"_admin_secret = {secret}\n[ann]\ntokens = []\n")
    assert main(["check", "-c", str(file)]) == 2
    assert "_admin_secret is not a text of 32 to 256 letters" in capsys.readouterr().err


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o604, 0o660])
def test_two_users_a_secret_that_others_can_read_is_refused(
    mode: int, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tokens = file.with_name("keys.toml")
    write_users(tokens, {"ann": KEYS["ann"]}, SECRET)
    tokens.chmod(mode)
    assert main(["check", "-c", str(file)]) == 2
    assert "holds the admin secret and is open to other users: run `chmod 600" in capsys.readouterr().err
    write_users(tokens, {"ann": KEYS["ann"]})
    tokens.chmod(mode)
    assert main(["check", "-c", str(file)]) == 0  # hashes alone may be read


def test_the_secret_is_not_in_a_configuration_that_is_printed() -> None:
    assert SECRET not in repr(guarded())


@in_loop
async def test_two_users_half_requests_of_one_keep_no_probe_out() -> None:
    """A supervisor would restart a relay whose /livez does not answer."""
    async with relay(guarded()) as running:
        assert running.admin is not None
        half: list[asyncio.StreamWriter] = []
        for _ in range(200):
            _, writer = await asyncio.open_connection("127.0.0.1", running.admin.port)
            writer.write(b"GET /livez HTTP/1.1\r\n")
            half.append(writer)
        assert await ask(running, "/livez") == (200, "live\n")
        for writer in half:
            writer.transport.abort()
