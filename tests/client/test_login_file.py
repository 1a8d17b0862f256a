"""The stored login: written whole, private, and used only with its own relay."""

import os
import stat
from pathlib import Path

import pytest

from tunnel.system.private_files import read_private
from tunnel_client.errors import UsageError
from tunnel_client.login_file import (
    lock_path,
    login_for,
    login_path,
    read_login,
    read_logins,
    remove_login,
    write_login,
)
from tunnel_client.settings import find_settings
from tunnel_client.stored_login import Login


def test_a_written_login_is_read_back(home: Path) -> None:
    assert read_login() is None
    login = Login("https://relay.example", token="tnl_x", proxy="none", ca="/ca.pem")
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


def test_several_logins_are_read_back_in_their_order(home: Path) -> None:
    one, two = Login("https://one.example", token="1", hostname="x"), Login("https://two.example/", token="2")
    write_login(two, one)
    assert read_logins() == [two, one]
    assert read_login() == two
    assert [read_login(url) for url in ("https://one.example/", "https://two.example", "https://x")] == [one, two, None]
    assert login_for("https://one.example", has_token=False) == one
    write_login(one)
    assert login_path().read_text().startswith('{\n  "relay": "https://one.example"')  # as older versions read it


def test_of_a_relay_that_an_earlier_version_stored_in_two_spellings_the_first_is_read_and_it_is_said_once(
    home: Path, caplog: pytest.LogCaptureFixture
) -> None:
    one, two = Login("https://relay.example", token="1"), Login("https://two.example", token="2")
    write_login(one, two, Login("https://Relay.example:443/", token="3"))
    assert read_logins() == [one, two]
    find_settings().check()
    (said,) = (record.getMessage() for record in caplog.records)
    assert said == (
        f"{login_path()} holds one relay twice, as https://relay.example and https://Relay.example:443/: the first "
        "counts, and the second goes when the file is written next; if only its token is right, store that with "
        "`tunnel login https://relay.example`"
    )


def test_logins_for_several_relays_cause_no_warning(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    write_login(Login("https://one.example"), Login("https://two.example"))
    read_logins()
    assert caplog.records == []


def test_the_default_configuration_directory_is_in_the_home_directory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(home))
    for value in ("", "relative"):
        monkeypatch.setenv("XDG_CONFIG_HOME", value)
        assert login_path() == home / ".config/tunnel/login.json"


def test_a_file_that_other_users_can_access_is_refused(home: Path) -> None:
    path = write_login(Login("https://relay.example", token="secret"))
    for mode in (0o640, 0o604, 0o620):
        path.chmod(mode)
        with pytest.raises(UsageError, match=r"chmod 600") as caught:
            read_login()
        assert str(caught.value) == (
            f"{path} is open to other users (mode {mode:04o}): run `chmod 600 {path}`, "
            "and ask for a new token if another user may have seen this one"
        )


@pytest.mark.parametrize(("owner", "is_trusted"), [("us", True), ("root", True), ("another user", False)])
def test_a_file_of_another_user_is_refused(
    home: Path, monkeypatch: pytest.MonkeyPatch, owner: str, is_trusted: bool
) -> None:
    """Another user could lead us to a relay of theirs."""
    write_login(Login("https://relay.example"))
    uid = {"us": 1000, "root": 0, "another user": 1001}[owner]

    def fstat(descriptor: int) -> os.stat_result:
        fields = list(os.stat(descriptor))
        fields[stat.ST_UID] = uid
        return os.stat_result(fields)

    monkeypatch.setattr("tunnel.system.private_files.os.geteuid", lambda: 1000)
    monkeypatch.setattr("tunnel.system.private_files.os.fstat", fstat)
    if is_trusted:
        assert read_login() == Login("https://relay.example")
    else:
        with pytest.raises(UsageError, match="belongs to another user"):
            read_login()


def test_the_login_is_on_disk_before_it_replaces_the_old_one(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a power failure there is the old login or the new one, but no empty file."""
    done: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(("synced", os.stat(descriptor).st_size))
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append(("replaced", source.stat().st_size))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    size = write_login(Login("https://relay.example", token="tnl_x")).stat().st_size
    assert size > 0
    assert done == [("synced", size), ("replaced", size)]


def test_a_malformed_login_file_is_explained(home: Path) -> None:
    path = write_login(Login("https://relay.example"))
    several = (
        '{"relays": 1}',
        '{"relays": [{}]}',
        '{"relays": [], "relay": "x"}',
        '{"relays": [{"relay": "x", "e": 1}]}',
    )
    for text in ("{", "{}", "[]", '{"relay": 1}', '{"relay": "x", "else": 1}', *several):
        path.write_text(text)
        with pytest.raises(UsageError, match="log in again"):
            read_login()


def test_unusable_places_for_the_file_are_explained(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / "file").touch()
    monkeypatch.setenv("XDG_CONFIG_HOME", str(home / "file"))
    with pytest.raises(UsageError, match="cannot be written"):
        write_login(Login("https://relay.example"))
    with pytest.raises(UsageError, match="Not a directory"):
        read_login()
    with pytest.raises(UsageError, match="cannot be removed"):
        remove_login()


def test_the_mode_of_a_pipe_does_not_matter() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"token")
    os.close(writer)
    assert read_private(Path(f"/dev/fd/{reader}")) == b"token"
    os.close(reader)


def test_a_login_is_for_one_relay_in_each_spelling_of_its_url(home: Path) -> None:
    spellings = ("https://relay.example", "https://relay.example/", "HTTPS://Relay.example:443")
    for stored in spellings:
        login = Login(stored, token="secret")
        write_login(login)
        for url in spellings:
            assert login_for(url, has_token=False) == login
            assert lock_path(url) == lock_path(stored)
        for url in ("https://relay.example/X", "https://relay.exampleX", "/https://relay.example"):
            assert login_for(url, has_token=False) == Login("")
    write_login(Login("https://relay.example/X", token="secret"))
    assert login_for("https://relay.example", has_token=False) == Login("")


def test_with_a_given_token_the_other_stored_settings_of_the_same_relay_are_used(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_login(Login("https://relay.example", token="stored", proxy="http://p.example:3128", ca="/etc/company.pem"))
    monkeypatch.setenv("TUNNEL_TOKEN", "given")
    settings = find_settings(relay="https://relay.example/")
    assert (settings.token, settings.proxy, settings.ca) == ("given", "http://p.example:3128", "/etc/company.pem")
    other = find_settings(relay="https://other.example")
    assert (other.token, other.proxy, other.ca) == ("given", "env", None)


@pytest.mark.parametrize("text", ["{", '{"relay": ' + 5_000 * '{"a": '])
def test_a_damaged_file_stops_only_a_command_that_needs_it(text: str, home: Path) -> None:
    path = write_login(Login("https://relay.example", token="secret"))
    path.write_text(text)
    assert login_for("https://relay.example", has_token=True) == Login("")
    for needed in (lambda: login_for("https://relay.example", has_token=False), read_login):
        with pytest.raises(UsageError, match="damaged"):
            needed()


def test_the_file_can_be_read_by_a_person(home: Path) -> None:
    text = write_login(Login("https://relay.example", token="secret")).read_text()
    assert text == '{\n  "relay": "https://relay.example",\n  "token": "secret"\n}\n'


def test_the_new_file_is_never_one_that_was_there_before(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file or a link that another process puts in its place could show the token to other users."""
    opened: list[tuple[int, int]] = []
    real = os.open

    def recorded(path: Path, flags: int, mode: int) -> int:
        opened.append((flags & (os.O_EXCL | os.O_NOFOLLOW), mode))
        return real(path, flags, mode)

    monkeypatch.setattr(os, "open", recorded)
    write_login(Login("https://relay.example", token="secret"))
    assert opened == [(os.O_EXCL | os.O_NOFOLLOW, 0o600)]


def test_a_file_that_is_too_long_is_refused(home: Path) -> None:
    path = home / "long"
    path.touch(0o600)
    path.write_bytes(bytes(100_000))
    with pytest.raises(ValueError, match=f"^{path} is longer than 64 KiB: check that it is the right file$"):
        read_private(path)
