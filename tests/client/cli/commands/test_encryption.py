"""Commands and sockets over encrypted streams: first use, a changed key, a key that is given, and what they print."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.client.rig import Rig, connect
from tests.encryption.attacker import Attacker
from tests.encryption.rig import another_key, key, key_file
from tests.servlet.rig import TOKENS, settings
from tunnel import Attachment, ExitRequest, StreamReader, StreamWriter, attach
from tunnel.encryption.keys import KeyFile, make_key_file
from tunnel.encryption.known_peers import KnownPeers
from tunnel_client import configure, create_connection
from tunnel_client.cli.main import main
from tunnel_client.login_file import known_peers_path
from tunnel_client.status import report_of
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

ECHO = "reports"


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A relay without an exit of its own."""
    grant = Grant(connect=(parse_rule("db:*"),), services=("*",), listen=(ECHO,))
    with Rig(settings(exit="none", grants=GrantTable({"ann": grant, "exits": Grant(exit=True)}))) as found:
        yield found


async def echo(reader: StreamReader, writer: StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)
        await writer.drain()
    writer.close()


def serve(rig: Rig, file: str) -> Attachment:
    """Offer the service in the rig's thread, with this key."""
    attachment = rig.enter(attach(rig.url, token=TOKENS["ann"], proxy=None, key=file, carrier="link"))
    rig.call(attachment.start_server(echo, ECHO))
    return attachment


def say(rig: Rig, *options: str) -> tuple[int, bytes, str]:
    with connect(rig, ECHO, *options) as child:
        out, err = child.communicate(b"hello", timeout=60)
    return child.returncode, out, err.decode()


def test_the_first_key_is_remembered_and_another_one_is_code_4(rig: Rig, home: Path) -> None:
    service = serve(rig, key_file())
    assert say(rig) == (0, b"hello", "")
    known = KnownPeers(known_peers_path())
    assert [(entry.relay, entry.peer, entry.keys) for entry in known.entries()] == [
        (rig.url, f"service:{ECHO}", (key().fingerprint,))
    ]
    assert say(rig) == (0, b"hello", "")
    rig.call(service.close())
    service = serve(rig, str(another_key().path))
    code, out, err = say(rig)
    assert (code, out) == (4, b"")
    for part in (key().fingerprint, another_key().fingerprint, f"{known.path}, line 1", rig.url):
        assert part in err
    assert say(rig, "--peer-key", another_key().fingerprint) == (0, b"hello", "")
    rig.call(service.close())
    service = rig.enter(attach(rig.url, token=TOKENS["ann"], proxy=None))
    rig.call(service.start_server(echo, ECHO))
    code, out, err = say(rig)
    assert (code, out) == (4, b"")
    assert "would not be encrypted" in err
    assert say(rig, "--encryption", "off") == (0, b"hello", "")
    rig.call(service.close())


@pytest.mark.parametrize(
    ("kind", "seed", "text"),
    [
        ("flip", 3, "was altered on the way"),
        ("clear text", 3, "was altered on the way"),
        ("end early", 3, "was cut before its end"),
        ("redirect", 1, "led the connection elsewhere"),
    ],
)
def test_an_attack_by_the_relay_is_code_7(kind: str, seed: int, text: str, home: Path) -> None:
    """The relay alters a record, sends clear text, ends the stream early, or leads it to another service."""
    grant = Grant(services=("*",), listen=(ECHO, "other"))
    config = settings(exit="none", grants=GrantTable({"ann": grant}))
    with Rig(config, Attacker(kind, Random(seed), "other")) as rig:
        rig.call(serve(rig, key_file()).start_server(echo, "other"))
        code, out, err = say(rig)
    assert (code, out) == (7, b""), err
    assert text in err
    assert "Traceback" not in err


def test_sockets_to_an_exit_are_encrypted(known: Rig) -> None:
    async def dial(request: ExitRequest) -> None:
        await echo(*request.accept_streams())

    seen: list[str] = []
    exit_ = known.enter(attach(known.url, token=TOKENS["exits"], proxy=None, exit_handler=dial, key=key_file()))
    configure(peer_key=key().fingerprint)
    with create_connection(("db", 5432), timeout=60) as sock:
        sock.sendall(b"hello")
        assert sock.recv(5) == b"hello"

        async def report() -> None:
            seen.extend(found.encryption for found in report_of(exit_, "", 0.0).connections)

        known.call(report())
    configure(peer_key=another_key().fingerprint)
    with pytest.raises(OSError, match="configured peer key"):
        create_connection(("db", 5432), timeout=60)
    configure()
    assert seen == ["accepted"]
    known.call(exit_.close())


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["connect", "db:1", "--peer-key", "SHA256:x"], "is not a key"),
        (["connect", "db:1", "--encryption", "off", "--peer-key", key().fingerprint], "encryption is off"),
        (["expose"], "no service: write its name and its address"),
        (["expose", "reports", "127.0.0.1:1", "--key", "/dev/null/key"], "key"),
    ],
)
def test_settings_that_cannot_be_used_are_explained(
    arguments: list[str], text: str, known: Rig, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    assert text in capsys.readouterr().err


def test_an_unknown_mode_in_the_environment_is_explained(
    known: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("TUNNEL_ENCRYPTION", "on")
    assert main(["connect", "db:1"]) == 2
    assert "TUNNEL_ENCRYPTION is 'on': choose one of off, auto, require" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [["--key", "FILE"], ["--encryption", "require"], []])
def test_expose_prints_its_key(
    arguments: list[str], known: Rig, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command makes a key that is named or required. Otherwise it uses the default key, if that exists."""
    file = known_peers_path().with_name("service.pem") if "FILE" not in arguments else home / "key.pem"
    words = [str(file) if word == "FILE" else word for word in arguments]
    if not words:
        assert main(["expose", "--show-key"]) == 0
        assert capsys.readouterr().out.strip() == KeyFile(file).fingerprint

    async def scenario() -> None:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "tunnel_client", "expose", ECHO, "127.0.0.1:1", *words),
            stderr=asyncio.subprocess.PIPE,
        )
        assert process.stderr is not None
        line = (await process.stderr.readline()).decode()
        process.kill()
        await process.communicate()
        assert line == f"key {KeyFile(file).fingerprint}\n"

    asyncio.run(scenario())


def test_expose_makes_no_key_unasked_and_refuses_one_that_others_can_read(known: Rig, home: Path) -> None:
    file = known_peers_path().with_name("service.pem")
    assert main(["expose", "payroll", "127.0.0.1:1", "--wait", "5"]) == 5  # no rule allows the name
    assert not file.exists()
    make_key_file(file)
    file.chmod(0o640)
    assert main(["expose", "payroll", "127.0.0.1:1", "--wait", "5"]) == 2  # others can read the key
