"""Paths and URIs, and folders on this machine."""

import errno
import fcntl
import os
import socket
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tunnel.analysis.engines.folders import FileStatus, HeldError, LocalFolder, holder, is_hidden, local_path
from tunnel.analysis.kept.ledger import open_ledger

SYNC = "sync"


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str, bytes]]:
    """The syncs and links below `tmp_path`, each with the path of the file or folder, and its content at that time.

    A name with a random part is cut before its first `-`.
    """
    found: list[tuple[str, str, bytes]] = []
    fsync, link = os.fsync, os.link

    def note(what: str, path: Path) -> None:
        content = path.read_bytes() if path.is_file() else b""
        found.append((what, str(path.relative_to(tmp_path)).partition("-")[0], content))

    def note_fsync(descriptor: int) -> None:
        fsync(descriptor)
        note(SYNC, Path(os.readlink(f"/proc/self/fd/{descriptor}")))

    def note_link(source: Path, target: Path) -> None:
        link(source, target)
        note("link", target)

    monkeypatch.setattr(os, "fsync", note_fsync)
    monkeypatch.setattr(os, "link", note_link)
    return found


@pytest.mark.parametrize(
    ("place", "path"),
    [
        ("traces", "traces"),
        ("/a/b", "/a/b"),
        ("file:/a/b", "/a/b"),
        ("file:///a/b c%20d", "/a/b c%20d"),  # as Hadoop reads it
        ("FILE:///a", "/a"),
        ("file:/X/a", "/X/a"),
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


def test_a_file_has_a_uri_and_a_place_below_its_folder(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    assert (folder.uri("a/b"), folder.uri()) == (f"file:{tmp_path}/a/b", f"file:{tmp_path}")
    assert (folder.place("a/b"), folder.place()) == (f"{tmp_path}/a/b", str(tmp_path))


@pytest.mark.parametrize(("name", "hidden"), [("_a", True), (".a", True), ("a", False), ("a_", False), ("a.b", False)])
def test_names_that_begin_with_an_underscore_or_a_dot_are_hidden(name: str, hidden: bool) -> None:
    assert is_hidden(name) == hidden


def test_only_files_that_readers_see_are_found_in_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a/z", "_tables/events/x", ".hidden/x", "_written", "a/_tables/y"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    found = LocalFolder(tmp_path).walk()
    assert [file.name for file in found] == ["_written", "a/z", "b"]
    assert found[1] == FileStatus("a/z", 3, (tmp_path / "a" / "z").stat().st_mtime_ns)


def test_files_that_vanish_meanwhile_are_not_found_and_all_others_are(tmp_path: Path) -> None:
    for number in range(8):
        (tmp_path / f"{number}").write_text("")
        (tmp_path / f"gone-{number}").symlink_to(tmp_path / "nowhere")
    assert [file.name for file in LocalFolder(tmp_path).walk()] == [str(number) for number in range(8)]


def test_files_are_sorted_by_the_parts_of_their_paths(tmp_path: Path) -> None:
    """A folder's files come where the folder's name sorts among its siblings. As text, a-b would come before a/0."""
    for name in ("a/1", "a-b", "a/0", "A", "b"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert [file.name for file in LocalFolder(tmp_path).walk()] == ["A", "a/0", "a/1", "a-b", "b"]


def test_names_are_those_of_files_and_folders_in_order(tmp_path: Path) -> None:
    for name in "dbac":
        (tmp_path / "in" / name).mkdir(parents=True)
    (tmp_path / "in" / "_x").write_text("")
    folder = LocalFolder(tmp_path)
    assert folder.names("in") == ["_x", "a", "b", "c", "d"]
    assert folder.names("") == ["in"]
    assert (folder.is_folder(), folder.is_folder("in"), folder.is_folder("in/_x")) == (True, True, False)
    assert not folder.is_folder("none")


def test_a_file_is_read_where_it_is(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.make("a")
    folder.write("a/b", b"12")
    with folder.local_copy("a/b") as path:
        assert path == tmp_path / "a" / "b"
    assert folder.read("a/b") == b"12"
    assert folder.status("a/b") == FileStatus("a/b", 2, path.stat().st_mtime_ns)
    with pytest.raises(FileNotFoundError):
        folder.status("a/c")


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


# folders that are made and removed


def test_a_folder_is_made_with_those_above_it_and_an_existing_one_is_kept(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path / "x" / "y")
    folder.make()
    folder.make("a/b")
    folder.write("a/b/c", b"1")
    folder.make("a/b")
    folder.make("a")
    assert folder.names("") == ["a"]
    assert folder.read("a/b/c") == b"1"


def test_a_folder_that_was_made_survives_a_crash(tmp_path: Path, steps: list[tuple[str, str, bytes]]) -> None:
    """Its name is synced even if it existed: the process that made it may have died before it synced the name."""
    folder = LocalFolder(tmp_path)
    folder.make("a/b/c")
    assert [step[:2] for step in steps] == [(SYNC, "."), (SYNC, "a"), (SYNC, "a/b")]
    steps.clear()
    folder.make("a/b")
    assert [step[:2] for step in steps] == [(SYNC, "a")]


@pytest.mark.parametrize(("code", "is_fatal"), [(errno.EACCES, False), (errno.EINVAL, False), (errno.EIO, True)])
def test_a_folder_can_be_made_in_one_that_cannot_be_read_or_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, code: int, is_fatal: bool
) -> None:
    def refuse(path: Any, flags: int) -> NoReturn:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "open", refuse)
    with pytest.raises(OSError, match=os.strerror(code)) if is_fatal else nullcontext():
        LocalFolder(tmp_path).make("a/b")
    assert is_fatal or (tmp_path / "a" / "b").is_dir()


def test_a_folder_is_removed_with_everything_in_it(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.make("a/b")
    folder.write("a/b/c", b"1")
    folder.write("d", b"1")
    folder.remove("a")
    assert folder.names("") == ["d"]


def test_a_link_to_a_folder_is_removed_and_the_folder_is_not(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    folder.make("a")
    folder.write("a/b", b"1")
    (tmp_path / "link").symlink_to(tmp_path / "a")
    folder.remove("link")
    assert (folder.names(""), folder.names("a")) == (["a"], ["b"])


def test_files_that_cannot_be_removed_stay_in_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = LocalFolder(tmp_path)
    folder.make("a")
    for name in "bcd":
        folder.write(f"a/{name}", b"1")
    unlink = os.unlink

    def refuse(path: Any, **options: Any) -> None:
        if str(path).endswith("c"):
            raise OSError(errno.EBUSY, "Device or resource busy")
        unlink(path, **options)

    monkeypatch.setattr(os, "unlink", refuse)
    folder.remove("a")
    assert folder.names("a") == ["c"]


# files that survive a crash


def test_put_if_absent_syncs_the_content_before_the_link_and_the_folder_after_it(
    tmp_path: Path, steps: list[tuple[str, str, bytes]]
) -> None:
    """Before the link, the file has a hidden name."""
    folder = LocalFolder(tmp_path)
    (tmp_path / "in").mkdir()
    folder.put_if_absent("in/a.json", b"whole")
    assert steps == [(SYNC, "in/.a.json", b"whole"), ("link", "in/a.json", b"whole"), (SYNC, "in", b"")]
    assert folder.names("in") == ["a.json"]


def test_an_unfinished_record_of_a_killed_process_is_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hidden: list[Path] = []
    link = os.link

    def note_link(source: Path, target: Path) -> None:
        hidden.append(source)
        link(source, target)

    monkeypatch.setattr(os, "link", note_link)
    folder = LocalFolder(tmp_path)
    with open_ledger(folder) as ledger:
        ledger.commit([])
    hidden[0].write_bytes(b"half a record")
    with open_ledger(folder):
        assert folder.names("commits") == ["00000001.json"]


def test_two_processes_may_write_a_file_at_once_and_one_succeeds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = LocalFolder(tmp_path)
    link = os.link

    def link_late(source: Path, target: Path) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(os, "link", link)
            folder.put_if_absent("a", b"theirs")
        link(source, target)

    monkeypatch.setattr(os, "link", link_late)
    with pytest.raises(FileExistsError):
        folder.put_if_absent("a", b"mine")
    assert folder.read("a") == b"theirs"
    assert folder.names("") == ["a"]


def test_a_file_system_may_have_no_links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: Path, target: Path) -> None:
        raise OSError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    folder = LocalFolder(tmp_path)
    folder.put_if_absent("a", b"1")
    with pytest.raises(FileExistsError, match=str(tmp_path / "a")):
        folder.put_if_absent("a", b"2")
    assert folder.read("a") == b"1"
    assert folder.names("") == ["a"]


def test_everything_in_a_folder_that_is_synced_survives_a_crash(
    tmp_path: Path, steps: list[tuple[str, str, bytes]]
) -> None:
    folder = LocalFolder(tmp_path)
    (tmp_path / "a" / "b").mkdir(parents=True)
    folder.write("a/b/c", b"1")
    folder.write("a/.d", b"2")
    folder.write("e", b"3")
    folder.sync("a")
    assert sorted(steps) == [(SYNC, name, content) for name, content in
                             ((".", b""), ("a", b""), ("a/.d", b"2"), ("a/b", b""), ("a/b/c", b"1"))]  # fmt: skip


def test_no_descriptor_stays_open(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    before = len(os.listdir("/proc/self/fd"))
    folder.make("a/b")
    folder.put_if_absent("a/c", b"1")
    folder.sync("a")
    assert len(os.listdir("/proc/self/fd")) == before


# the lock


def test_a_held_lock_names_the_process_that_has_it(tmp_path: Path) -> None:
    folder = LocalFolder(tmp_path)
    (tmp_path / "lock").write_text("a process of earlier times with a long name" * 9)
    with folder.lock() as was_taken:
        assert was_taken is False
        with pytest.raises(HeldError) as caught, folder.lock():
            pass
        assert str(caught.value) == holder() == f"process {os.getpid()} on {socket.gethostname()}"
    with folder.lock():
        assert (tmp_path / "lock").read_text() == holder()


@pytest.mark.parametrize(
    ("written", "shown"),
    [(b"", "it has not written its name yet"), (b"\xffa", "\ufffda"), (b"x" * 5_000, "x" * 200)],
)
def test_an_unreadable_or_long_name_of_the_holder_is_shown_as_far_as_possible(
    tmp_path: Path, written: bytes, shown: str
) -> None:
    (tmp_path / "lock").write_bytes(written)
    with (tmp_path / "lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(HeldError) as caught, LocalFolder(tmp_path).lock():
            pass
    assert str(caught.value) == shown


def test_a_lock_needs_a_folder(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError), LocalFolder(tmp_path / "none").lock():
        pass
