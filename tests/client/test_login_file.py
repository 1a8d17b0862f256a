"""What is stored is whole, private, and given to the relay it belongs to alone."""

import os
import stat
from pathlib import Path

import pytest

from tunnel_client.errors import UsageError
from tunnel_client.login_file import Login, login_path, read_login, read_private, remove_login, write_login


def test_what_is_written_is_read(home: Path) -> None:
    assert read_login() is None
    login = Login("https://relay.example", "tnl_x", proxy="none", ca="/ca.pem")
    path = write_login(login)
    assert path == home / "config/tunnel/login.json"
    assert read_login() == login
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700
    assert os.listdir(path.parent) == ["login.json"]
    other = Login("https://other.example")
    assert write_login(other) == path
    assert read_login() == other
    assert remove_login()
    assert not remove_login()


def test_without_a_configuration_directory_it_lies_at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(home))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert login_path() == home / ".config/tunnel/login.json"


def test_a_file_that_others_read_is_refused(home: Path) -> None:
    path = write_login(Login("https://relay.example", "secret"))
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(UsageError, match=r"chmod 600") as caught:
            read_login()
        assert "secret" not in str(caught.value)


def test_a_file_of_somebody_else_is_refused(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_login(Login("https://relay.example"))
    monkeypatch.setattr("os.geteuid", lambda: path.stat().st_uid + 1)
    if path.stat().st_uid:
        with pytest.raises(UsageError, match="belongs to somebody else"):
            read_login()
    else:  # what root left is trusted
        assert read_login() is not None


def test_what_is_no_login_is_told(home: Path) -> None:
    path = write_login(Login("https://relay.example"))
    for text in ("{", "{}", '{"relay": 1}', '{"relay": "x", "else": 1}'):
        path.write_text(text)
        with pytest.raises(UsageError, match="log in anew"):
            read_login()


def test_places_that_cannot_be_used_are_told(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    with pytest.raises(UsageError, match="cannot be written"):
        write_login(Login("https://relay.example"))
    with pytest.raises(UsageError, match="Not a directory"):
        read_login()
    with pytest.raises(UsageError, match="cannot be removed"):
        remove_login()


def test_what_is_no_regular_file_has_no_mode_to_mind() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"token")
    os.close(writer)
    assert read_private(Path(f"/dev/fd/{reader}")) == b"token"
    os.close(reader)
