"""Paths and URIs, and folders on this machine."""

from pathlib import Path

import pytest

from tunnel.analysis.folders import FileStatus, LocalFolder, local_path


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("traces", "traces"),
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b c%20d", "/a/b c%20d"),  # as Hadoop reads it
        ("FILE:///a", "/a"),
        ("a:b", "a:b"),  # a name, since a URI has a slash after its scheme
        ("run:2/x", "run:2/x"),
        ("hdfs://host:8020/a", None),
        ("viewfs:///a", None),
        ("s3a://bucket/a", None),
    ],
)
def test_a_path_without_another_scheme_is_one_of_this_machine(place: str, path: str | None) -> None:
    assert local_path(place) == (None if path is None else Path(path))


def test_a_uri_of_a_relative_path_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert LocalFolder(Path("x")).uri("a b") == f"file:{tmp_path}/x/a b"
    assert local_path(LocalFolder(Path("x")).uri()) == tmp_path / "x"


def test_only_files_that_readers_see_are_found_in_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/z", "_tables/events/x", ".hidden/x", "_written", "a/_tables/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    found = LocalFolder(tmp_path).walk()
    assert [file.name for file in found] == ["_written", "a/z", "b"]
    assert found[1] == FileStatus("a/z", 3, (tmp_path / "a" / "z").stat().st_mtime_ns)


def test_a_new_file_replaces_none_and_a_missing_one_can_be_removed(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.write("a", b"1")
    with pytest.raises(FileExistsError):
        folder.write("a", b"2")
    with pytest.raises(FileExistsError):
        folder.put_if_absent("a", b"3")
    assert folder.names("") == ["a"]
    assert folder.read("a") == b"1"
    folder.remove("a")
    folder.remove("a")
    assert folder.names("") == folder.names("none") == []
