"""The admin listener on a Unix socket: who may open it is the operator, and no web page is."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servlet.rig import KEYS, TOKENS, until
from tests.servlet.web.live.rig import Opener, opener
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, ResetError, attach
from tunnel_servlet.audit.event import Kind, decode_event
from tunnel_servlet.command import admin_listener
from tunnel_servlet.command.files import load_config, write_users
from tunnel_servlet.command.main import main
from tunnel_servlet.config import ConfigError, parse_config
from tunnel_servlet.web.running import RunningRelay

CONFIGURATION = """listen = ["127.0.0.1:0"]
admin = "unix:{folder}/admin.sock"
tokens = "keys.toml"
[audit]
file = "{folder}/audit.jsonl"
[users.ann]
connect = ["127.0.0.0/8:*"]
"""


@asynccontextmanager
async def scene(folder: Path) -> AsyncIterator[tuple[RunningRelay, Attachment, int, Opener]]:
    """Run a relay whose tokens file has no admin secret, and attach ann to it."""
    file = folder / "relay.toml"
    file.write_text(CONFIGURATION.format(folder=folder))
    write_users(folder / "keys.toml", {"ann": KEYS["ann"]}, "")

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)

    async with target(echo) as port, RunningRelay(load_config(str(file))) as running:
        url = f"http://{running.addresses[0]}"
        async with attach(url, token=TOKENS["ann"], proxy=None, linger=0.1, name="desk") as ann, opener() as opened:
            yield running, ann, port, opened


async def run(folder: Path, *words: str) -> int:
    return await asyncio.to_thread(main, [*words, "-c", str(folder / "relay.toml")])


@asynccontextmanager
async def http(folder: Path) -> AsyncIterator[Any]:
    """Yield a function that asks the listener, and returns status and text."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(folder / "admin.sock"))) as session:

        async def ask(method: str, path: str, **headers: str) -> tuple[int, str]:
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            async with session.request(method, f"http://localhost{path}", headers=named) as answer:
                return answer.status, await answer.text()

        yield ask


def acts(folder: Path) -> list[tuple[str, str, str]]:
    events = [decode_event(line) for line in (folder / "audit.jsonl").read_bytes().splitlines()]
    return [
        (one.act, one.source, one.result.value if one.result else "")
        for one in events
        if one is not None and one.event is Kind.ADMIN
    ]


@in_loop
async def test_the_commands_work_without_a_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path) as (running, ann, port, opened):
        assert (tmp_path / "admin.sock").stat().st_mode & 0o777 == 0o600
        reader, _ = await opened(ann, port)
        capsys.readouterr()
        assert await run(tmp_path, "ps", "--json") == 0
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        assert (row["user"], row["endpoint"]) == ("ann", "desk")
        assert await run(tmp_path, "state") == 0
        assert json.loads(capsys.readouterr().out)["ready"]
        assert await run(tmp_path, "kick", row["id"]) == 0
        with pytest.raises(ResetError):
            await reader.read()
        await until(lambda: bool(acts(tmp_path)))  # the audit is written by a thread of its own
        assert await run(tmp_path, "audit", "--event", "admin") == 0
        assert "kick_connection" in capsys.readouterr().out
        running.stopped.clear()
        draining = asyncio.create_task(run(tmp_path, "drain", "--timeout", "60"))
        await running.stopped.wait()
        await running.close()
        assert await draining == 0
        assert f"whose admin listener is unix:{tmp_path}/admin.sock" in capsys.readouterr().err
    assert acts(tmp_path) == [("kick_connection", "unix", "done"), ("drain", "unix", "done")]
    assert not (tmp_path / "admin.sock").exists()


@in_loop
async def test_web_pages_get_no_answer_by_whatever_way_they_reach_the_socket(tmp_path: Path) -> None:
    async with scene(tmp_path) as (running, _, _, _), http(tmp_path) as ask:
        for headers in (
            {"Host": "evil.example"},
            {"Origin": "https://evil.example"},
            {"Origin": "http://localhost:1"},
            {"Sec_Fetch_Site": "cross-site"},
        ):
            for method, path in (("GET", "/users"), ("GET", "/metrics"), ("POST", "/drain"), ("DELETE", "/users")):
                assert (await ask(method, path, Tunnel_Admin="", **headers))[0] == 403
        assert (await ask("GET", "/users", Origin="http://localhost", Sec_Fetch_Site="same-origin"))[0] == 200
        # An order needs the header, which no page elsewhere can send.
        for method, path in (("POST", "/drain"), ("DELETE", "/users?name=ann")):
            status, text = await ask(method, path)
            assert (status, text) == (
                403,
                "an order must have the header Tunnel-Admin; by a Unix socket, it may be empty\n",
            )
        assert not running.relay.is_draining
        assert (await ask("DELETE", "/users?name=ann", Tunnel_Admin=""))[0] == 200
    assert acts(tmp_path) == [
        ("drain", "unix", "refused"),
        ("kick_user", "unix", "refused"),
        ("kick_user", "unix", "done"),
    ]


@in_loop
async def test_the_stream_of_the_page_goes_on_without_a_secret(tmp_path: Path) -> None:
    async with (
        scene(tmp_path),
        aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(tmp_path / "admin.sock"))) as session,
        session.get("http://localhost/events") as response,
    ):
        for _ in range(3):
            assert (await response.content.readuntil(b"\n\n")).startswith(b"data: {")


@in_loop
async def test_the_page_asks_for_no_secret(tmp_path: Path) -> None:
    async with scene(tmp_path), http(tmp_path) as ask:
        assert '<html data-secret="unix" lang="en">' in (await ask("GET", "/live"))[1]
        assert "document.documentElement.dataset.secret" in (await ask("GET", "/live/live.js"))[1]
        assert (await ask("GET", "/livez"))[0] == 200


def test_a_user_who_may_not_open_the_socket_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "relay.toml").write_text(CONFIGURATION.format(folder=tmp_path))
    write_users(tmp_path / "keys.toml", {"ann": KEYS["ann"]}, "")
    command = ["ps", "-c", str(tmp_path / "relay.toml")]
    assert main(command) == 3
    assert f"no relay answers at unix:{tmp_path}/admin.sock" in capsys.readouterr().err

    def connect(self: Any) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(admin_listener._UnixConnection, "connect", connect)
    assert main(command) == 2
    assert "only the user who runs the relay may use it: run this as that user" in capsys.readouterr().err


def test_the_path_is_checked() -> None:
    with pytest.raises(ConfigError, match=r"admin: 'unix:admin.sock' is not an address: a Unix socket has a path"):
        parse_config('admin = "unix:admin.sock"', "relay.toml")
    with contextlib.suppress(ConfigError):
        assert parse_config('admin = "unix:/run/a.sock"', "relay.toml").admin is not None
