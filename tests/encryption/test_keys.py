"""The key file: made once, private, and read again when it changes."""

import builtins
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization

from tests.encryption.rig import sessions
from tunnel.encryption.fingerprint import is_fingerprint
from tunnel.encryption.keys import KeyFile, make_key_file


def test_a_missing_file_is_made_private_and_used_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "exit.pem"
    made = KeyFile(path, make=True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert is_fingerprint(made.fingerprint)
    content = path.read_bytes()
    assert KeyFile(path, make=True).fingerprint == made.fingerprint
    assert path.read_bytes() == content
    assert [file.name for file in path.parent.iterdir()] == ["exit.pem"]


def test_an_existing_key_file_is_never_replaced(tmp_path: Path) -> None:
    path = tmp_path / "exit.pem"
    make_key_file(path)
    content = path.read_bytes()
    make_key_file(path)
    assert path.read_bytes() == content
    (tmp_path / f".exit.pem.{os.getpid()}").write_text("left by a process that was killed")
    make_key_file(path)
    assert path.read_bytes() == content


def test_a_missing_file_is_an_error_where_none_should_be_made(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="does not exist"):
        KeyFile(tmp_path / "exit.pem")


def test_a_file_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "exit.pem"
    make_key_file(path)
    path.chmod(0o640)
    with pytest.raises(ValueError, match=r"chmod 600.*make another key"):
        KeyFile(path)


@pytest.mark.parametrize("content", ["", "nonsense", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"])
def test_a_file_without_a_key_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "exit.pem"
    path.write_text(content)
    path.chmod(0o600)
    with pytest.raises(ValueError, match="does not hold a private key"):
        KeyFile(path)


def test_a_key_and_a_certificate_that_do_not_match_are_refused(tmp_path: Path) -> None:
    for name in ("one", "two"):
        make_key_file(tmp_path / name)
    marker = "-----BEGIN CERTIFICATE-----"
    mixed = tmp_path / "mixed"
    mixed.touch(0o600)
    private, _, _ = (tmp_path / "one").read_text().partition(marker)
    _, _, public = (tmp_path / "two").read_text().partition(marker)
    mixed.write_text(private + marker + public)
    with pytest.raises(ValueError, match="does not hold a private key and its certificate"):
        KeyFile(mixed)


def test_a_private_key_with_a_password_is_refused_without_a_question(tmp_path: Path) -> None:
    """OpenSSL would ask on the terminal, and the event loop would wait for the answer."""
    path = tmp_path / "exit.pem"
    make_key_file(path)
    marker = b"-----BEGIN CERTIFICATE-----"
    private, _, public = path.read_bytes().partition(marker)
    locked = serialization.load_pem_private_key(private, None).private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    path.write_bytes(locked + marker + public)
    with pytest.raises(ValueError, match="encrypted with a password"):
        KeyFile(path)


def test_a_changed_file_takes_effect_for_the_next_session(tmp_path: Path) -> None:
    path, other = tmp_path / "exit.pem", tmp_path / "next.pem"
    make_key_file(path)
    make_key_file(other)
    key = KeyFile(path)
    first, context = key.fingerprint, key.context
    os.replace(other, path)
    assert key.fingerprint != first
    assert key.context is not context
    assert key.trouble == ""


def test_a_file_that_becomes_unusable_leaves_the_previous_key_in_use(tmp_path: Path) -> None:
    path = tmp_path / "exit.pem"
    make_key_file(path)
    key = KeyFile(path)
    first = key.fingerprint
    path.chmod(0o644)
    assert key.fingerprint == first
    assert "chmod 600" in key.trouble
    path.unlink()
    assert key.context is not None
    assert "does not exist" in key.trouble
    make_key_file(path)
    assert key.fingerprint != first
    assert key.trouble == ""


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be made"):
        make_key_file(tmp_path / "file" / "exit.pem")


def test_without_the_extra_the_error_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object) -> object:
        if name.startswith("cryptography"):
            raise ImportError(name)
        return real(name, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match="-m pip install cryptography`"):
        KeyFile(tmp_path / "exit.pem", make=True)


def test_a_key_is_used_without_the_extra(tmp_path: Path) -> None:
    """Only making a key needs it: `cryptography` is large, and is imported neither to accept nor to open streams."""
    path = tmp_path / "exit.pem"
    make_key_file(path)
    code = (
        "import sys; from pathlib import Path; from tunnel.encryption.keys import KeyFile; import tunnel\n"
        "import tunnel.attaching, tunnel.encryption.trust\n"
        f"assert KeyFile(Path({str(path)!r})).fingerprint\n"
        "assert 'cryptography' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_sessions_work_with_a_key_that_was_made() -> None:
    client, server = sessions()
    client.write(b"x")
    assert server.receive(client.take()) == b"x"
