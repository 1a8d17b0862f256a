"""Files and directories are on disk when the function returns that makes them."""

import errno
import os
from pathlib import Path

import pytest

from tests.support.disk import RecordedDisk, recorded_syncs
from tunnel.system.durable_files import make_directory, write_atomically


@pytest.fixture
def synced(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files and directories that were synced, in order."""
    return recorded_syncs(monkeypatch)


def test_the_names_of_new_directories_and_of_an_existing_one_are_synced(tmp_path: Path, synced: list[str]) -> None:
    """The process that created the directory may have died before the name was on disk."""
    deep = tmp_path / "a" / "b" / "c"
    make_directory(deep)
    assert deep.is_dir()
    assert synced == [str(tmp_path), str(tmp_path / "a"), str(tmp_path / "a" / "b")]
    synced.clear()
    make_directory(deep)
    assert synced == [str(tmp_path / "a" / "b")]


def test_two_users_no_other_user_can_enter_a_directory_that_is_made(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        make_directory(tmp_path / "a" / "b")
    finally:
        os.umask(before)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "a", tmp_path / "a" / "b")] == [0o700, 0o700]


def test_a_directory_may_be_made_below_one_that_cannot_be_read_or_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = 0

    def refuse(directory: Path) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr("tunnel.system.durable_files.sync_directory", refuse)
    for code in (errno.EACCES, errno.EPERM, errno.EINVAL):
        make_directory(tmp_path / str(code))
        assert (tmp_path / str(code)).is_dir()
    code = errno.EIO
    with pytest.raises(OSError, match="Input/output"):
        make_directory(tmp_path / "b")


def test_a_file_is_replaced_when_its_content_is_on_disk_and_the_name_is_synced_too(
    tmp_path: Path, synced: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = os.replace

    def replace(source: Path, target: Path) -> None:
        synced.append("replace")
        real(source, target)

    monkeypatch.setattr(os, "replace", replace)
    write_atomically(tmp_path / "file", b"data")
    assert synced == [str(tmp_path / "file.new"), "replace", str(tmp_path)]
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o600


def test_a_file_is_replaced_as_a_whole_after_short_writes_and_a_crash(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file.new").write_bytes(bytes(100))  # left by a process that was killed
    real = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: real(descriptor, data[:2]))
    write_atomically(tmp_path / "file", b"12345")
    assert (tmp_path / "file").read_bytes() == b"12345"


def test_a_replaced_file_has_the_old_or_the_new_content_even_after_a_power_failure(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        path = disk.root / "file"
        for data in (b"old", b"new"):
            write_atomically(path, data)
            assert path.read_bytes() == data
            disk.mark("written", data)
        assert os.listdir(disk.root) == ["file"]
    seen = set()
    for crash in disk.crashes():
        written = crash.last("written", None)
        allowed = {None: (None, b"old"), b"old": (b"old", b"new"), b"new": (b"new",)}[written]
        for _ in crash.images(tmp_path / "image", seeds=range(9)):
            left = tmp_path / "image" / "file"
            found = left.read_bytes() if left.exists() else None
            assert found in allowed
            seen.add((written, found))
    assert seen == {(None, None), (None, b"old"), (b"old", b"old"), (b"old", b"new"), (b"new", b"new")}


def test_a_reader_of_a_file_that_is_replaced_keeps_the_old_content(tmp_path: Path) -> None:
    write_atomically(tmp_path / "file", b"old")
    with open(tmp_path / "file", "rb") as reader:
        write_atomically(tmp_path / "file", b"a longer new one")
        assert reader.read() == b"old"
