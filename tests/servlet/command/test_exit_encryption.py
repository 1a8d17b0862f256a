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
from tunnel.encryption.keys import make_key_file
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


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--show-key"], "name the file with --key"),
        (["--relay", "http://127.0.0.1:1", "--encryption", "require"], "needs a key"),
        (["--key", "FILE"], "needs a relay"),
    ],
)
def test_arguments_that_do_not_fit(
    arguments: list[str], text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = [str(tmp_path / "exit.pem") if argument == "FILE" else argument for argument in arguments]
    assert main(["exit", *named]) == 2
    assert text in capsys.readouterr().err


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
