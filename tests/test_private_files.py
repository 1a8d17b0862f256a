"""Files that hold a secret are read only if no other user can read them, and are written in one step."""

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from loadtests.harness.tree import python_path
from tunnel.system.private_files import (
    create_private,
    make_private_directory,
    read_private,
    read_token,
    require_ordinary,
    require_private,
    require_trusted,
    write_new,
    write_private,
)


def test_a_token_is_read_from_a_private_file(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text(" tnl_x\n")
    file.chmod(0o600)
    assert read_token(file) == "tnl_x"


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o602])
def test_two_users_a_token_that_another_user_can_reach_is_refused(mode: int, tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("tnl_x\n")
    file.chmod(mode)
    with pytest.raises(ValueError, match="run `chmod 600"):
        read_token(file)


@pytest.mark.parametrize(
    ("content", "message"), [(None, "there is no such file"), (b"", "is empty"), (b"\xff", "does not hold a token")]
)
def test_a_file_without_a_token_is_explained(content: bytes | None, message: str, tmp_path: Path) -> None:
    file = tmp_path / "token"
    if content is not None:
        file.write_bytes(content)
        file.chmod(0o600)
    with pytest.raises(ValueError, match=message):
        read_token(file)


def test_a_folder_is_explained(tmp_path: Path) -> None:
    tmp_path.chmod(0o700)
    with pytest.raises(ValueError, match="cannot be read: Is a directory"):
        read_token(tmp_path)


def test_a_file_that_is_too_long_is_refused_and_not_cut(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_bytes(bytes(2048))
    file.chmod(0o600)
    assert len(read_private(file, bytes_max=2048)) == 2048
    with pytest.raises(ValueError, match="longer than 1 KiB: check that it is the right file"):
        read_private(file, bytes_max=2047)


def test_a_written_file_is_private_and_no_draft_is_left(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    file.write_text("old")
    file.chmod(0o644)
    write_private(file, b"new")
    assert file.read_bytes() == b"new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["secrets"]


def test_what_root_writes_for_the_owner_of_a_folder_stays_with_that_user(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A relay goes on reading the tokens file after root has added a user."""
    given = list[tuple[int, int]]()
    monkeypatch.setattr(os, "fchown", lambda _, user, group: given.append((user, group)))
    write_private(tmp_path / "file", b"new")
    found = (tmp_path / "file").stat()
    monkeypatch.setattr(os, "geteuid", lambda: 1)
    write_private(tmp_path / "file", b"by another user")
    assert given == []
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    write_private(tmp_path / "file", b"by root")
    assert given == [(found.st_uid, found.st_gid)]
    write_private(tmp_path / "another", b"new")
    monkeypatch.setattr(Path, "lstat", lambda path: os.stat_result((0, 0, 0, 0, 77, 77, 0, 0, 0, 0)))
    write_private(tmp_path / "placed", b"of a user who does not own the folder")
    assert given == [(found.st_uid, found.st_gid)]


def test_without_replacing_the_first_writer_wins(tmp_path: Path) -> None:
    file = tmp_path / "secrets"
    for content in (b"first", b"second"):
        write_private(file, content, replaces=False)
    assert file.read_bytes() == b"first"
    assert os.listdir(tmp_path) == ["secrets"]


@pytest.mark.parametrize("replaces", [True, False])
def test_a_draft_that_a_killed_process_left_stops_no_writer(replaces: bool, tmp_path: Path) -> None:
    """In a container, the next process may well have the same number."""
    (tmp_path / f".secrets.{os.getpid()}").write_text("left")
    write_private(tmp_path / "secrets", b"new", replaces=replaces)
    assert (tmp_path / "secrets").read_bytes() == b"new"
    assert os.listdir(tmp_path) == ["secrets"]


@pytest.mark.parametrize("is_synced", [True, False])
def test_the_content_is_on_disk_before_it_replaces_the_old_one_if_that_is_asked_for(
    is_synced: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append(f"synced {os.fstat(descriptor).st_size} bytes")
        fsync(descriptor)

    def replaced(source: Path, target: Path) -> None:
        done.append("replaced")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", replaced)
    write_private(tmp_path / "secrets", b"new", is_synced=is_synced)
    assert done == ["synced 3 bytes", "replaced"][not is_synced :]


def test_a_file_that_cannot_be_replaced_is_unchanged_and_the_draft_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    write_private(tmp_path / "secrets", b"old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_private(tmp_path / "secrets", b"new")
    assert (tmp_path / "secrets").read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["secrets"]


# --- directories, and files that decide


def test_two_users_no_directory_that_is_made_lets_another_user_in(tmp_path: Path, open_umask: None) -> None:
    make_private_directory(tmp_path / "config" / "tunnel")
    for made in (tmp_path / "config", tmp_path / "config" / "tunnel"):
        assert stat.S_IMODE(made.stat().st_mode) == 0o700
    make_private_directory(tmp_path / "config" / "tunnel")  # it may exist


@pytest.mark.parametrize("trap", ["file", "link", "dangling link"])
def test_two_users_a_new_file_is_private_and_never_one_that_another_user_placed(
    trap: str, tmp_path: Path, open_umask: None
) -> None:
    with open(create_private(tmp_path / "fresh"), "wb"):
        assert stat.S_IMODE((tmp_path / "fresh").stat().st_mode) == 0o600
    placed = tmp_path / "placed"
    if trap == "file":
        placed.touch()
    else:
        placed.symlink_to(tmp_path / ("fresh" if trap == "link" else "missing"))
    with pytest.raises(FileExistsError):
        create_private(placed)


def put(path: Path, mode: int) -> Path:
    path.write_text("content")
    path.chmod(mode)
    return path


@pytest.mark.parametrize("mode", [0o600, 0o644, 0o664])
def test_a_file_that_decides_may_be_readable_and_writable_for_its_group(mode: int, tmp_path: Path) -> None:
    require_trusted(put(tmp_path / "relay.toml", mode))
    require_trusted(tmp_path / "missing")  # reading it will tell


@pytest.mark.parametrize("mode", [0o666, 0o602])
def test_two_users_a_file_that_everybody_can_change_decides_nothing(mode: int, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"every user of this machine can change .*relay.toml: .* `chmod o-w"):
        require_trusted(put(tmp_path / "relay.toml", mode))


@pytest.mark.parametrize("check", ["trusted", "private"])
@pytest.mark.parametrize("depth", [0, 1])
def test_two_users_a_file_that_everybody_can_replace_is_refused(check: str, depth: int, tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    folder.mkdir(parents=True)
    file = put(folder / "file", 0o600)
    (folder, folder.parent)[depth].chmod(0o777)
    with pytest.raises(ValueError, match=rf"^{file} can be replaced .*, because .* is open to all"):
        require_trusted(file) if check == "trusted" else read_private(file)
    (folder, folder.parent)[depth].chmod(0o1777)  # as /tmp is: others cannot rename our files there
    require_trusted(file)
    assert read_private(file) == b"content"


def test_two_users_the_place_to_which_a_link_leads_is_examined_too(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    put(tmp_path / "open" / "file", 0o600)
    (tmp_path / "open").chmod(0o777)
    (tmp_path / "link").symlink_to(tmp_path / "open" / "file")
    for check in (require_trusted, read_private):
        with pytest.raises(ValueError, match="is open to all"):
            check(tmp_path / "link")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
def test_two_users_a_configuration_that_a_stranger_left_in_tmp_is_refused(tmp_path: Path) -> None:
    file = put(tmp_path / "relay.toml", 0o644)
    os.chown(file, 65534, 65534)
    require_trusted(file)  # only we can create files here: it came with our consent
    tmp_path.chmod(0o1777)
    with pytest.raises(ValueError, match="belongs to another user, and every user can create files in"):
        require_trusted(file)
    tmp_path.chmod(0o700)


def test_what_is_no_file_is_not_read_unless_the_shell_has_opened_it(tmp_path: Path) -> None:
    for place in (tmp_path / "missing", tmp_path):  # reading them tells
        require_ordinary(place)
    pipe, link = tmp_path / "pipe", tmp_path / "link"
    os.mkfifo(pipe)
    link.symlink_to("/dev/zero")
    for place in (pipe, link):
        with pytest.raises(ValueError, match="it is no ordinary file"):
            require_ordinary(place)
        for read in (read_private, require_trusted):  # neither waits for a writer
            with pytest.raises(ValueError, match="it is no ordinary file"):
                read(place)
    reading, writing = os.pipe()
    require_ordinary(Path(f"/dev/fd/{reading}"))
    os.close(reading)
    os.close(writing)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_secret_of_the_system_may_be_readable_for_its_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relay that is not root may have its TLS key from Debian's group ssl-cert, or from a volume."""
    require = partial(require_private, if_seen="renew it")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    require(put(tmp_path / "key", 0o640))
    for mode in (0o644, 0o660, 0o650):
        with pytest.raises(ValueError, match=r"is open to other users .*, and renew it"):
            require(put(tmp_path / "key", mode))


def test_two_users_what_the_commands_create_under_an_open_umask_is_closed_to_others(
    tmp_path: Path, open_umask: None
) -> None:
    """Another user of the machine who can write one of these files becomes an exit, or locks the operator out."""
    home = tmp_path / "home"
    home.mkdir(mode=0o700)
    commands = [
        "tunnel_servlet init relay.toml --token-file token",
        "tunnel_servlet user add exit -c relay.toml --token-file exit.token",
        "tunnel_servlet exit --show-key --key keys/below/exit.pem",
        "tunnel_client up --example -c up/below/up.toml",
        "tunnel_client peers trust exit --relay http://127.0.0.1:1 SHA256:" + "A" * 43,
    ]
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": python_path()}
    for command in commands:
        words = [sys.executable, "-m", *command.split()]
        done = subprocess.run(words, cwd=home, env=environment, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"{command}: {done.stderr}"
    found = {str(path.relative_to(home)): stat.S_IMODE(path.stat().st_mode) for path in home.rglob("*")}
    named = {"relay.toml", "relay.tokens.toml", "token", "exit.token", "keys/below/exit.pem", "up/below/up.toml"}
    assert named | {".config/tunnel/known_peers"} <= set(found)
    assert {name: oct(mode) for name, mode in found.items() if mode & 0o077} == {}


@pytest.fixture
def open_umask() -> Iterator[None]:
    before = os.umask(0)
    yield
    os.umask(before)


def test_a_new_file_is_private_and_replaces_none(tmp_path: Path) -> None:
    file = tmp_path / "new"
    write_new(file, "first")
    with pytest.raises(FileExistsError):
        write_new(file, "second")
    assert (file.read_text(), stat.S_IMODE(file.stat().st_mode)) == ("first", 0o600)


def test_a_new_file_that_cannot_be_written_whole_does_not_stay(tmp_path: Path, full_disk: None) -> None:
    with pytest.raises(OSError, match="No space left"):
        write_new(tmp_path / "new", "text")
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def full_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let files be created, and no byte be written into them."""

    def create(path: Path) -> int:
        os.close(create_private(path))
        return os.open("/dev/full", os.O_WRONLY)

    monkeypatch.setattr("tunnel.system.private_files.create_private", create)
