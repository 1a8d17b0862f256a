"""Files that hold a secret are read only if no other user can read them, and are written in one step."""

import os
from pathlib import Path

import pytest

from tunnel.private_files import read_private, read_token, write_private


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
