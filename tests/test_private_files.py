"""Files that hold a secret are read only if no other user can read them."""

from pathlib import Path

import pytest

from tunnel.private_files import read_private, read_token


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
