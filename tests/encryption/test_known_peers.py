"""The file of known peers: its lines, its privacy, and processes that change it at once."""

import errno
import fcntl
import os
import stat
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.encryption import known_peers as module
from tunnel.encryption.known_peers import EXIT, KnownPeer, KnownPeers, peer_name, relay_name
from tunnel.system.private_files import read_private
from tunnel.wire import Target, TargetKind

A, B, C = ("SHA256:" + letter * 43 for letter in "ABC")
RELAY = "https://relay.example"


@pytest.fixture
def file(tmp_path: Path) -> KnownPeers:
    return KnownPeers(tmp_path / "tunnel" / "known_peers")


def write(file: KnownPeers, text: str) -> None:
    file.path.parent.mkdir(exist_ok=True)
    file.path.touch(0o600)
    file.path.write_text(text)


def test_a_peer_is_remembered_once(file: KnownPeers) -> None:
    assert file.find(RELAY, EXIT) is None
    assert file.remember(RELAY + "/", EXIT, A) == KnownPeer(RELAY, EXIT, (A,), 1)
    assert file.remember(RELAY, EXIT, B).keys == (A,)  # as when another process has remembered A meanwhile
    assert file.path.read_text() == f"{RELAY} exit {A}\n"
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.remember(RELAY, "service:reports", B).line == 2


def test_comments_and_order_survive_every_change(file: KnownPeers) -> None:
    write(file, f"# ours\n\n{RELAY} exit {A}\nhttps://other exit {A}\n")
    file.trust(RELAY, EXIT, B)
    file.trust(RELAY, EXIT, B)
    assert file.path.read_text() == f"# ours\n\n{RELAY} exit {A} {B}\nhttps://other exit {A}\n"
    known = file.find(RELAY, EXIT)
    assert known == KnownPeer(RELAY, EXIT, (A, B), 3)
    assert file.forget(RELAY, EXIT, A)
    assert not file.forget(RELAY, EXIT, C)
    assert file.path.read_text() == f"# ours\n\n{RELAY} exit {B}\nhttps://other exit {A}\n"
    file.trust(RELAY, "service:x", C)
    assert file.forget(RELAY, EXIT)
    assert not file.forget(RELAY, EXIT)
    assert file.path.read_text() == f"# ours\n\nhttps://other exit {A}\n{RELAY} service:x {C}\n"
    assert file.forget(RELAY, "service:x", C)
    assert [entry.relay for entry in file.entries()] == ["https://other"]


@given(name=st.text(min_size=1, max_size=60).filter(lambda name: len(name.encode("utf-8", "replace")) < 200))
def test_any_service_name_stays_on_its_line(name: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    if any(0xD800 <= ord(letter) < 0xE000 for letter in name):
        return
    file = KnownPeers(tmp_path_factory.mktemp("known") / "peers")
    peer = peer_name(Target(TargetKind.SERVICE, name))
    file.remember(RELAY, peer, A)
    file.remember(RELAY, EXIT, B)
    assert [(entry.peer, entry.keys) for entry in file.entries()] == [(peer, (A,)), (EXIT, (B,))]


def test_the_peer_of_a_tcp_target_is_the_exit_and_that_of_a_service_is_named_after_it() -> None:
    assert peer_name(Target(TargetKind.TCP, "db", 5432)) == EXIT
    assert peer_name(Target(TargetKind.SERVICE, "exit")) == "service:exit"
    assert relay_name("https://relay.example/a b/") == "https://relay.example/a%20b"


@pytest.mark.parametrize(
    "line", [RELAY, f"{RELAY} exit", f"{RELAY} exit SHA256:short", f"{RELAY} {A}", f"{RELAY} exits {A}", f"{A} {A} {A}"]
)
def test_a_malformed_line_is_named(file: KnownPeers, line: str) -> None:
    write(file, f"# ours\n{line}\n")
    with pytest.raises(ValueError, match="known_peers, line 2 is malformed"):
        file.entries()
    with pytest.raises(ValueError, match="line 2"):
        file.remember(RELAY, EXIT, A)
    assert file.path.read_text() == f"# ours\n{line}\n"


def test_a_file_that_others_can_change_is_refused(file: KnownPeers) -> None:
    write(file, f"{RELAY} exit {A}\n")
    file.path.chmod(0o666)
    with pytest.raises(ValueError, match=r"chmod 600.*compare its keys"):
        file.find(RELAY, EXIT)


def test_a_peer_has_one_line(file: KnownPeers) -> None:
    """A person must decide which line counts: otherwise a key that was added by hand could have no effect."""
    write(file, f"{RELAY} exit {A}\nhttps://RELAY.example:443/ exit {B}\n")
    with pytest.raises(ValueError, match="line 2 names the same relay and peer as line 1"):
        file.find(RELAY, EXIT)


def test_one_relay_has_one_name_however_its_url_is_written(file: KnownPeers) -> None:
    """If another spelling did not find the known key, the next key would be trusted."""
    file.remember("https://Relay.Example:443/", EXIT, A)
    for url in (RELAY, f"{RELAY}/", "HTTPS://RELAY.example", "https://relay.example:443"):
        assert file.remember(url, EXIT, B).keys == (A,)
    write(file, f"HTTPS://Relay.example/ exit {A}\n")
    assert file.find(RELAY, EXIT) == KnownPeer(RELAY, EXIT, (A,), 1)
    others = ("http://relay.example", "https://relay.example:8443", f"{RELAY}/Path", f"{RELAY}/path", "relay")
    assert len({relay_name(url) for url in (RELAY, *others)}) == 6


@pytest.mark.parametrize(
    "url", ["https://bücher.example", "https://BÜCHER.example:443/é", "https://b%C3%BCcher.example"]
)
def test_the_key_of_a_relay_with_a_name_beyond_ascii_is_found_again(file: KnownPeers, url: str) -> None:
    file.remember(url, EXIT, A)
    assert file.remember(url, EXIT, B).keys == (A,)
    assert file.find(RELAY, EXIT) is None


@given(rest=st.text(st.characters(codec="utf-8"), min_size=1, max_size=30))
def test_the_name_of_a_relay_is_read_as_it_is_written(rest: str) -> None:
    name = relay_name(f"https://{rest}")
    assert relay_name(name) == name
    assert name.split() == [name]


def test_the_file_is_read_again_only_after_a_change(file: KnownPeers, monkeypatch: pytest.MonkeyPatch) -> None:
    reads = 0

    def count(*arguments: Any, **options: Any) -> bytes:
        nonlocal reads
        reads += 1
        return read_private(*arguments, **options)

    monkeypatch.setattr("tunnel.encryption.known_peers.read_private", count)
    for _ in range(3):
        assert file.find(RELAY, EXIT) is None
    assert reads == 1
    other = KnownPeers(file.path)
    other.remember(RELAY, EXIT, A)
    reads = 0
    for _ in range(3):
        known = file.find(RELAY, EXIT)
        assert known is not None
        assert known.keys == (A,)
    assert reads == 1
    file.path.write_text(file.path.read_text().replace(A, B))  # of the same size, in place
    known = file.find(RELAY, EXIT)
    assert known is not None
    assert known.keys == (B,)
    file.path.chmod(0o644)
    for _ in range(2):
        with pytest.raises(ValueError, match="open to other users"):
            file.find(RELAY, EXIT)
    file.path.unlink()
    assert file.find(RELAY, EXIT) is None


def test_a_file_that_cannot_be_examined_does_not_count_as_missing(file: KnownPeers) -> None:
    assert file.find(RELAY, EXIT) is None
    file.path.parent.mkdir()
    file.path.symlink_to(file.path)  # a loop
    for _ in range(2):
        with pytest.raises(ValueError, match="cannot be read"):
            file.find(RELAY, EXIT)


def test_a_long_file_loses_no_peer(file: KnownPeers) -> None:
    """Peers beyond a limit of the reader would be unknown again, and the next change would remove their lines."""
    write(file, "".join(f"{RELAY} service:{number} {A}\n" for number in range(2000)))
    file.remember(RELAY, EXIT, B)
    assert len(file.entries()) == 2001
    write(file, "# long\n" * 150_000)
    with pytest.raises(ValueError, match="longer than 1024 KiB"):
        file.find(RELAY, EXIT)


def test_a_full_file_is_an_error_for_new_peers_only(file: KnownPeers) -> None:
    write(file, "#\n" * (512 * 1024 - 100) + f"{RELAY} exit {A}\n")
    with pytest.raises(ValueError, match="would become too long"):
        file.remember(RELAY, "service:" + "x" * 200, B)
    assert file.remember(RELAY, EXIT, B).keys == (A,)


def test_a_file_that_is_no_text_is_refused(file: KnownPeers) -> None:
    write(file, "")
    file.path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="not a text file"):
        file.entries()


def test_a_directory_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ValueError, match="cannot be written"):
        KnownPeers(tmp_path / "file" / "known_peers").remember(RELAY, EXIT, A)
    file = KnownPeers(tmp_path / "known_peers")
    (tmp_path / f".known_peers.{os.getpid()}").mkdir()
    with pytest.raises(ValueError, match="cannot be written"):
        file.remember(RELAY, EXIT, A)


def _add(path: Path, number: int) -> None:
    file = KnownPeers(path)
    for index in range(10):
        file.trust(RELAY, f"service:{number}-{index}", A)
        file.remember(RELAY, EXIT, "SHA256:" + str(number) * 43)


def test_threads_that_change_the_file_at_once_lose_nothing(tmp_path: Path) -> None:
    path = tmp_path / "known_peers"
    with ThreadPoolExecutor(3) as pool:  # a lock of the file keeps threads apart as it keeps processes apart
        list(pool.map(partial(_add, path), range(3)))
    entries = KnownPeers(path).entries()
    assert len(entries) == 31
    assert len({entry.peer for entry in entries}) == 31
    (exits,) = [entry for entry in entries if entry.peer == EXIT]
    assert len(exits.keys) == 1


def test_while_another_process_holds_the_lock_changes_are_errors_and_reading_works(
    file: KnownPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_LOCK_S", 0.05)
    file.trust(RELAY, EXIT, A)
    with (file.path.parent / ".known_peers.lock").open() as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        for change in (file.remember, file.trust, file.forget):
            with pytest.raises(ValueError, match=r"known_peers cannot be changed: another process has held its lock"):
                change(RELAY, "service:reports", B)
        known = file.find(RELAY, EXIT)
        assert known is not None
        assert known.keys == (A,)
    file.trust(RELAY, EXIT, B)


def test_the_error_of_a_file_system_without_locks_names_the_cause(
    file: KnownPeers, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(descriptor: int, operation: int) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", refuse)
    with pytest.raises(ValueError, match=r"known_peers cannot be written: No locks available: check its directory"):
        file.trust(RELAY, EXIT, A)
