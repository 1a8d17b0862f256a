"""The command tunnel-relay exit with a key: encrypted streams, the key that it shows, and a key file that changes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import stat
from pathlib import Path

import pytest

from tests.servlet.command.rig import process
from tests.servlet.rig import TOKENS, relay
from tests.support.loops import in_loop
from tunnel import PeerKeyError, attach
from tunnel.encryption.keys import KeyFile, make_key_file
from tunnel_servlet.command.main import main


def shown(file: Path, capsys: pytest.CaptureFixture[str]) -> str:
    assert main(["exit", "--key", str(file), "--show-key"]) == 0
    return capsys.readouterr().out.strip()


def test_the_key_is_made_private_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "exit.pem"
    first = shown(file, capsys)
    assert first.startswith("SHA256:")
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert shown(file, capsys) == first
    file.chmod(0o644)
    assert main(["exit", "--key", str(file), "--show-key"]) == 2
    assert f"chmod 600 {file}" in capsys.readouterr().err


def test_the_default_key_is_made_only_when_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """If each of two exits of one relay made a key, they would be two peers with one name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("TUNNEL_TOKEN", "")
    file = tmp_path / "tunnel" / "exit.pem"
    for mode in ("auto", "off"):
        assert main(["exit", "--relay", "http://127.0.0.1:1", "--encryption", mode]) == 2  # there is no token
        assert not file.exists()
    assert main(["exit", "--show-key"]) == 0
    key = capsys.readouterr().out.strip()
    assert key == KeyFile(file).fingerprint
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    file.chmod(0o644)
    for arguments in (["--show-key"], ["--relay", "http://127.0.0.1:1"]):  # the exit does not run unencrypted instead
        assert main(["exit", *arguments]) == 2
        assert f"chmod 600 {file}" in capsys.readouterr().err
    file.unlink()
    file.symlink_to(tmp_path / "nothing")
    assert main(["exit", "--relay", "http://127.0.0.1:1", "--allow", "127.0.0.1:1"]) == 2
    assert "does not exist" in capsys.readouterr().err
    file.unlink()
    assert main(["exit", "--relay", "http://127.0.0.1:1", "--encryption", "require"]) == 2  # there is no token
    assert file.exists()


def test_a_user_without_a_home_directory_has_no_default_key(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("TUNNEL_TOKEN", "")
    monkeypatch.setattr(Path, "home", homeless)
    assert main(["exit", "--relay", "http://127.0.0.1:1", "--allow", "127.0.0.1:1"]) == 2
    assert "no token" in capsys.readouterr().err
    assert main(["exit", "--show-key"]) == 2
    assert "set XDG_CONFIG_HOME" in capsys.readouterr().err


def test_an_exit_needs_a_relay(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["exit", "--key", str(tmp_path / "exit.pem")]) == 2
    assert "needs a relay" in capsys.readouterr().err


@in_loop
async def test_an_exit_uses_its_default_key_and_says_when_it_has_none(tmp_path: Path) -> None:
    home = {"XDG_CONFIG_HOME": str(tmp_path), "TUNNEL_TOKEN": TOKENS["exits"]}
    async with relay() as running:
        arguments = ["exit", "--relay", f"http://{running.addresses[0]}", "--proxy", "none", "--allow", "127.0.0.1:1"]
        async with process(*arguments, **home) as exit_:
            assert "--show-key" in await exit_.line("not encrypted")
        make_key_file(tmp_path / "tunnel" / "exit.pem")
        async with process(*arguments, **home) as exit_:
            key = (await exit_.line("key SHA256:")).split()[1]
    assert key == KeyFile(tmp_path / "tunnel" / "exit.pem").fingerprint


@in_loop
async def test_streams_to_an_exit_with_a_key_are_encrypted_and_a_new_key_takes_effect(tmp_path: Path) -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    file, other = tmp_path / "exit.pem", tmp_path / "other.pem"
    async with relay() as running, await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        url, port = f"http://{running.addresses[0]}", server.sockets[0].getsockname()[1]
        arguments = ["exit", "--relay", url, "--allow", f"127.0.0.1:{port}", "--proxy", "none", "--key", str(file)]
        async with process(*arguments, "--encryption", "require", TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            key = (await exit_.line("key SHA256:")).split()[1]
            async with attach(url, token=TOKENS["ann"], proxy=None, peer_key=key) as client:
                reader, writer = await client.open_connection("127.0.0.1", port, timeout=30)
                assert writer.get_extra_info("peer_key") == key
                writer.write(b"one")
                assert await reader.readexactly(3) == b"one"
                make_key_file(other)
                os.replace(other, file)
                await exit_.line("key_changed")
                with pytest.raises(PeerKeyError, match=re.escape(key)):
                    await client.open_connection("127.0.0.1", port, timeout=30)
                writer.write(b"two")
                assert await reader.readexactly(3) == b"two"
                writer.close()
                await writer.wait_closed()
            async with attach(url, token=TOKENS["ann"], proxy=None, encryption="off") as client:
                with pytest.raises(PermissionError, match="only encrypted connections"):
                    await client.open_connection("127.0.0.1", port, timeout=30)
