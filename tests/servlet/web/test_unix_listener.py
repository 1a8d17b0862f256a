"""A relay that listens on a Unix socket, as for a proxy on its machine: who may connect, and what is left behind."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servlet.rig import KEYS, TOKENS, attach_body, exchange_body, relay, settings
from tests.support.loops import in_loop
from tunnel.wire import Attached, decode_envelope
from tunnel_servlet.access.proxies import TrustedProxies
from tunnel_servlet.audit.event import Kind, decode_event
from tunnel_servlet.config import ConfigError, ListenAddress, parse_address, parse_config, parse_listen
from tunnel_servlet.settings import AuditSettings
from tunnel_servlet.web.http.acceptor import listen_unix
from tunnel_servlet.web.running import RunningRelay

CLIENT = "192.0.2.7"


def listening(path: Path, **changes: Any) -> RunningRelay:
    return relay(settings(listen=(ListenAddress(str(path), 0, tls=False),), **changes))


async def posted(path: Path, *bodies: bytes, **headers: str) -> list[Any]:
    """Send exchanges as ann through the socket, and return the messages in the answers."""
    usual = {"Authorization": f"Bearer {TOKENS['ann']}", "Content-Type": "application/octet-stream"}
    names = usual | {name.replace("_", "-"): value for name, value in headers.items()}
    found = []
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(path))) as session:
        for body in bodies:
            async with session.post("http://relay/exchange", data=body, headers=names) as response:
                found.append(decode_envelope(await response.read()))
    return found


@in_loop
async def test_a_proxy_on_the_machine_reaches_the_relay_and_names_the_client(tmp_path: Path) -> None:
    path, audit = tmp_path / "relay.sock", AuditSettings(file=str(tmp_path / "audit.jsonl"))
    async with listening(path, audit=audit, proxies=TrustedProxies(has_unix=True)) as running:
        assert str(running.addresses[0]) == f"unix:{path}"
        assert path.stat().st_mode & 0o777 == 0o660
        epoch = running.relay.host.switch.epoch
        bodies = attach_body(), exchange_body(epoch, 1)
        attached, _ = await posted(path, *bodies, X_Forwarded_For=f"6.6.6.6, {CLIENT}")
        assert isinstance(attached, Attached)
    found = [decode_event(line) for line in (tmp_path / "audit.jsonl").read_bytes().splitlines()]
    (event,) = [one for one in found if one is not None and one.event is Kind.ENDPOINT_ATTACHED]
    assert (event.source, event.forwarded, event.token) == ("unix", CLIENT, KEYS["ann"][0].id)
    assert not path.exists()


@in_loop
async def test_a_socket_that_a_killed_relay_has_left_is_replaced(tmp_path: Path) -> None:
    path = tmp_path / "relay.sock"
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(path))
    async with listening(path):
        (attached,) = await posted(path, attach_body())
        assert isinstance(attached, Attached)


@in_loop
async def test_the_socket_of_another_relay_and_other_files_are_left_alone(tmp_path: Path) -> None:
    path, other = tmp_path / "relay.sock", tmp_path / "notes"
    other.write_text("mine")
    async with listening(path):
        with pytest.raises(ConfigError, match="another process listens there"):
            await listening(path).__aenter__()
        assert isinstance((await posted(path, attach_body()))[0], Attached)
    with pytest.raises(ConfigError, match="cannot listen on unix:"):
        await listening(other).__aenter__()
    assert other.read_text() == "mine"


def test_the_configuration_names_a_socket_by_its_path() -> None:
    config = parse_config('listen = ["unix:/run/relay.sock", "127.0.0.1:80"]', "relay.toml")
    assert config.listen[0] == ListenAddress("/run/relay.sock", 0, tls=False)
    assert config.listen[0].is_loopback
    for text in ("unix:relay.sock", "unix:", f"unix:/{'x' * 108}"):
        with pytest.raises(ValueError, match="a Unix socket has a path"):
            parse_listen(text)
    with pytest.raises(ValueError, match="is not an address"):
        parse_address("unix:/run/relay.sock")


@pytest.mark.parametrize("mode", [0o600, 0o660])
def test_a_socket_has_its_mode_from_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int) -> None:
    """Who may write in its folder could put a link in its place, and another file would get the mode."""

    def chmod(path: str, mode: int) -> None:
        raise AssertionError(f"{path} gets a mode later")

    monkeypatch.setattr(os, "chmod", chmod)
    before = os.umask(0o022)
    try:
        with listen_unix(str(tmp_path / "s"), mode):
            assert stat.S_IMODE(os.lstat(tmp_path / "s").st_mode) == mode
        assert os.umask(0o022) == 0o022
    finally:
        os.umask(before)


def test_a_process_that_hangs_at_the_path_is_named(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    with socket.socket(socket.AF_UNIX) as hanging:
        hanging.bind(path)
        hanging.listen(0)
        waiting = []
        while True:
            one = socket.socket(socket.AF_UNIX)
            one.setblocking(False)
            waiting.append(one)
            if one.connect_ex(path):
                break
        with pytest.raises(OSError, match="another process listens there"):
            listen_unix(path, 0o600)
        for one in waiting:
            one.close()
